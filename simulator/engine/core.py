"""Continuous batching with chunked prefill, after vLLM V1's scheduler (`v1/core/sched`).

No sockets, no clock, no asyncio: `step` returns what one forward pass did and how long it takes;
the caller lets that time pass.

Each step has a budget of `max_num_batched_tokens` tokens and schedules:

1. Running requests, in order of arrival. Each computes the tokens whose KV is missing: one when
   decoding, a chunk when still prefilling. If a request needs a block and none is free, the
   latest arrival is preempted: it loses its blocks and is computed again later.
2. Unless a request was preempted, waiting requests, first come, first served, while the budget,
   `max_num_seqs` and the cache allow. No request overtakes the head of the queue.

If the profile has no mixed steps, a step with any prefill decodes nothing.

A request takes the blocks of its whole prompt when admitted, not chunk by chunk (vLLM since 0.19
likewise admits a request only if it fits as a whole). Its prefix is looked up at that moment.
"""

from collections import deque
from dataclasses import dataclass, field
from random import Random

from simulator.engine.profiles import Profile
from simulator.engine.request import EngineRequest
from simulator.kv.blocks import Chain, Change, root_of
from simulator.kv.cache import BlockCache
from simulator.kv.tiers import Offloading, TierHits


class QueueFullError(Exception):
    """The queue is at its limit (vLLM `--max-num-queued-reqs`)."""


class TooLongError(ValueError):
    """Prompt and answer together exceed the tokens that one request may have here."""


@dataclass(slots=True)
class Step:
    """One forward pass."""

    duration_s: float = 0.0
    #: Requests that produced one token each when the step ended.
    emitted: list[EngineRequest] = field(default_factory=list)
    #: Those of `emitted` whose answer is complete.
    finished: list[EngineRequest] = field(default_factory=list)
    #: What the step did to the KV cache.
    changes: list[Change] = field(default_factory=list)


@dataclass(slots=True)
class EngineTotals:
    """Counts since the engine started; all but `preemptions` and `rejected` in tokens."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    #: The part of `prefix_hits` loaded from host memory (L1) and from the shared store (L2).
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
        noise_seed: int = 0,
    ) -> None:
        self._root = root_of(hash_seed)
        self.tiers = tiers
        self.profile = profile
        self.cache = BlockCache((kv_tokens or profile.kv_tokens) // block_size, block_size)
        self.max_queued = max_queued
        self.totals = EngineTotals()
        self._noise = Random(noise_seed)
        self._running: dict[str, EngineRequest] = {}  # in order of arrival
        self._waiting: deque[EngineRequest] = deque()

    def __repr__(self) -> str:
        return f"<Engine running={self.running} waiting={self.waiting} kv={self.kv_usage:.2f}>"

    @property
    def running(self) -> int:
        """Return how many requests hold blocks and take part in steps."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Return how many requests wait for their first step, or to resume after preemption."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Return whether a step would compute anything."""
        return bool(self._running or self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the cache's blocks in use, 0 to 1."""
        return self.cache.used / self.cache.num_blocks

    @property
    def max_tokens(self) -> int:
        """Return how many tokens, prompt and answer together, one request may have."""
        return min(self.profile.max_model_len, self.cache.num_blocks * self.cache.block_size)

    def add(self, request: EngineRequest, now: float) -> None:
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
        """Stop a request and free its blocks; return false if it is unknown or already finished."""
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
        """Drop all cached prefixes, as the next step reports; return false while requests run."""
        return self.cache.reset()

    def clear(self) -> None:
        """Start over as a new process would: no requests, nothing cached, counts at zero."""
        self._running.clear()
        self._waiting.clear()
        self.cache = BlockCache(self.cache.num_blocks, self.cache.block_size)
        if self.tiers is not None:
            self.tiers.tiers.clear()
        self.totals = EngineTotals()

    def step(self) -> Step:
        """Compute one forward pass; its tokens are out when it ends, `duration_s` from now."""
        step = Step()
        if not self.busy:
            step.changes = self.cache.drain()
            return step
        batch = _Batch(self.profile)
        if self.profile.mixed_steps:
            if not self._schedule_running(batch, step):
                self._schedule_waiting(batch, step)
        else:
            self._schedule_either(batch, step)
        step.duration_s = self.profile.noisy(batch.seconds, 1, self._noise)
        for request in step.finished:
            del self._running[request.request_id]
            self._free(request)
        step.changes = self.cache.drain()
        if self.tiers is not None:
            step.changes += self.tiers.drain()
        return step

    def _schedule_either(self, batch: "_Batch", step: Step) -> None:
        """Schedule prefill alone; without any, the decoding requests."""
        preempted = self._schedule_running(batch, step, decoding=False)
        if not preempted:
            self._schedule_waiting(batch, step)
        if batch.is_empty:
            self._schedule_running(batch, step)

    def _schedule_running(self, batch: "_Batch", step: Step, *, decoding: bool = True) -> bool:
        """Schedule the running requests, those that decode only if `decoding`.

        Return true if any was preempted."""
        preempted = False
        for request in list(self._running.values()):
            if batch.budget <= 0:
                break
            if not decoding and request.emitted and len(request.tokens) - request.computed == 1:
                continue
            if request.request_id not in self._running:
                break  # preempted in this loop, as are all later arrivals
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

    def _admit(self, request: EngineRequest) -> float | None:
        """Allocate blocks for all of the request's tokens, reusing cached ones.

        Returns the seconds spent loading blocks from other tiers, or None if there is no room.
        """
        size, length = self.cache.block_size, len(request.tokens)
        # The last token is always computed, so a prompt of n full blocks finds n - 1 at most.
        limit = (length - 1) // size
        matched = self.cache.match(request.chain.digests, limit)
        table = self.cache.admit(matched, -(-length // size) - len(matched))
        if table is None:
            return None
        loaded = TierHits()
        if self.tiers is not None:
            # Other tiers may supply every full block; the last token is still computed.
            loaded = self.tiers.find(request.chain, request.tokens, len(matched), length // size)
        cached = len(matched) + loaded.l1 + loaded.l2
        self.cache.name(table, request.chain, request.tokens, len(matched), cached)
        request.table = table
        request.computed = min(cached * size, length - 1)
        if matched and request.report_reuse:
            self.cache.announce(request.chain, request.tokens, 0, len(matched))
        if request.cached_tokens is None:
            request.cached_tokens = cached * size
            self._count(request, loaded)
        return loaded.seconds

    def _count(self, request: EngineRequest, loaded: TierHits) -> None:
        totals, size = self.totals, self.cache.block_size
        totals.prefix_queries += len(request.tokens)
        totals.prompt_tokens += len(request.tokens)
        totals.prefix_hits += request.cached_tokens or 0
        request.l1_tokens, request.l2_tokens = loaded.l1 * size, loaded.l2 * size
        totals.l1_hits += request.l1_tokens
        totals.l2_hits += request.l2_tokens

    def _has_room(self, request: EngineRequest) -> bool:
        """Ensure the request has a block for its last token; return false if none is free."""
        if len(request.tokens) <= len(request.table) * self.cache.block_size:
            return True
        return self.cache.grow(request.table)

    def _preempt_latest(self) -> EngineRequest:
        _, request = self._running.popitem()
        self._free(request)
        self._waiting.appendleft(request)
        self.totals.preemptions += 1
        return request

    def _free(self, request: EngineRequest) -> None:
        self.cache.release(request.table)
        request.table = []
        request.computed = 0

    def _compute(self, request: EngineRequest, batch: "_Batch", step: Step) -> None:
        """Compute as many missing tokens as the budget allows; emit one once none is missing."""
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

    def _name_blocks(self, request: EngineRequest, first: int) -> None:
        """Register the full computed blocks, from block `first` on, in the prefix cache."""
        request.chain.extend(request.tokens)
        full = request.computed // self.cache.block_size
        self.cache.name(request.table, request.chain, request.tokens, first, full)
        if self.tiers is not None:
            self.tiers.offload(request.chain, request.tokens, first, full)


class _Batch:
    """The work of one step: its remaining token budget and its duration."""

    __slots__ = ("_context", "_decoding", "_prefill_s", "_profile", "budget")

    def __init__(self, profile: Profile) -> None:
        self.budget = profile.max_num_batched_tokens
        self._profile = profile
        self._prefill_s = 0.0
        self._decoding = 0
        self._context = 0

    def wait(self, seconds: float) -> None:
        """Add time spent loading blocks, during which nothing is computed."""
        self._prefill_s += seconds

    def add(self, chunk: int, context: int, *, decoding: bool) -> None:
        """Spend `chunk` tokens of the budget on a sequence that has `context` computed tokens."""
        self.budget -= chunk
        if decoding:
            self._decoding += 1
            self._context += context
        else:
            self._prefill_s += self._profile.prefill_seconds(chunk, context)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is computed or loaded in the step."""
        return not (self._prefill_s or self._decoding)

    @property
    def seconds(self) -> float:
        """Return how long the step takes."""
        decode = self._profile.decode_seconds(self._decoding, self._context)
        return self._profile.t0_s + self._prefill_s + decode
