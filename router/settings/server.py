"""Settings of limits and timeouts for clients, requests and workers."""

from typing import Literal

from pydantic import Field, StrictInt, field_validator

from router.settings.files import WritableFolder
from router.settings.types import Capacity, Count, Model, Wait, Whole
from router.settings.units import Duration, DurationOrOff, Share, parse_duration

KEEPALIVE_LIMIT = parse_duration("5s")


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
        if value >= KEEPALIVE_LIMIT:
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
