"""Settings of the server: limits and timeouts of clients and workers; keys, CORS and TLS."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self, cast

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictInt,
    field_validator,
    model_serializer,
    model_validator,
)

from router.runtime.quote import shown
from router.settings.errors import refusal, refuse
from router.settings.files import ReadableFile, WritableFolder, check_chain, check_roots
from router.settings.types import (
    Address,
    Capacity,
    Count,
    Duration,
    DurationOrOff,
    Matching,
    Model,
    Name,
    Secret,
    Share,
    Some,
    Wait,
    Whole,
)

#: vLLM closes idle connections after this.
MAX_KEEPALIVE_S = 5.0


class ClientSettings(Model):
    """How long clients may take, and how many may connect."""

    header: Wait = 10.0
    """For the whole head of a request, from its first byte. Default: 10s."""
    body: Wait = 30.0
    """Between two pieces of a request's body; all of it may take twice as long, and a second more
    for every 500 bytes of it. Default: 30s."""
    write: Wait = 60.0
    """How long a client may read nothing of an answer that is ready. Default: 60s."""
    keepalive: Wait = 75.0
    """How long a connection may stay idle between two requests. Default: 75s."""
    connections: Count = 10_000
    """Connections open at once. Default: 10000."""


class OverflowSettings(Model):
    """The answer to a request that finds every worker busy and the queue full."""

    status: StrictInt = Field(default=429, ge=400, le=599)
    """Its status, 400 to 599. Default: 429."""
    message: str | None = Field(default=None, min_length=1, max_length=1000)
    """The sentence in it, up to 1000 characters. Default: one that fits `body`."""
    body: Literal["openai", "hyperpod"] = "openai"
    """Shape of its body: OpenAI's error object, or that of HyperPod's `requestLimits`.
    Default: openai."""


class LimitSettings(Model):
    """Bounds on one request, and on how many are served at once."""

    body: Capacity = 16 << 20
    """Longest request body. Default: 16MiB."""
    audio: Capacity = 26 << 20
    """The same on the paths that take an audio file, if it is more than `body`: engines take files
    of 25 MiB (vLLM's `VLLM_MAX_AUDIO_CLIP_FILESIZE_MB`). Default: 26MiB."""
    headers: Capacity = 32 << 10
    """All header fields of one request together. Default: 32KiB."""
    header_count: Count = 100
    """How many header fields one request may have. Default: 100."""
    url: Capacity = 8 << 10
    """Longest path and query of a request. Default: 8KiB."""
    messages: Count = 4096
    """Messages in one request. Default: 4096."""
    prompts: StrictInt = Field(default=32_768, ge=1, le=65_536)
    """Prompts, inputs or documents in one request, 1 to 65536. Default: 32768."""
    images: Whole = 256
    """Images in one request; 0: none. Default: 256."""
    n: Count = 128
    """Answers that one request may ask for (`n`). Default: 128."""
    best_of: Count = 128
    """Answers that one request may have computed to choose from (`best_of`). Default: 128."""
    max_tokens: Count | None = None
    """Tokens that one request may ask for as its answer. Default: no limit."""
    in_flight: Count = 1024
    """Requests at once on one worker; more wait or go elsewhere. Default: 1024."""
    queue: Whole = 1000
    """Requests that wait in the router; 0: none waits. Default: 1000."""
    overflow: OverflowSettings = OverflowSettings()
    """The answer to a request that finds every worker busy and the queue full."""
    attempts: StrictInt = Field(default=3, ge=1, le=10)
    """Full workers asked before a request waits for its turn again, or is refused, 1 to 10; refused
    connections do not count. Default: 3."""
    preemptions: Whole = 10
    """How often one request may be taken back from its worker, before its answer begins, because a
    much shorter one goes first or the worker is stuck; 0: never. Default: 10."""
    retries: Share = 0.2
    """Share of the requests in flight that may be retries, 0 to 1; 0: none. Default: 0.2."""

    def longest(self, *, form: bool) -> int:
        """Return the longest body of a prompt or, with `form`, of a form with an audio file."""
        return max(self.body, self.audio) if form else self.body


class TimeoutSettings(Model):
    """How long the router waits for a worker, and a request for its turn."""

    connect: Wait = 2.0
    """To establish a connection. Default: 2s."""
    first_byte: Wait = 600.0
    """From the request to the first byte of the answer. Default: 10m."""
    idle: Wait = 120.0
    """Between two pieces of an answer. Default: 2m."""
    total: DurationOrOff = 3600.0
    """For a whole answer, however it flows; or `off`. Default: 1h."""
    queue: Wait = 30.0
    """How long a request waits in the router for a worker that accepts it. Default: 30s."""
    keepalive: Wait = 3.0
    """How long an idle connection to a worker is kept; below 5s. Default: 3s."""
    comment: DurationOrOff = None
    """Silence after which a stream without a first byte gets an SSE comment, so that nothing
    on the way closes it; or `off`. Default: off."""

    @field_validator("keepalive")
    @classmethod
    def _before_the_worker(cls, value: float) -> float:
        if value >= MAX_KEEPALIVE_S:
            raise ValueError(
                "must be shorter than 5s: vLLM closes idle connections after 5s,"
                " and a request sent at that moment is lost"
            )
        return value


class ShutdownSettings(Model):
    """How the router ends when it is told to."""

    delay: Duration = 5.0
    """How long new requests are still accepted after `/health/ready` has turned to 503. Default:
    5s."""
    drain: Duration = 600.0
    """How long requests in flight may then take to end. Default: 10m."""
    state: WritableFolder | None = None
    """Folder in which `prefixaware` saves what it knows of caches, for a start within the next
    hour. Default: none, the next one starts cold."""


MIN_KEY_CHARS = 16


def _strong(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if len(text) < MIN_KEY_CHARS:
        raise ValueError(
            f"must be at least {MIN_KEY_CHARS} characters long; `openssl rand -hex 32` makes one"
        )
    if " " in text:
        raise ValueError("holds a space, which no client can send in a key")
    return key


Origin = Annotated[
    str,
    Matching(
        r"^(\*|[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?)$",
        "is not an origin: write it as browsers do, such as https://app.example or"
        ' http://localhost:3000, without a path; or "*" for all',
    ),
]


class KeySettings(Model):
    """One key that lets clients in; a bare secret stands for a key with a default name."""

    name: Name = Field(default_factory=str)
    """Label in logs, unique in its list. Default: key-1, key-2… by its place."""
    key: Annotated[Secret, AfterValidator(_strong)]
    """`${NAME}` or `file:/path`; at least 16 characters, without spaces. Required."""
    engine_fields: StrictBool = False
    """Its clients may tell engines what routers and engines tell each other, such as
    `kv_transfer_params`; only in `auth.keys`. Default: false."""

    @model_validator(mode="before")
    @classmethod
    def _from_secret(cls, value: object) -> object:
        if value is None:
            raise ValueError("must be a secret, or a mapping of its name and key")
        return value if isinstance(value, Mapping | cls) else {"key": value}


def _told_apart(keys: tuple[KeySettings, ...]) -> tuple[KeySettings, ...]:
    """Give keys without a name one by their place; refuse duplicate names and keys."""
    keys = tuple(
        key if key.name else _with_name(key, f"key-{place}") for place, key in enumerate(keys, 1)
    )
    refusals = []
    for place, key in enumerate(keys):
        for first, other in enumerate(keys[:place]):
            if key.name == other.name:
                message = f"{shown(key.name)} is already the name of [{first}]"
                refusals.append(refusal((place, "name"), message))
            if key.key == other.key:
                refusals.append(refusal((place, "key"), f"the same key as [{first}]"))
    if refusals:
        raise refuse("keys", refusals)
    return keys


def _with_name(key: KeySettings, name: str) -> KeySettings:
    """Set a default name, which still counts as not set."""
    copy = key.model_copy(update={"name": name})
    copy.model_fields_set.discard("name")
    return copy


class AuthSettings(Model):
    """Who may use the inference paths: `none` lets everyone in, `keys` only those who have one."""

    keys: Some[KeySettings]
    """Keys that let clients in: each a secret, or a mapping of `name` and `key`. Required."""
    separate_caches: StrictBool = False
    """Each key has a KV cache of its own: prompts of other keys are never found in it. Prefixes
    that all have in common are then computed once for each key. Default: false."""

    @model_validator(mode="wrap")
    @classmethod
    def _from_word(cls, value: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if value == "none":
            return cast("Self", cls.model_construct(set(), keys=()))
        if not isinstance(value, Mapping | cls):
            raise ValueError('must be none, or a mapping with "keys"')  # it may hold a secret
        return handler(value)

    @field_validator("keys")
    @classmethod
    def _unique(cls, keys: tuple[KeySettings, ...]) -> tuple[KeySettings, ...]:
        return _told_apart(keys)

    @model_serializer(mode="wrap", when_used="json")
    def _written(self, handler: SerializerFunctionWrapHandler) -> object:
        return handler(self) if self.keys else "none"


class AdminSettings(Model):
    """Where `/workers`, `/metrics` and the other paths for operators are served, and to whom."""

    listen: Address | None = None
    """Host and port of their own. Default: beside the inference paths, on the top `listen`."""
    keys: Some[KeySettings] = ()
    """Keys that may read them, as in `auth.keys`. Default: those of `auth`."""

    @field_validator("keys")
    @classmethod
    def _unique(cls, keys: tuple[KeySettings, ...]) -> tuple[KeySettings, ...]:
        idle = "opens no inference path: only keys of `auth` can have it"
        if places := [place for place, key in enumerate(keys) if key.engine_fields]:
            raise refuse("keys", [refusal((place, "engine_fields"), idle) for place in places])
        return _told_apart(keys)


Roots = Annotated[ReadableFile, AfterValidator(check_roots)]


class TlsSettings(Model):
    """What the router shows to clients, and asks of them, where it speaks TLS."""

    certificate: ReadableFile
    """File of the certificate and those that lead to its root, PEM. Required."""
    key: ReadableFile
    """File of the certificate's key, PEM, without a password. Required."""
    client_ca: Roots | None = None
    """File of the roots that clients' certificates must come from, PEM. Default: none, and
    clients need no certificate."""

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        check_chain(self.certificate, self.key)
        return self


class WorkerTlsSettings(Model):
    """What the router expects of a worker at `https://`, and shows to it."""

    ca: Roots | None = None
    """File of the roots that the worker's certificate must come from, PEM. Default: those of the
    system."""
    certificate: ReadableFile | None = None
    """File of the certificate that the router shows to the worker, PEM. Default: none."""
    key: ReadableFile | None = None
    """File of that certificate's key, PEM, without a password. Default: none."""

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.certificate and self.key:  # `contradictions` reports one without the other
            check_chain(self.certificate, self.key)
        return self
