"""What to replay, and how: plain data, checked when it is created."""

import ssl
from collections.abc import Sequence
from typing import Literal, Self

import msgspec

from simulator.traces import CHARS_PER_TOKEN, TraceRequest, ideal_hit_rate
from simulator.workloads import Conversation

Endpoint = Literal["chat", "completions"]


class ReplayError(Exception):
    """A replay that cannot begin; the message says what to change."""


class NoModel(ReplayError):
    """The server could not be asked which models it has."""


class ReplayPlan(msgspec.Struct, frozen=True):
    """Requests at their times, conversations at their own pace, or both."""

    name: str
    requests: Sequence[TraceRequest] = ()
    conversations: Sequence[Conversation] = ()

    @property
    def total(self) -> int:
        """How many requests are sent if nothing fails."""
        return len(self.requests) + sum(len(talk.turns) for talk in self.conversations)

    @property
    def ideal_hit_rate(self) -> float | None:
        """Hit rate of one infinite cache; None for conversations, whose prompts hold answers."""
        return ideal_hit_rate(self.requests) if self.requests and not self.conversations else None

    def limited(self, limit: int | None) -> Self:
        """Return the first `limit` requests by start time; a conversation's turns stay together."""
        if limit is None:
            return self
        starts: list[tuple[float, TraceRequest | Conversation]] = [
            *((request.at_s, request) for request in self.requests),
            *((talk.start_s, talk) for talk in self.conversations),
        ]
        requests: list[TraceRequest] = []
        conversations: list[Conversation] = []
        for _, entry in sorted(starts, key=lambda start: start[0]):
            if limit <= 0:
                break
            if isinstance(entry, TraceRequest):
                requests.append(entry)
                limit -= 1
            else:
                talk = msgspec.structs.replace(entry, turns=entry.turns[:limit])
                conversations.append(talk)
                limit -= len(talk.turns)
        return type(self)(self.name, requests, conversations)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Where to send a plan, and how fast. Times are of the wall clock."""

    url: str = "http://127.0.0.1:8080"
    rate: float = 1.0  # multiplies how often requests (and conversations) begin
    speed: float = 1.0  # how many times faster than real time the (simulated) fleet runs
    limit: int | None = None  # send only this many requests
    endpoint: Endpoint = "chat"
    model: str | None = None  # default: the first in /v1/models
    max_tokens: int | None = None  # instead of the plan's answer lengths
    concurrency: int = 1000  # most requests in flight; others wait, and the report says so
    timeout_s: float = 600.0  # for one request, from first byte to last
    chars_per_token: int = CHARS_PER_TOKEN
    stream_interval: int | None = None  # tokens per event, for workers that know this field
    ignore_eos: bool = True  # makes answers as long as planned; not every server accepts it
    api_key: str | None = None
    trust: ssl.SSLContext | None = None  # for https; default: the system's roots

    def __post_init__(self) -> None:
        positive = ("rate", "speed", "max_tokens", "concurrency", "timeout_s", "chars_per_token")
        for name in positive:
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ReplayError(f"{name} must be a number above zero, not {value}")
        if self.limit is not None and self.limit < 1:
            raise ReplayError(f"limit must be at least 1, not {self.limit}")
        if not self.url.startswith(("http://", "https://")):
            raise ReplayError(f"url must begin with http:// or https://, not {self.url!r}")
