"""Serialises settings for another process of this router: as JSON, including secrets."""

import msgspec
from pydantic import SecretStr, ValidationError

from router.settings.errors import dotted
from router.settings.model import LogSettings, Settings
from router.settings.secret import SEALED, SEALED_MARK


def seal(settings: Settings) -> bytes:
    """Write settings for `opened`. The result contains secrets: send it to nobody else."""
    return settings.model_dump_json(exclude_unset=True, context=SEALED).encode()


class Unusable(Exception):
    """A file that settings name has become unusable; the message is a sentence saying why."""


def opened(sealed: bytes) -> Settings:
    """Read what `seal` wrote. Raises Unusable."""
    try:
        return Settings.model_validate(_with_secrets(msgspec.json.decode(sealed)))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
    why = (f"{dotted(one['loc'])}: {one['msg'].removeprefix('Value error, ')}" for one in found)
    raise Unusable("; ".join(why))


def logs_of(sealed: bytes) -> LogSettings:
    """Read the part that says how to log, which is usable even if the rest is not."""
    return LogSettings.model_validate(msgspec.json.decode(sealed).get("logs", {}))


def _with_secrets(value: object) -> object:
    if isinstance(value, dict):
        return {key: _with_secrets(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_secrets(inner) for inner in value]
    if isinstance(value, str) and value.startswith(SEALED_MARK):
        return SecretStr(value.removeprefix(SEALED_MARK))
    return value
