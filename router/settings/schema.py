"""The JSON schema of the settings file, for editors, made from the models.

It is the same on every machine: strategies of other installed packages are allowed but not named.
"""

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from router.settings.address import Address
from router.settings.controller import BASE_PATTERN, ControllerSettings
from router.settings.model import (
    AuthSettings,
    KeySettings,
    PoolSettings,
    Settings,
    TokenizerSettings,
    WorkerSettings,
)
from router.settings.secret import SECRET_PATTERN
from router.settings.strategy import StrategySettings, options_model
from router.settings.types import URL_PATTERN
from router.settings.units import (
    DURATION_OR_OFF_PATTERN,
    DURATION_PATTERN,
    SIZE_PATTERN,
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
