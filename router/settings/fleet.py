"""Settings of the fleet: probes and ejection, strategies, the controller, and the tiers.

`strategy:` is a name, or a mapping of a name and that strategy's own options. `controller:` names a
remote controller that knows what workers hold. `tiers:` describes what lies behind the engines'
GPUs, and how fast it loads at first.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Literal, Self, get_type_hints

import pydantic
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    PlainSerializer,
    StrictBool,
    StrictInt,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails, core_schema

from router.runtime.quote import shown
from router.settings.errors import nearest, refusal, refuse
from router.settings.sessions import RedisUrl
from router.settings.types import (
    Count,
    Duration,
    DurationOrOff,
    Model,
    Secret,
    Share,
    Size,
    Wait,
    refuse_user,
)
from strategies import registry
from strategies.api import Bytes, Other, Seconds
from strategies.cost.prefill import Loads


class EjectionSettings(Model):
    """When a worker whose answers fail gets no requests for a while, though its probes succeed."""

    failures: Count = 5
    """Failed requests in a row, which others would have answered, that eject a worker.
    Default: 5."""
    first: Wait = 5.0
    """How long the first ejection lasts; each further one lasts longer. Default: 5s."""
    longest: Wait = 300.0
    """How long an ejection lasts at most. Default: 5m."""
    share: Share = 0.5
    """Most of a pool ejected at once, 0 to 1; 0: no worker ever is. Default: 0.5."""
    panic: Share = 0.5
    """If less than this share of a pool can serve, ejections are ignored, and workers that are
    too busy for their probes get requests; 0: never. Default: 0.5."""


class HealthSettings(Model):
    """How the router asks each worker whether it is ready, and learns from its answers."""

    interval: Wait = 2.0
    """Between two probes of one worker. Default: 2s."""
    timeout: Wait = 1.0
    """For the answer to one probe. Default: 1s."""
    fall: Count = 2
    """Failed probes in a row until a worker gets no requests. Default: 2."""
    rise: Count = 1
    """Good probes in a row until it gets requests again. Default: 1."""
    ejection: EjectionSettings = EjectionSettings()
    """When a worker whose answers fail gets no requests for a while, though its probes succeed."""


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
    names = set[str]()
    for name in registry.names():
        with suppress(pydantic.ValidationError, AttributeError, TypeError):
            names.update(option.name for option in fields(_find(name).Options) if option.init)
    return names


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


BASE_PATTERN = r"^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?$"


def base_url(value: object, whose: str, instead: str | None = None) -> str:
    """Check the URL of a service and return it without a trailing slash.

    `instead`: the setting that its key belongs in. Raises ValueError with a sentence.
    """
    text = value if isinstance(value, str) else ""
    refuse_user(text, f"{whose} URL", instead)
    if not re.fullmatch(BASE_PATTERN[1:-1], text):
        raise ValueError(f"{shown(value)} is not {whose} URL: write http://host:port")
    return text.removesuffix("/")


def _url(value: object) -> str:
    return base_url(value, "a controller's", "key")


ControllerUrl = Annotated[
    str, BeforeValidator(_url), WithJsonSchema({"type": "string", "pattern": BASE_PATTERN})
]


class ControllerSettings(Model):
    """A controller of its own; a bare URL stands for one with defaults."""

    url: ControllerUrl
    """Where `warmroute controller` listens: `http://host:port`. Required."""
    key: Secret | None = None
    """Key sent to it as a bearer token: `${NAME}` or `file:/path`. Default: none."""
    deadline: Wait = 0.02
    """How long a decision waits for it; after that it goes by what was sent before. Default:
    20ms."""

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value


def _coordinator(value: object) -> str:
    return base_url(value, "a coordinator's")


CoordinatorUrl = Annotated[
    str, BeforeValidator(_coordinator), WithJsonSchema({"type": "string", "pattern": BASE_PATTERN})
]


class HostSettings(Model):
    """L1: blocks in the memory of the worker's host."""

    enabled: StrictBool = True
    """Whether blocks there count, with the strategy kvaware. Default: true."""
    bandwidth: Size = pydantic.Field(default=25 << 30, gt=0)
    """Bytes per second that a worker loads from it, until that is measured. Default: 25GiB."""


#: `pre_caching_hash_algorithm` of LMCache in the engine.
Hash = Literal["builtin", "sha256", "sha256_cbor"]
#: Python does not start with a larger PYTHONHASHSEED.
MAX_PYTHONHASHSEED = 2**32 - 1


class LmcacheSettings(Model):
    """Where LMCache's server (0.5) keeps chunks for all workers; one of `redis`, `coordinator`."""

    redis: RedisUrl | None = None
    """Redis that holds the chunks: `redis://host:port`. Default: none."""
    password: Secret | None = None
    """Its password: `${NAME}` or `file:/path`. Default: none."""
    coordinator: CoordinatorUrl | None = None
    """LMCache's coordinator, whose directory is asked: `http://host:port`. Default: none."""
    model: str | None = None
    """The model as engines were given it. Default: the name that clients ask for."""
    gpus: Annotated[StrictInt, pydantic.Field(ge=1, le=255)] = 1
    """GPUs of a worker, tensor times pipeline parallel. Default: 1."""
    chunk: Annotated[StrictInt, pydantic.Field(ge=16, le=65_536)] = 256
    """Tokens of a chunk, as LMCache's `--chunk-size` says. Default: 256."""
    names: Literal["server", "engine"] = "server"
    """Who names chunks: LMCache's server, or LMCache in the engine's own process, in a Redis.
    Default: server."""
    hash: Hash = "builtin"
    """How LMCache in the engine hashes, its `pre_caching_hash_algorithm`: `builtin`, `sha256` or
    `sha256_cbor`. Default: builtin."""
    seed: Annotated[str, pydantic.Field(pattern=r"^[0-9]{1,10}$")] | None = None
    """PYTHONHASHSEED of the engines, in quotes; `builtin` needs it. Default: none, not set."""
    dtype: Annotated[str, pydantic.Field(pattern=r"^[a-z0-9_]{1,32}$")] = "bfloat16"
    """The KV cache's type, as LMCache in the engine calls it. Default: bfloat16."""
    deadline: Wait = 0.02
    """How long a decision waits for it; after that it ignores L2. Default: 20ms."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.redis is None) == (self.coordinator is None):
            raise ValueError("needs either redis or coordinator")
        if self.names == "engine" and self.redis is None:
            raise ValueError("names: engine needs redis, not a coordinator")
        if self.names == "engine" and self.hash == "builtin" and self.seed is None:
            raise ValueError(
                "needs seed: what the hash builtin makes hangs on the engines' PYTHONHASHSEED"
            )
        return self

    @field_validator("seed")
    @classmethod
    def _startable(cls, seed: str | None) -> str | None:
        if seed is not None and int(seed) > MAX_PYTHONHASHSEED:
            raise ValueError(f"{seed} is beyond {MAX_PYTHONHASHSEED}, with which no Python starts")
        return seed


class SharedSettings(Model):
    """L2: blocks on a disk, or in a store that all workers share."""

    enabled: StrictBool = True
    """Whether blocks there count, with the strategy kvaware. Default: true."""
    bandwidth: Size = pydantic.Field(default=6 << 30, gt=0)
    """Bytes per second that a worker loads from it, until that is measured. Default: 6GiB."""
    promotes: Literal["gpu", "l1"] = "gpu"
    """Where a worker keeps what it loaded, beyond what events tell: its GPU, as LMCache's server
    does, or `l1` too (`--l2-prefetch-policy retain`; LMCache in the engine). Default: gpu."""
    lmcache: LmcacheSettings | None = None
    """Where LMCache keeps blocks that no event announces. Default: none, events alone tell."""


class TiersSettings(Model):
    """Tiers behind the engines' GPUs, for the strategy kvaware."""

    bytes_per_token: Size = pydantic.Field(default=128 << 10, gt=0)
    """Bytes of one token in the KV cache, all layers and GPUs together. Default: 128KiB."""
    l1: HostSettings = HostSettings()
    """L1: blocks in the memory of the worker's host."""
    l2: SharedSettings = SharedSettings()
    """L2: blocks on a disk, or in a store that all workers share."""

    @property
    def l1_told(self) -> bool:
        """Whether the settings imply that workers have an L1; with LMCache they always have one."""
        lmcache = self.l2.enabled and self.l2.lmcache is not None
        return self.l1.enabled and (lmcache or "l1" in self.model_fields_set)

    def loads(self) -> Loads:
        """Return the tiers' initial load speeds, before anything is learned."""
        size = self.bytes_per_token
        l1 = self.l1.bandwidth / size if self.l1.enabled else None
        l2 = self.l2.bandwidth / size if self.l2.enabled else None
        return Loads(l1, l2, promotes=self.l2.promotes == "l1")
