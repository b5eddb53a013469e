"""Continuous batching with chunked prefill, after vLLM V1's scheduler (`v1/core/sched`).

No sockets, no clock, no asyncio: `step` says what one forward pass did and how long it takes;
whoever drives the engine lets that time pass.

One step, with a budget of `max_num_batched_tokens`:

1. Running requests in order of arrival: each computes the tokens it lacks, one when decoding,
   a chunk when still prefilling. One that needs a block where none is free preempts the latest
   arrival: that one loses its blocks and is computed again later.
2. Unless somebody was preempted, waiting requests first come, first served, while the budget,
   `max_num_seqs` and the cache allow. The head of the queue is never overtaken.

A request takes the blocks of its whole prompt when admitted, not chunk by chunk (vLLM since 0.19
likewise admits only what fits as a whole). Its prefix is looked up at that moment.
"""

from collections import deque
from dataclasses import dataclass, field

from simulator.cache import BlockCache
from simulator.changes import Change
from simulator.hashing import Chain, root_of
from simulator.offloading import Offloading
from simulator.profiles import Profile
from simulator.request import Request
from simulator.tiers import Loaded


class QueueFullError(Exception):
    """As many requests wait as may (vLLM `--max-num-queued-reqs`)."""


class TooLongError(ValueError):
    """Prompt and answer together exceed what this engine can hold."""


@dataclass(slots=True)
class Step:
    """One forward pass."""

    duration_s: float = 0.0
    #: Requests that got one more token each when the step ended.
    emitted: list[Request] = field(default_factory=list)
    #: Those of `emitted` whose answer is complete.
    finished: list[Request] = field(default_factory=list)
    #: What the step did to the KV cache.
    changes: list[Change] = field(default_factory=list)


@dataclass(slots=True)
class Totals:
    """Counts since the engine started; all but `preemptions` and `rejected` in tokens."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    #: Of `prefix_hits`, what came from the host's memory and from the store.
    l1_hits: int = 0
    l2_hits: int = 0
    preemptions: int = 0
    rejected: int = 0


class Engine:
    """One simulated worker's scheduler and cache."""

    def __init__(
        self,
        profile: Profile,
        *,
        block_size: int = 16,
        kv_tokens: int | None = None,
        max_queued: int | None = None,
        tiers: Offloading | None = None,
        hash_seed: str = "",
    ) -> None:
        self._root = root_of(hash_seed)
        self.tiers = tiers
        self.profile = profile
        self.cache = BlockCache((kv_tokens or profile.kv_tokens) // block_size, block_size)
        self.max_queued = max_queued
        self.totals = Totals()
        self._running: dict[str, Request] = {}  # in order of arrival
        self._waiting: deque[Request] = deque()

    def __repr__(self) -> str:
        return f"<Engine running={self.running} waiting={self.waiting} kv={self.kv_usage:.2f}>"

    @property
    def running(self) -> int:
        """Requests that hold blocks and take part in steps."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that wait for their first step, or for another after preemption."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the cache's blocks in use, 0 to 1."""
        return self.cache.used / self.cache.num_blocks

    @property
    def max_tokens(self) -> int:
        """The most tokens, prompt and answer together, that one request may have."""
        return min(self.profile.max_model_len, self.cache.num_blocks * self.cache.block_size)

    def add(self, request: Request, now: float) -> None:
        """Queue a request, or raise TooLongError or QueueFullError."""
        if request.total_tokens > self.max_tokens:
            raise TooLongError(f"{request.total_tokens} tokens, where {self.max_tokens} fit")
        if self.max_queued is not None and self.waiting >= self.max_queued:
            self.totals.rejected += 1
            raise QueueFullError(f"{self.waiting} requests wait already")
        request.arrived = now
        size = self.cache.block_size
        request.chain = Chain(size, request.lora_name, request.salt, self._root)
        request.chain.extend(request.tokens)
        self._waiting.append(request)

    def abort(self, request_id: str) -> bool:
        """Stop a request and free its blocks; False when it is not here (any more)."""
        request = self._running.pop(request_id, None)
        if request is not None:
            self._free(request)
            return True
        for waiting in self._waiting:
            if waiting.request_id == request_id:
                self._waiting.remove(waiting)
                return True
        return False

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False while requests run. The next step carries the event."""
        return self.cache.reset()

    def clear(self) -> None:
        """Start over as a new process would: no requests, nothing cached, counts at zero."""
        self._running.clear()
        self._waiting.clear()
        self.cache = BlockCache(self.cache.num_blocks, self.cache.block_size)
        if self.tiers is not None:
            self.tiers.tiers.clear()
        self.totals = Totals()

    def step(self) -> Step:
        """Compute one forward pass; what it emits counts from its end, `duration_s` later."""
        step = Step()
        if not self.busy:
            step.changes = self.cache.drain()
            return step
        batch = _Batch(self.profile)
        if not self._schedule_running(batch, step):
            self._schedule_waiting(batch, step)
        step.duration_s = batch.seconds
        for request in step.finished:
            del self._running[request.request_id]
            self._free(request)
        step.changes = self.cache.drain()
        if self.tiers is not None:
            step.changes += self.tiers.drain()
        return step

    def _schedule_running(self, batch: "_Batch", step: Step) -> bool:
        """Give running requests their share; True when somebody was preempted."""
        preempted = False
        for request in list(self._running.values()):
            if batch.budget <= 0:
                break
            if request.request_id not in self._running:
                break  # preempted by an earlier one, and so are all that follow
            while not self._has_room(request):
                preempted = True
                if self._preempt_latest() is request:
                    return True
            self._compute(request, batch, step)
        return preempted

    def _schedule_waiting(self, batch: "_Batch", step: Step) -> None:
        while self._waiting and batch.budget > 0 and self.running < self.profile.max_num_seqs:
            request = self._waiting[0]
            loading_s = self._admit(request)
            if loading_s is None:
                break
            batch.wait(loading_s)
            self._waiting.popleft()
            self._running[request.request_id] = request
            self._compute(request, batch, step)

    def _admit(self, request: Request) -> float | None:
        """Take the blocks for all of the request's tokens, reusing what is cached; None without
        room, else the seconds to load what the GPU lacks from other tiers."""
        size, length = self.cache.block_size, len(request.tokens)
        # The last token is always computed, so a prompt of n full blocks finds n - 1 at most.
        limit = (length - 1) // size
        matched = self.cache.match(request.chain.digests, limit)
        table = self.cache.admit(matched, -(-length // size) - len(matched))
        if table is None:
            return None
        loaded = Loaded()
        if self.tiers is not None:
            # Other tiers may hold the prompt whole; its last token is computed all the same.
            loaded = self.tiers.find(request.chain, request.tokens, len(matched), length // size)
        found = len(matched) + loaded.l1 + loaded.l2
        self.cache.name(table, request.chain, request.tokens, len(matched), found)
        request.table = table
        request.computed = min(found * size, length - 1)
        if matched and request.report_reuse:
            self.cache.announce(request.chain, request.tokens, 0, len(matched))
        if request.cached_tokens is None:
            request.cached_tokens = found * size
            self._count(request, loaded)
        return loaded.seconds

    def _count(self, request: Request, loaded: Loaded) -> None:
        totals, size = self.totals, self.cache.block_size
        totals.prefix_queries += len(request.tokens)
        totals.prompt_tokens += len(request.tokens)
        totals.prefix_hits += request.cached_tokens or 0
        request.l1_tokens, request.l2_tokens = loaded.l1 * size, loaded.l2 * size
        totals.l1_hits += request.l1_tokens
        totals.l2_hits += request.l2_tokens

    def _has_room(self, request: Request) -> bool:
        """Make sure there is a block for the request's last token; False when none is free."""
        if len(request.tokens) <= len(request.table) * self.cache.block_size:
            return True
        return self.cache.grow(request.table)

    def _preempt_latest(self) -> Request:
        _, request = self._running.popitem()
        self._free(request)
        self._waiting.appendleft(request)
        self.totals.preemptions += 1
        return request

    def _free(self, request: Request) -> None:
        self.cache.release(request.table)
        request.table = []
        request.computed = 0

    def _compute(self, request: Request, batch: "_Batch", step: Step) -> None:
        """Compute what the budget allows of the tokens that lack KV; emit when none is left."""
        length = len(request.tokens)
        before = request.computed
        chunk = min(length - before, batch.budget)
        batch.add(chunk, before, decoding=request.emitted > 0 and length - before == 1)
        request.computed = before + chunk
        size = self.cache.block_size
        if request.computed // size > before // size:
            self._name_blocks(request, before // size)
        if request.computed == length:
            request.tokens.append(request.answer[request.emitted])
            request.emitted += 1
            self.totals.generation_tokens += 1
            step.emitted.append(request)
            if request.finished:
                step.finished.append(request)

    def _name_blocks(self, request: Request, first: int) -> None:
        """Cache the blocks that became full, from block `first` to what is computed."""
        request.chain.extend(request.tokens)
        full = request.computed // self.cache.block_size
        self.cache.name(request.table, request.chain, request.tokens, first, full)
        if self.tiers is not None:
            self.tiers.offload(request.chain, request.tokens, first, full)


class _Batch:
    """The work of one step: what is left of its budget and what it takes."""

    __slots__ = ("_context", "_decoding", "_prefill_s", "_profile", "budget")

    def __init__(self, profile: Profile) -> None:
        self.budget = profile.max_num_batched_tokens
        self._profile = profile
        self._prefill_s = 0.0
        self._decoding = 0
        self._context = 0

    def wait(self, seconds: float) -> None:
        """Load blocks before anything is computed."""
        self._prefill_s += seconds

    def add(self, chunk: int, context: int, *, decoding: bool) -> None:
        """Spend `chunk` tokens of the budget on a sequence with `context` tokens computed."""
        self.budget -= chunk
        if decoding:
            self._decoding += 1
            self._context += context
        else:
            self._prefill_s += self._profile.prefill_seconds(chunk, context)

    @property
    def seconds(self) -> float:
        """How long the step takes."""
        decode = self._profile.decode_seconds(self._decoding, self._context)
        return self._profile.t0_s + self._prefill_s + decode
