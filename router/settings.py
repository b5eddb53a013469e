"""The settings: every field, its default and its unit. The JSON schema is made from these words."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    StrictBool,
    StrictInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from router.settings_checks import contradictions
from router.settings_errors import refuse
from router.settings_strategy import StrategySettings
from router.settings_types import (
    Capacity,
    Count,
    Model,
    ModelName,
    ModelPattern,
    Name,
    Some,
    Wait,
    WorkerUrl,
    url_address,
)
from router.units import Address, Secret, parse_duration

KEEPALIVE_LIMIT = parse_duration("5s")


class WorkerSettings(Model):
    """One vLLM server; a bare URL stands for a worker with defaults."""

    url: WorkerUrl
    """Where it listens: `http://host:port` or `https://host:port`, without a path. Required."""
    name: Name = Field(
        default_factory=lambda data: str(url_address(data.get("url"))), validate_default=True
    )
    """Label in metrics, logs and headers, unique in the whole file. Default: host:port."""
    models: Some[ModelName] = ()
    """Models it serves, by their whole names. Default: what the worker reports."""
    api_key: Secret | None = None
    """Key sent to it as a bearer token: `${NAME}` or `file:/path`. Default: none."""
    kv_tokens: Count | None = None
    """Tokens its KV cache holds. Default: what the worker reports."""

    @property
    def address(self) -> Address:
        """Host and port that the URL leads to."""
        return url_address(self.url)

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, value: object) -> object:
        if isinstance(value, str):
            return {"url": value}
        if not isinstance(value, Mapping | cls):
            raise ValueError('must be a URL such as http://10.0.0.11:8000, or a mapping with "url"')
        return value


class PoolSettings(Model):
    """Workers that serve the same models, and how one of them is chosen."""

    name: Name
    """Label in metrics and logs, unique. Required."""
    models: Some[ModelPattern] = ("*",)
    """Models routed here: exact names, or beginnings followed by `*`. Default: all (`*`)."""
    strategy: StrategySettings = StrategySettings("prefixaware")
    """How a worker is chosen. Default: the strategy at the top of the file."""
    workers: Some[WorkerSettings]
    """The vLLM servers, at least one. Required."""


class TimeoutSettings(Model):
    """How long the router waits for a worker."""

    connect: Wait = 2.0
    """Until a connection stands. Default: 2s."""
    first_byte: Wait = 600.0
    """From the request to the first byte of the answer. Default: 10m."""
    idle: Wait = 120.0
    """Between two pieces of an answer. Default: 2m."""
    keepalive: Wait = 3.0
    """How long an idle connection to a worker is kept; below 5s. Default: 3s."""

    @field_validator("keepalive")
    @classmethod
    def _before_the_worker(cls, value: float) -> float:
        if value >= KEEPALIVE_LIMIT:
            raise ValueError(
                "must be shorter than 5s: vLLM closes idle connections after 5s,"
                " and a request sent at that moment is lost"
            )
        return value


class LimitSettings(Model):
    """Bounds on one request."""

    body: Capacity = 16 << 20
    """Longest request body. Default: 16MiB."""
    attempts: StrictInt = Field(default=3, ge=1, le=10)
    """Full workers asked before giving up, 1 to 10; refusals do not count. Default: 3."""


class HealthSettings(Model):
    """How the router asks each worker whether it is ready."""

    interval: Wait = 2.0
    """Between two probes of one worker. Default: 2s."""
    timeout: Wait = 1.0
    """For the answer to one probe. Default: 1s."""
    fall: Count = 2
    """Failed probes in a row until a worker gets no requests. Default: 2."""
    rise: Count = 1
    """Good probes in a row until it gets requests again. Default: 1."""


class LogSettings(Model):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe line that is written. Default: info."""
    format: Literal["plain", "json"] = "plain"
    """Lines for people or for machines. Default: plain."""
    requests: StrictBool = False
    """One line a request. Default: false."""


class Settings(Model):
    """One YAML file. Needs `workers` or `pools`; all else has a default."""

    listen: Address = Address("127.0.0.1", 8080)
    """Host and port clients connect to; IPv6 as `"[::1]:8080"`. Default: 127.0.0.1:8080."""
    strategy: StrategySettings = StrategySettings("prefixaware")
    """How a worker is chosen: a name, or a mapping of `name` and options. Default: prefixaware."""
    tokenizer: Literal["bytes"] = "bytes"
    """What prompts are compared by: `bytes`, the text as sent. Default: bytes."""
    workers: Some[WorkerSettings] = ()
    """The vLLM servers, as URLs or mappings. Instead of `pools`."""
    pools: Some[PoolSettings] = ()
    """Groups of workers, by model. Instead of `workers`."""
    timeouts: TimeoutSettings = TimeoutSettings()
    """How long the router waits for a worker."""
    limits: LimitSettings = LimitSettings()
    """Bounds on one request."""
    health: HealthSettings = HealthSettings()
    """How the router asks each worker whether it is ready."""
    logs: LogSettings = LogSettings()
    """What is written to standard error."""

    def all_pools(self) -> tuple[PoolSettings, ...]:
        """Every pool; top-level workers are the pool `default`, which serves all models."""
        if self.pools:
            return self.pools
        return (PoolSettings(name="default", strategy=self.strategy, workers=self.workers),)

    @field_validator("pools")
    @classmethod
    def _inherit(
        cls, pools: tuple[PoolSettings, ...], info: ValidationInfo
    ) -> tuple[PoolSettings, ...]:
        """Give pools without a strategy the one at the top of the file."""
        inherited = info.data.get("strategy")
        return tuple(
            pool if "strategy" in pool.model_fields_set else _with_default(pool, inherited)
            for pool in pools
        )

    @model_validator(mode="wrap")
    @classmethod
    def _consistent(cls, value: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Report what contradicts itself together with what is wrong field by field."""
        refusals = list(contradictions(value)) if isinstance(value, Mapping) else []
        try:
            settings = handler(value)
        except ValidationError as error:
            refusals = [*map(_again, error.errors(include_url=False)), *refusals]
        if refusals:
            raise refuse("settings", refusals)
        return settings


def _with_default(pool: PoolSettings, strategy: StrategySettings | None) -> PoolSettings:
    """Change what a field defaults to; it still counts as not set."""
    copy = pool.model_copy(update={"strategy": strategy})
    copy.model_fields_set.discard("strategy")
    return copy


def _again(error: ErrorDetails) -> InitErrorDetails:
    """Make the same mistake once more, to be raised along with others."""
    context = {**error.get("ctx", {}), "said": error["msg"]}
    kind = PydanticCustomError(error["type"], "{said}", context)
    return InitErrorDetails(type=kind, loc=error["loc"], input=error["input"])
