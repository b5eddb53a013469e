"""Describes the settings: as a JSON schema for editors, and as a list of all values in effect.

The schema is the same on every machine: strategies of other installed packages are allowed but not
named.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from router.settings.fleet import BASE_PATTERN, ControllerSettings, StrategySettings, options_model
from router.settings.model import PoolSettings, Settings, WorkerSettings
from router.settings.server import AuthSettings, KeySettings
from router.settings.sessions import TTL_S, ttl_of_environment
from router.settings.tokenizer import TokenizerSettings
from router.settings.types import (
    DURATION_OR_OFF_PATTERN,
    DURATION_PATTERN,
    SECRET_PATTERN,
    SIZE_PATTERN,
    URL_PATTERN,
    Address,
    format_duration,
    format_duration_or_off,
    format_share,
    format_size,
)
from strategies.policies.chbl import Chbl
from strategies.policies.kv_aware import KvAware
from strategies.policies.least_load import LeastLoad
from strategies.policies.power_of_two import PowerOfTwo
from strategies.policies.prefix_aware import PrefixAware
from strategies.policies.round_robin import RoundRobin
from strategies.policies.session import Session

BUILT_IN: dict[str, type[Any]] = {
    "chbl": Chbl,
    "kvaware": KvAware,
    "leastload": LeastLoad,
    "poweroftwo": PowerOfTwo,
    "prefixaware": PrefixAware,
    "roundrobin": RoundRobin,
    "session": Session,
}
_SHORT_FORMS: dict[type[BaseModel], JsonSchemaValue] = {
    WorkerSettings: {"type": "string", "pattern": URL_PATTERN, "description": "URL of a worker."},
    KeySettings: {"type": "string", "pattern": SECRET_PATTERN, "description": "The key alone."},
    AuthSettings: {"const": "none", "description": "Everyone may come in."},
    ControllerSettings: {
        "type": "string",
        "pattern": BASE_PATTERN,
        "description": "URL of a controller.",
    },
    TokenizerSettings: {"type": "string", "minLength": 1, "description": "The source alone."},
}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Build the schema of the whole file."""
    return {"$schema": _DIALECT, **Settings.model_json_schema(schema_generator=_Generator)}


def schema_text() -> str:
    """Return the schema as text, as in config/schema.json."""
    return json.dumps(schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


class _Generator(GenerateJsonSchema):
    """Writes defaults as in a settings file, and both forms of workers and strategies."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002
        """Omit titles: the key is enough."""
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Allow the short forms; require exactly one of `workers` and `pools`."""
        result = super().model_schema(schema)
        result.pop("title", None)
        if schema["cls"] in _SHORT_FORMS:
            return {"anyOf": [_SHORT_FORMS[schema["cls"]], result]}
        if schema["cls"] is PoolSettings:
            del result["properties"]["strategy"]["default"]  # the one at the top of the file
        if schema["cls"] is Settings:
            result["oneOf"] = [{"required": ["workers"]}, {"required": ["pools"]}]
        return result

    def function_plain_schema(
        self,
        schema: core_schema.PlainValidatorFunctionSchema,  # noqa: ARG002
    ) -> JsonSchemaValue:
        """Return the schema of `StrategySettings`, the only type validated by a plain function."""
        return _strategy()

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Do not allow null: None means that a key is left out."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Write durations and sizes with their units; omit defaults of None and ()."""
        result = super().default_schema(schema)
        default = schema.get("default")
        if result.get("pattern") == DURATION_OR_OFF_PATTERN:
            result["default"] = format_duration_or_off(default)
        elif default is None or default == ():
            result.pop("default", None)
        elif result.get("pattern") == DURATION_PATTERN:
            result["default"] = format_duration(default)
        elif result.get("pattern") == SIZE_PATTERN:
            result["default"] = format_size(default)
        return result

    def encode_default(self, dft: object) -> object:
        """Write all other defaults as in a settings file."""
        if isinstance(dft, TokenizerSettings):
            return dft.source
        if isinstance(dft, BaseModel):
            written = dft.model_dump(mode="json").items()
            return {key: value for key, value in written if value not in (None, [])}
        if isinstance(dft, float):
            return format_share(dft)
        if isinstance(dft, Address):
            return str(dft)
        if isinstance(dft, StrategySettings):
            return dft.name
        return super().encode_default(dft)


class _OptionsGenerator(_Generator):
    """For a strategy's options, where the options of a nested strategy are not listed."""

    def function_plain_schema(
        self,
        schema: core_schema.PlainValidatorFunctionSchema,  # noqa: ARG002
    ) -> JsonSchemaValue:
        """Return the schema of a nested strategy: a name, or a mapping with one."""
        named = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        return {"anyOf": [{"type": "string"}, named]}


def _strategy() -> JsonSchemaValue:
    """Return the schema of a strategy: built-in ones with their options, others with any."""
    names = sorted(BUILT_IN)
    other = {
        "type": "object",
        "description": "A strategy of another installed package, with its options.",
        "properties": {"name": {"type": "string", "not": {"enum": names}}},
        "required": ["name"],
    }
    return {
        "anyOf": [
            {"type": "string", "enum": names},
            {"type": "string", "description": "A strategy of another installed package."},
            *(_with_options(name) for name in names),
            other,
        ]
    }


def _with_options(name: str) -> JsonSchemaValue:
    model = options_model(BUILT_IN[name].Options)
    options = model.model_json_schema(schema_generator=_OptionsGenerator)
    described = {key: value for key, value in options.items() if key != "description"}
    return {
        **described,
        "properties": {"name": {"const": name}, **options.get("properties", {})},
        "required": ["name", *options.get("required", [])],
    }


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
    def is_set(self) -> bool:
        """Whether something else than the default says it."""
        return self.source != "default"


def describe(settings: BaseModel) -> list[Row]:
    """List all settings, or those of one section, including defaults, in the order of the model."""
    return list(_rows("", settings, settings.model_dump(mode="json"), given=True))


def _rows(path: str, value: object, written: object, *, given: bool) -> Iterator[Row]:
    """Walk a value together with its written form."""
    if isinstance(value, BaseModel) and isinstance(written, dict):
        values = cast("dict[str, object]", written)
        for key in type(value).model_fields:
            below, known = f"{path}.{key}".removeprefix("."), key in value.model_fields_set
            yield from _rows(below, getattr(value, key), values[key], given=given and known)
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
        source, seconds = ttl_of_environment() or ("default", TTL_S)
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
