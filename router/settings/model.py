"""The settings: every field with its default and unit. The JSON schema uses these docstrings."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    StrictBool,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from router.settings.checks import LISTEN, contradictions, exposures
from router.settings.errors import refuse
from router.settings.fleet import (
    ControllerSettings,
    HealthSettings,
    StrategySettings,
    TiersSettings,
)
from router.settings.server import (
    AdminSettings,
    AuthSettings,
    ClientSettings,
    KeySettings,
    LimitSettings,
    Origin,
    ShutdownSettings,
    TimeoutSettings,
    TlsSettings,
    WorkerTlsSettings,
)
from router.settings.sessions import SageMakerSettings, SessionSettings
from router.settings.tokenizer import TokenizerSettings
from router.settings.types import (
    Address,
    Count,
    Endpoint,
    Model,
    ModelName,
    ModelPattern,
    Name,
    Secret,
    Some,
    WorkerUrl,
    url_address,
)


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
    """Tokens that its prefix cache holds, host memory included. Default: what the worker reports of
    its GPU, or more if cached tokens show that it holds more."""
    kv_events: Endpoint | None = None
    """Where it publishes KV events, for the strategy kvaware: `tcp://host:port`; with `*` for the
    host the worker dials in. Default: what the worker reports, if it does."""
    kv_replay: Endpoint | None = None
    """Where missed KV events can be asked for. Default: what the worker reports, unless `kv_events`
    is set."""
    stateful: StrictBool = False
    """It keeps sessions itself, as SageMaker's containers can; with the strategy session. Default:
    false."""
    drain: StrictBool = False
    """It gets no new work; its sessions stay until they end. It still counts as ready. Default:
    false."""
    engine_fields: StrictBool = False
    """Every client may tell it what routers and engines tell each other, such as
    `kv_transfer_params`; only if all workers of its pool say so. Default: false."""
    tls: WorkerTlsSettings | None = None
    """How its certificate is checked, and what it is shown; only with `https://`. Default: by the
    system's roots, and nothing."""

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
    """Models routed here: exact names, or beginnings followed by `*`. Default: `["*"]`."""
    strategy: StrategySettings = StrategySettings("prefixaware")
    """How a worker is chosen. Default: the strategy at the top of the file."""
    tokenizer: TokenizerSettings | None = None
    """How prompts become tokens, as at the top. Default: the tokenizer at the top of the file."""
    workers: Some[WorkerSettings]
    """The vLLM servers, at least one. Required."""


class LogSettings(Model):
    """What is written to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe line that is written. Default: info."""
    format: Literal["plain", "json"] = "plain"
    """Lines for people or for machines. Default: plain."""
    requests: StrictBool = False
    """One line for each attempt at a request, and for each refusal. Default: false."""


class MetricSettings(Model):
    """What `/metrics` tells."""

    aliases: Literal["none", "hyperpod"] = "none"
    """More names for some series: those of HyperPod's invocation metrics. Default: none."""


class Settings(Model):
    """One YAML file. Needs `workers` or `pools`; all else has a default."""

    listen: Address = LISTEN
    """Host and port clients connect to; IPv6 as `"[::1]:8080"`. Default: 127.0.0.1:8080."""
    strategy: StrategySettings = StrategySettings("prefixaware")
    """How a worker is chosen: a name, or a mapping of `name` and options. Default: prefixaware."""
    tokenizer: TokenizerSettings = TokenizerSettings()
    """How prompts become the tokens that the engine will see: a source, or a mapping."""
    workers: Some[WorkerSettings] = ()
    """The vLLM servers, as URLs or mappings; instead of `pools`. Default: none."""
    pools: Some[PoolSettings] = ()
    """Groups of workers, by model; instead of `workers`. Default: none."""
    session: SessionSettings = SessionSettings()
    """Sessions, in pools whose strategy is `session`."""
    sagemaker: SageMakerSettings = SageMakerSettings()
    """The paths of SageMaker's runtime API, for boto3 and compatible clients."""
    controller: ControllerSettings | None = None
    """Controller that the strategy kvaware asks what workers hold: a URL or a mapping. Default: in
    the router itself."""
    tiers: TiersSettings = TiersSettings()
    """Tiers behind the engines' GPUs, for the strategy kvaware."""
    auth: AuthSettings | None = None
    """Who may use the inference paths: `none` or a mapping with `keys`. Must be given if `listen`
    can be reached from other machines. Default: everyone who reaches `listen`."""
    tls: TlsSettings | None = None
    """What the router shows to clients, and asks of them. Default: plain HTTP."""
    cors: Some[Origin] = ()
    """Origins whose web pages may call the router, such as `https://app.example`; `"*"`: all.
    Default: none."""
    admin: AdminSettings = AdminSettings()
    """Where `/workers`, `/metrics` and the other paths for operators are served, and to whom."""
    clients: ClientSettings = ClientSettings()
    """How long clients may take, and how many may connect."""
    timeouts: TimeoutSettings = TimeoutSettings()
    """How long the router waits for a worker, and a request for its turn."""
    limits: LimitSettings = LimitSettings()
    """Bounds on one request, and on how many are served at once."""
    health: HealthSettings = HealthSettings()
    """How the router asks each worker whether it is ready, and learns from its answers."""
    shutdown: ShutdownSettings = ShutdownSettings()
    """How the router ends when it is told to."""
    metrics: MetricSettings = MetricSettings()
    """What `/metrics` tells."""
    logs: LogSettings = LogSettings()
    """What is written to standard error."""

    def all_pools(self) -> tuple[PoolSettings, ...]:
        """Every pool; top-level workers are the pool `default`, which serves all models."""
        if self.pools:
            return self.pools
        return (
            PoolSettings(
                name="default",
                strategy=self.strategy,
                tokenizer=self.tokenizer,
                workers=self.workers,
            ),
        )

    @property
    def client_keys(self) -> tuple[KeySettings, ...]:
        """The keys for the inference paths; none if everyone may use them."""
        return self.auth.keys if self.auth else ()

    @property
    def steering(self) -> frozenset[str]:
        """Names of the keys whose clients may tell engines what engines tell each other."""
        return frozenset(key.name for key in self.client_keys if key.engine_fields)

    @property
    def admin_keys(self) -> tuple[KeySettings, ...]:
        """The keys for the operators' paths; none if everyone may use them."""
        return self.admin.keys or self.client_keys

    def listening_on(self, listen: Address) -> Self:
        """Return a copy with another `listen`, with the same checks. Raises ValueError."""
        for _, message in exposures({"listen": listen, "auth": self.auth, "admin": self.admin}):
            raise ValueError(message)
        return self.model_copy(update={"listen": listen})

    @field_validator("pools")
    @classmethod
    def _inherit(
        cls, pools: tuple[PoolSettings, ...], info: ValidationInfo
    ) -> tuple[PoolSettings, ...]:
        """Give pools without a strategy or a tokenizer the one at the top of the file."""
        above = {name: info.data.get(name) for name in ("strategy", "tokenizer")}
        return tuple(_with_defaults(pool, above) for pool in pools)

    @model_validator(mode="wrap")
    @classmethod
    def _consistent(cls, value: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Report contradictions between fields together with the mistakes in single fields."""
        refusals = list(contradictions(value)) if isinstance(value, Mapping) else []
        try:
            settings = handler(value)
        except ValidationError as error:
            refusals = [*map(_again, error.errors(include_url=False)), *refusals]
        if refusals:
            raise refuse("settings", refusals)
        return settings


def _with_defaults(pool: PoolSettings, above: Mapping[str, object]) -> PoolSettings:
    """Replace defaults of fields that are not set; they still count as not set."""
    lacking = above.keys() - pool.model_fields_set
    copy = pool.model_copy(update={name: above[name] for name in lacking})
    copy.model_fields_set.difference_update(lacking)
    return copy


def _again(error: ErrorDetails) -> InitErrorDetails:
    """Turn a reported error back into one that can be raised together with others."""
    context = {**error.get("ctx", {}), "said": error["msg"]}
    kind = PydanticCustomError(error["type"], "{said}", context)
    return InitErrorDetails(type=kind, loc=error["loc"], input=error["input"])
