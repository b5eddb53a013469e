"""Lists every setting in effect, for `warmroute check`."""

import json
from collections.abc import Iterator
from typing import NamedTuple, cast

from pydantic import BaseModel

from router.settings.sessions import TTL_S, ttl_told
from router.settings.strategy import StrategySettings
from router.settings.units import format_duration

#: What it means to leave these settings out.
_LEFT_OUT = {
    ".models": "as the worker reports",
    ".kv_tokens": "as the worker reports",
    ".kv_events": "as the worker reports",
    ".kv_replay": "as the worker reports",
    ".limits.max_tokens": "no limit",
    ".admin.listen": "as listen",
    ".admin.keys": "as auth",
    ".controller": "in the router itself",
    ".auth": "everyone on this machine",
    ".shutdown.state": "none, the next one starts cold",
    ".session.redis": "none, in memory",
    ".sagemaker.sigv4": "none, signatures are ignored",
    ".sagemaker.endpoints": "every name",
    ".chat_template": "the model's own",
    ".overflow.message": "one that fits body",
}


class Row(NamedTuple):
    """One setting in effect."""

    path: str
    """Such as `workers[0].url`."""
    value: str
    """As written in a settings file; a secret is `***`."""
    source: str
    """`set` in the file, `default`, or the environment variable that says so."""

    @property
    def told(self) -> bool:
        """Whether something else than the default says it."""
        return self.source != "default"


def describe(settings: BaseModel) -> list[Row]:
    """List all settings, or those of one section, including defaults, in the order of the model."""
    return list(_rows("", settings, settings.model_dump(mode="json"), given=True))


def _rows(path: str, value: object, written: object, *, given: bool) -> Iterator[Row]:
    """Walk a value together with its written form."""
    if isinstance(value, BaseModel) and isinstance(written, dict):
        said = cast("dict[str, object]", written)
        for key in type(value).model_fields:
            below, known = f"{path}.{key}".removeprefix("."), key in value.model_fields_set
            yield from _rows(below, getattr(value, key), said[key], given=given and known)
    elif isinstance(value, StrategySettings):
        yield _row(path, value.name, given=given)
        for key, option in value.written().items():
            if key != "name":
                yield _row(f"{path}.{key}", option, given=given and key in value.options)
    elif path in {"workers", "pools"} or _are_models(value):
        for number, inner in enumerate(cast("tuple[object, ...]", value)):
            item = cast("list[object]", written)[number]
            yield from _rows(f"{path}[{number}]", inner, item, given=given)
    else:
        yield _row(path, written, given=given)


def _are_models(value: object) -> bool:
    return isinstance(value, tuple) and any(isinstance(inner, BaseModel) for inner in value)


def _row(path: str, written: object, *, given: bool) -> Row:
    text = _text(written)
    if written is None and f".{path}".endswith(".session.ttl"):
        told = ttl_told()
        seconds, source = (told.seconds, told.name) if told else (TTL_S, "default")
        return Row(path, format_duration(seconds), source)
    if written in (None, []):
        ends = (meaning for end, meaning in _LEFT_OUT.items() if f".{path}".endswith(end))
        text = next(ends, text)
    return Row(path, text, "set" if given else "default")


def _text(written: object) -> str:
    if isinstance(written, bool):
        return str(written).lower()
    if isinstance(written, list):
        return ", ".join(map(_text, written)) or "none"
    if isinstance(written, dict):
        return json.dumps(written, ensure_ascii=False) if written else "none"
    return "none" if written is None else str(written)
