"""A worker as the router knows it: where it is, how it is, what it serves and what it was given."""

import asyncio
import logging
from collections.abc import Sequence
from enum import Enum
from math import inf
from time import monotonic
from typing import Any

from router.breaker import Breaker
from router.upstream import Upstream
from strategies.load import Load
from strategies.pace import Pace

log = logging.getLogger("warmroute.fleet")

#: Seconds between two doubts of what a worker serves.
DOUBT_S = 5.0


class State(Enum):
    """What is known of a worker."""

    UNKNOWN = "unknown"
    """Not heard from since the start."""
    READY = "ready"
    DOWN = "down"


class Worker:
    """One vLLM engine behind one URL."""

    def __init__(
        self,
        name: str,
        url: str,
        upstream: Upstream,
        *,
        models: Sequence[str] = (),
        kv_tokens: int | None = None,
        api_key: str | None = None,
    ) -> None:
        self.name = name
        self.url = url
        self.host = url.partition("://")[2].encode()
        self.upstream = upstream
        self.models: dict[str, dict[str, Any]] = {}
        """What `/v1/models` says of each, by name."""
        self.kv_tokens: int | None = None
        """Tokens that it holds on all tiers, as the settings tell."""
        self.gpu_tokens: int | None = None
        """Tokens that its GPU holds, as it says."""
        self.stateful = self.draining = False
        self.fixed_models = False
        """The settings tell; the worker is not asked."""
        self.discovered_at = -inf
        """When it was asked last, on the loop's clock."""
        self.change(models=models, kv_tokens=kv_tokens, api_key=api_key)
        self.started: float | None = None
        """When its process was started, as it says; the same number, the same process."""
        self.load = Load()
        self.pace = Pace()
        self.breaker = Breaker(name)
        self.label = name.encode()
        self.state = State.UNKNOWN
        self.reason = "not yet probed"
        self.ready = False
        """It can be sent requests."""

        self.tells_cached: set[str] = set()
        """Paths of endpoints under which it has told how much of a prompt was cached."""
        self.takes_ids = False
        """It can be sent a chat's token ids along, and counts as we do."""
        self._doubted_at = -inf
        self.attention = asyncio.Event()
        """Set when it should be probed at once."""

    def change(
        self,
        *,
        models: Sequence[str] = (),
        kv_tokens: int | None = None,
        api_key: str | None = None,
        stateful: bool = False,
        draining: bool = False,
    ) -> None:
        """Other settings, for the requests to come.

        What is not told any more is asked for at the next probe. An empty `api_key` stands for
        none, and the client's is kept back too; with None the client's passes.
        """
        self.stateful, self.draining = stateful, draining
        self.api_key = None if api_key is None else api_key.encode()
        if self.fixed_models and not models:
            self.discovered_at = -inf
        if models:  # else those it had stay until it is asked
            self.models = {name: _described(name) for name in models}
        self.kv_tokens = kv_tokens
        self.fixed_models = bool(models)

    def reach(self, upstream: Upstream) -> None:
        """Ask it by other connections; what is under way ends on those it is on."""
        self.upstream.close()
        self.upstream = upstream

    def leave(self) -> None:
        """It is not in the settings any more: what is under way there ends, nothing begins."""
        self.become(State.DOWN, "not in the settings any more")
        self.upstream.close()

    def become(self, state: State, reason: str) -> None:
        """Another state, and why."""
        self.state, self.reason = state, reason
        self.ready = state is State.READY

    @property
    def room_tokens(self) -> int | None:
        """Tokens that the requests running there may take: those of its GPU."""
        if self.gpu_tokens is None or self.kv_tokens is None:
            return self.gpu_tokens or self.kv_tokens
        return min(self.gpu_tokens, self.kv_tokens)

    def wait(self) -> float:
        """Seconds of prefill booked on it and not yet done."""
        return self.load.wait(monotonic())

    def lost(self, reason: str) -> None:
        """It could not be reached: send it nothing until a probe succeeds, and probe now."""
        self.become(State.DOWN, reason)
        self.upstream.doubt()
        self.attention.set()

    def doubt(self, model: str, now: float) -> None:
        """It said that something is not there: its models are asked for anew, now and then."""
        if model not in self.models or now - self._doubted_at < DOUBT_S:
            return
        self._doubted_at = now
        if self.fixed_models:
            log.warning("worker %s: 404; the settings say that it has %r", self.name, model)
            return
        self.discovered_at = -inf
        self.attention.set()

    def __repr__(self) -> str:
        return f"<Worker {self.name} {self.state.name} {self.load!r} {self.pace!r}>"


def _described(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "warmroute"}
