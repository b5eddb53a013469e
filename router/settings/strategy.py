"""`strategy:` in the YAML: a name, or a mapping of a name and that strategy's own options."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Self, get_type_hints

import pydantic
from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    PlainSerializer,
    StrictBool,
    StrictInt,
)
from pydantic_core import CoreSchema, InitErrorDetails, core_schema

from router.runtime.quoting import shown
from router.settings.errors import nearest, refusal, refuse
from router.settings.units import Duration, DurationOrOff, Size
from strategies import registry
from strategies.api import Bytes, Other, Seconds

_READ_AS: dict[object, object] = {
    Bytes: Size,
    Seconds: Duration,
    Seconds | None: DurationOrOff,
    int: StrictInt,
    bool: StrictBool,
}


@dataclass(frozen=True, slots=True)
class StrategySettings:
    """A strategy's name, and the options that were set, in bytes and seconds.

    The strategy is made as `cls(cls.Options(**options))`.
    """

    name: str
    options: dict[str, object] = field(default_factory=dict)

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read a name, or a mapping with a name."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            raise ValueError('must be the name of a strategy, or a mapping with "name"')
        given = dict(value)
        if "name" not in given:
            raise refuse("strategy", list(_nameless(given)))
        name = given.pop("name")
        options = options_of(name).model_validate(given)
        chosen = {key: getattr(options, key) for key in options.model_fields_set}
        _try(name, chosen)
        return cls(name, chosen)

    def written(self) -> dict[str, object]:
        """Return the name and every option, including defaults, as written in YAML."""
        options = options_of(self.name).model_construct(None, **self.options)
        return {"name": self.name, **options.model_dump(mode="json")}

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse,
            serialization=core_schema.plain_serializer_function_ser_schema(
                cls.written, when_used="json"
            ),
        )


def _nameless(given: Iterable[object]) -> Iterator[InitErrorDetails]:
    """Report that the name is missing, and keys that no strategy has: one may be the name."""
    yield InitErrorDetails(type="missing", loc=("name",), input=None)
    known = all_options()
    for key in given:
        if key not in known:
            yield InitErrorDetails(type="extra_forbidden", loc=(str(key),), input=None)


def all_options() -> set[str]:
    """Return the options that any strategy has; those that cannot be loaded are left out."""
    found = set[str]()
    for name in registry.names():
        with suppress(pydantic.ValidationError, AttributeError, TypeError):
            found.update(option.name for option in fields(_find(name).Options) if option.init)
    return found


def options_of(name: object) -> type[BaseModel]:
    """Return the model that reads the options of the strategy called `name`."""
    names = registry.names()
    if name not in names:
        message = f"{shown(name)} is not a strategy: known are {', '.join(names)}"
        raise refuse("strategy", [refusal(("name",), message, nearest(name, names))])
    return options_model(_find(str(name)).Options)


@cache
def options_model(options: type[Any]) -> type[BaseModel]:
    """Build the pydantic model of a strategy's `Options` dataclass."""
    hints = get_type_hints(options)
    read_as = {**_READ_AS, Other: Annotated[StrategySettings, PlainSerializer(_shortest)]}
    known: dict[str, Any] = {
        option.name: (read_as.get(hints[option.name], hints[option.name]), _field(option))
        for option in fields(options)
        if option.init
    }
    config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    return pydantic.create_model(options.__name__, __config__=config, **known)


def _field(option: "Field[Any]") -> object:
    doc = option.metadata.get("doc")
    if option.default_factory is not MISSING:
        return pydantic.Field(default_factory=option.default_factory, description=doc)
    default = ... if option.default is MISSING else option.default
    if isinstance(default, Other):
        default = StrategySettings(default.name, default.options)
    return pydantic.Field(default=default, description=doc)


def _shortest(strategy: StrategySettings) -> object:
    """Write a strategy nested in another one's options: only its name, if it has no options."""
    written = strategy.written()
    return (
        {key: written[key] for key in ("name", *strategy.options)}
        if strategy.options
        else (strategy.name)
    )


def _find(name: str) -> type[Any]:
    try:
        return registry.find(name)
    except Exception as error:  # noqa: BLE001  # an installed package may raise anything on import
        reason = f"{type(error).__name__}: {error}"
        message = f"strategy {shown(name)} cannot be loaded: {' '.join(reason.split())}"
        raise refuse("strategy", [refusal(("name",), message)]) from None


def _try(name: str, options: dict[str, object]) -> None:
    """Make the options once, so that their class can check them. Raises ValueError."""
    try:
        _find(name).Options(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"strategy {shown(name)} refuses its options: {error}") from None
