"""A worker as the router sees it: its address, state, models, load and pace.

What a worker's list of models tells beside their names. Pure.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from math import inf
from time import monotonic
from typing import Any, Final

from router.fleet.breaker import Backoff, Breaker
from router.fleet.outliers import Doubt
from router.upstream.pool import Upstream
from router.upstream.usage import Usage
from strategies.cost.load import Load
from strategies.cost.prefill import Pace

Models = Mapping[str, Mapping[str, Any]]


def bases(models: Models) -> tuple[str, ...]:
    """Return the names of the model that answers a request which names none, the main one first.

    In vLLM that is the base model, whatever adapters are loaded; its further names
    (`--served-model-name a b`) have the same `root`, and adapters a `parent`
    (vllm/entrypoints/openai/models/serving.py). Empty if the list has several models.
    """
    names = [name for name, entry in models.items() if not entry.get("parent")] or list(models)
    if len(names) > 1:
        roots = [models[name].get("root") for name in names]
        if not isinstance(roots[0], str) or any(root != roots[0] for root in roots):
            return ()
    return tuple(names)


def common(workers: Iterable[tuple[str, ...]]) -> Sequence[str] | None:
    """Return the names that the `bases` of all workers have in common; None without any worker.

    Only a name that all have tells that they have the same model: a `root` is a path on a disk.
    """
    names: Sequence[str] | None = None
    for own_names in workers:
        names = own_names if names is None else [name for name in names if name in own_names]
        if not names:
            break
    return names


def longest(models: Models, entry: Mapping[str, Any]) -> int | None:
    """Return the most tokens, prompt and answer, that one of the models takes; None: not told.

    An adapter takes as many as the model that it is for: engines tell only the limit of that one.
    """
    limit = entry.get("max_model_len")
    if limit is None and isinstance(parent := entry.get("parent"), str):
        limit = models.get(parent, {}).get("max_model_len")
    return limit if isinstance(limit, int) and limit > 0 else None


log = logging.getLogger("warmroute.fleet")

#: Seconds between two times that a 404 makes the router ask a worker for its models again.
DOUBT_S = 5.0
#: Preempted requests in a row that found less than half of what they had got done again; after so
#: many, none is preempted there for `LOSSES_S`.
LOSSES: Final = 3
#: Seconds until one is preempted there again: what was computed may have been evicted by requests
#: that have left by then. A worker that never keeps anything costs no more than a few prompts
#: computed twice in that time.
LOSSES_S: Final = 600.0


class ProbeState(Enum):
    """What a worker's probes say."""

    UNKNOWN = "unknown"
    """Not probed yet."""
    READY = "ready"
    BUSY = "busy"
    """Its probes get no answer in time, but it accepts connections and was heard a moment ago."""
    ASLEEP = "asleep"
    DOWN = "down"


class Availability(Enum):
    """Whether a worker takes requests: by its probes, its answers and what is booked there."""

    READY = "ready"
    DRAINING = "draining"
    """The settings say that it gets nothing new."""
    DOWN = "down"
    """Its probes fail."""
    EJECTED = "ejected"
    """It has failed what its peers answer."""
    BACKING_OFF = "backing_off"
    """It is asked last, or less and less: its latest answers were bad, and those of others not."""
    STUCK = "stuck"
    """It does not come to an end with what it was sent, so that was sent elsewhere."""
    FULL = "full"
    """It has as many requests as it may have, or says so."""
    ASLEEP = "asleep"
    """It was put to sleep, and answers nothing until it is woken."""


class Worker:
    """One vLLM engine behind one URL."""

    def __init__(  # noqa: PLR0915 - plain state, a line each
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
        """The entry of each model in `/v1/models`, by name. Always replaced as a whole."""
        self.lacks: frozenset[str] = frozenset()
        """What it has said that it does not serve: paths of endpoints, and kinds of media."""
        self.told = False
        """It has been asked what it serves since it came."""
        self._read: dict[str, dict[str, Any]] = {}
        self._bases: tuple[str, ...] = ()
        self._limits: frozenset[int | None] = frozenset()
        self.kv_tokens: int | None = None
        """Tokens that it can hold on all tiers, from the settings."""
        self.gpu_tokens: int | None = None
        """Tokens that its GPU can hold, as it reports."""
        self.stateful = self.draining = self.engine_fields = False
        self.fixed_models = False
        """The settings name its models, so the worker is not asked for them."""
        self.discovered_at = -inf
        """When it was last asked for its models, by the event loop's clock."""
        self.change(models=models, kv_tokens=kv_tokens, api_key=api_key)
        self.started: float | None = None
        """Start time that its process reports; while it is the same, so is the process."""
        self.load = Load()
        self.pace = Pace()
        self.breaker = Breaker(name)
        self.doubts: dict[str, Doubt] = {}
        """What speaks against it on a path, since its last good answer there."""
        self.rest: Backoff | None = None
        """Until when it is asked last, as it refused a request that others may take."""
        self.max_in_flight: int | None = None
        """Requests that it may have in flight, from the settings."""
        self.label = name.encode()
        self.state = ProbeState.UNKNOWN
        self.reason = "not yet probed"
        self.ready = self.reused = False
        """Whether it can be sent requests; whether it has reported cached tokens."""

        self.tells_cached: set[str] = set()
        """Paths of endpoints whose answers have reported cached tokens."""
        self.takes_ids = False
        """Whether chats may be sent with their token ids: it accepts them, and its ids are ours."""
        self.reuses: bool | None = None
        """Whether its prefix cache is on, as it reports; None: it does not report that."""
        self.losses = 0
        """Preempted requests in a row of which it has not kept what it had computed."""
        self.lost_at = -inf
        """When the last of them was found."""
        self.answered_at = self.probed_at = self._doubted_at = -inf
        """When an answer began there last, of which its first byte tells; when a probe succeeded
        last; and when a 404 made it doubtful which models it has."""
        self.sleeps: bool | None = None
        """Whether it is asleep, as it reports; None: it does not report that."""
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
        engine_fields: bool = False,
    ) -> None:
        """Apply other settings to requests from now on.

        Models that the settings no longer name are asked for at the next probe. `api_key` is sent
        to the worker. If it is empty, no key is sent, not even the client's; if it is None, the
        client's key is passed on.
        """
        self.stateful, self.draining, self.engine_fields = stateful, draining, engine_fields
        self.api_key = None if api_key is None else api_key.encode()
        if self.fixed_models and not models:
            self.discovered_at = -inf
        if models:  # otherwise it keeps those it had until it is asked
            self.models = {name: _described(name) for name in models}
        self.kv_tokens = kv_tokens
        self.fixed_models = bool(models)

    def reach(self, upstream: Upstream) -> None:
        """Use other connections; requests in flight finish on the old ones."""
        self.upstream.close()
        self.upstream = upstream

    def leave(self) -> None:
        """Take it out of use: it is no longer in the settings. Requests in flight finish."""
        self.become(ProbeState.DOWN, "not in the settings any more")
        self.upstream.close()

    def become(self, state: ProbeState, reason: str) -> None:
        """Set the state, and the reason for it."""
        self.state, self.reason = state, reason
        self.ready = state is ProbeState.READY

    @property
    def there(self) -> bool:
        """Whether it can be sent what only it can answer: it is ready, or busy."""
        return self.ready or self.state is ProbeState.BUSY

    @property
    def takes_new(self) -> bool:
        """Whether it may be sent what others could answer too: it is ready, and not draining."""
        return self.ready and not self.draining

    @property
    def room_tokens(self) -> int | None:
        """Tokens of KV cache for running requests: those of its GPU, as far as known."""
        if self.gpu_tokens is None or self.kv_tokens is None:
            return self.gpu_tokens or self.kv_tokens
        return min(self.gpu_tokens, self.kv_tokens)

    def with_cached(self, usage: Usage, path: str) -> Usage:
        """Add a missing 0: older vLLMs report cached tokens only if there are any.

        Done once it has reported them on the same path. Source: vLLM 0.9,
        `entrypoints/openai/serving_chat.py`.
        """
        if usage.cached is not None:
            self.tells_cached.add(path)
            self.reused |= usage.cached > 0
        elif usage.prompt is not None and path in self.tells_cached:
            return usage._replace(cached=0)
        return usage

    @property
    def keeps(self) -> bool:
        """Whether what it has computed of a request that it drops stays in its prefix cache."""
        if not (self.reuses or self.reused):
            return False
        return self.losses < LOSSES or monotonic() - self.lost_at >= LOSSES_S

    def wait(self) -> float:
        """Return the seconds of prefill booked on it and not yet done."""
        return self.load.wait(monotonic())

    def availability(self, now: float) -> tuple[Availability, str]:
        """Return whether it takes requests, and why or why not."""
        if not self.ready:
            asleep = self.state is ProbeState.ASLEEP
            return Availability.ASLEEP if asleep else Availability.DOWN, self.reason
        if failures := self.breaker.reason(now):
            return Availability.EJECTED, failures
        if self.draining:
            return Availability.DRAINING, "the settings say `drain`"
        return self._hindrance(now) or (Availability.READY, self.reason)

    def _hindrance(self, now: float) -> tuple[Availability, str] | None:
        """Return why it is asked last, or is to get no more for now, if that is so."""
        here = self.load.here
        if self.load.late_until > now:
            return Availability.STUCK, "what it was sent waits longer than predicted"
        if self.max_in_flight is not None and here >= self.max_in_flight:
            reason = f"it has {here} requests in flight; `limits.in_flight` is {self.max_in_flight}"
            return Availability.FULL, reason
        if self.rest is not None and now < self.rest.until:
            full = self.rest.full
            return Availability.FULL if full else Availability.BACKING_OFF, self.rest.why
        for path, doubt in self.doubts.items():
            if doubt.contrasts:
                return Availability.BACKING_OFF, f"{path}: {doubt.why}, and others do not"
        return None

    def heard_at(self, now: float) -> float:
        """Return when a probe succeeded last, or more of an answer came; both clocks are one."""
        return max(self.probed_at, self.answered_at, self.upstream.heard_at(now))

    def longest(self, model: str) -> int | None:
        """Return the most tokens, prompt and answer, that `model` takes; None if it is not told."""
        entry = self.models.get(model)
        limit = None if entry is None else entry.get("max_model_len")
        if type(limit) is int and limit > 0:  # as for all but adapters
            return limit
        return None if entry is None else longest(self.models, entry)

    @property
    def bases(self) -> tuple[str, ...]:
        """The names of the model that answers requests which name none; empty if it is not one."""
        self._read_models()
        return self._bases

    @property
    def limits(self) -> frozenset[int | None]:
        """What `longest` returns for its models."""
        self._read_models()
        return self._limits

    def _read_models(self) -> None:
        """Read the list of models, once for each that it has told: there may be thousands."""
        if self._read is not self.models:
            self._read, self._bases = self.models, bases(self.models)
            self._limits = frozenset(longest(self.models, entry) for entry in self.models.values())

    def lost(self, reason: str) -> None:
        """Take it down because it could not be reached, and have it probed at once."""
        self.become(ProbeState.DOWN, reason)
        self.upstream.doubt()
        self.attention.set()

    def doubt(self, model: str, now: float) -> None:
        """Ask for its models again after a 404 for one that it should have; once per DOUBT_S."""
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
