"""Serialises settings for another process of this router: as JSON, including secrets."""

import msgspec
from pydantic import SecretStr

from router.settings import Settings
from router.units import SEALED, SEALED_MARK


def seal(settings: Settings) -> bytes:
    """Write settings for `opened`. The result contains secrets: send it to nobody else."""
    return settings.model_dump_json(exclude_unset=True, context=SEALED).encode()


def opened(sealed: bytes) -> Settings:
    """Read what `seal` wrote. Raises ValidationError if a file in it has become unusable since."""
    return Settings.model_validate(_with_secrets(msgspec.json.decode(sealed)))


def _with_secrets(value: object) -> object:
    if isinstance(value, dict):
        return {key: _with_secrets(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_secrets(inner) for inner in value]
    if isinstance(value, str) and value.startswith(SEALED_MARK):
        return SecretStr(value.removeprefix(SEALED_MARK))
    return value
