"""A fast engine for whole traces: the simulator's schedule, advanced many steps at a time.

The steps and their durations are the same, but only steps that change something are simulated.
Between two events every decoding request gets one token a step, so a run of steps without prefill
(a stride) has a closed form: steps `j = 1..k` over `n` sequences with `c` tokens of context take
`k (t0 + ts n + tk c) + tk n k (k - 1) / 2`. Blocks are as coarse as in the traces (512 tokens).

Simpler than `simulator.engine.core` in three ways:

1. A request is admitted when its prompt and its whole answer fit, so nothing is ever preempted.
2. If two requests compute the same block at once, the later one drops its copy and shares the
   block already cached under that key.
3. The cache may be larger than the room for running requests. The surplus acts as a host tier that
   loads in no time; tiers with a loading time come from `simulator.kv.tiers`, as there.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import islice
from math import ceil, inf, sqrt
from random import Random

from simulator.engine.profiles import Profile
from simulator.kv.tiers import Tiers

BLOCK_TOKENS = 512


class StrideCache:
    """A block cache by key: at most `room` blocks in use, `capacity` in all, LRU eviction.

    Keys in use have a reference count; the others are kept in order of last use. Blocks are
    released last block first, so leaves are evicted before their parents and every cached path is
    complete from the root. Blocks without a key yet (`nameless`) are only counted.
    """

    def __init__(self, room: int, capacity: int) -> None:
        if not 0 < room <= capacity:
            raise ValueError(f"room must be from 1 to the capacity of {capacity}, not {room}")
        self.room = room
        self.capacity = capacity
        self.nameless = 0
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Return how many blocks are in use; one shared by several requests counts once."""
        return len(self._users) + self.nameless

    def held(self, keys: Sequence[int], limit: int | None = None) -> int:
        """Return how many of `keys`, from the first without a gap, are cached."""
        users, idle = self._users, self._idle
        low, high = 0, len(keys) if limit is None else min(limit, len(keys))
        while low < high:  # cached paths are complete from the root, so binary search works
            middle = (low + high + 1) // 2
            key = keys[middle - 1]
            if key in users or key in idle:
                low = middle
            else:
                high = middle - 1
        return low

    def admit(self, keys: Sequence[int], blocks: int) -> bool:
        """Reference the cached `keys`, take `blocks - len(keys)` new blocks; False if no room."""
        users, idle = self._users, self._idle
        fresh = blocks - len(keys)
        free = self.room - self.used - fresh
        if free < 0 or (free < len(keys) and sum(key not in users for key in keys) > free):
            return False
        self._use(keys)
        self.nameless += fresh
        for _ in range(self.used + len(idle) - self.capacity):
            idle.popitem(last=False)
        return True

    def leaving(self, blocks: int) -> list[int]:
        """Return the keys that would be evicted to make room for so many new blocks."""
        over = self.used + len(self._idle) + blocks - self.capacity
        return list(islice(self._idle, max(0, over)))

    def name(self, keys: Sequence[int]) -> None:
        """Register computed blocks, taken as nameless by `admit`, under their keys."""
        self._use(keys)
        self.nameless -= len(keys)

    def _use(self, keys: Sequence[int]) -> None:
        users, idle = self._users, self._idle
        for key in keys:
            count = users.get(key)
            if count is None:
                idle.pop(key, None)
                users[key] = 1
            else:
                users[key] = count + 1

    def release(self, keys: Sequence[int], nameless: int) -> None:
        """Drop a request's references; blocks with a key stay cached until evicted."""
        users, idle = self._users, self._idle
        self.nameless -= nameless
        for key in reversed(keys):
            count = users[key] - 1
            if count:
                users[key] = count
            else:
                del users[key]
                idle[key] = None


class Job:
    """One request. `keys` name the full blocks of its prompt; equal keys mean equal prefixes."""

    __slots__ = (
        "answer_tokens",
        "blocks",
        "cached_tokens",
        "computed",
        "keys",
        "l1_tokens",
        "l2_tokens",
        "named",
        "number",
        "prompt_tokens",
    )

    def __init__(
        self, number: int, keys: Sequence[int], prompt_tokens: int, answer_tokens: int
    ) -> None:
        if prompt_tokens < 1 or answer_tokens < 1:
            raise ValueError("prompt and answer need at least one token each")
        self.number = number
        self.keys = keys
        self.prompt_tokens = prompt_tokens
        self.answer_tokens = answer_tokens
        #: Prompt tokens found in the cache when admitted; None until then.
        self.cached_tokens: int | None = None
        #: The part of these loaded from host memory (L1) and from the shared store (L2).
        self.l1_tokens = self.l2_tokens = 0
        self.computed = 0
        #: Blocks it needs in all, and how many of its keys, from the first, are in the cache.
        self.blocks = self.named = 0


class StrideEngine:
    """One worker. The caller keeps the clock: it adds jobs and calls `advance` at time `due`.

    Times are in seconds of the caller's clock, capacities in tokens.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        room_tokens: int | None = None,
        cache_tokens: int | None = None,
        block_tokens: int = BLOCK_TOKENS,
        cache: StrideCache | None = None,
        tiers: Tiers[int] | None = None,
        noise_seed: int = 0,
    ) -> None:
        room = (room_tokens or profile.kv_tokens) // block_tokens
        self.profile = profile
        self.block_tokens = block_tokens
        self.cache = cache or StrideCache(room, max(room, (cache_tokens or 0) // block_tokens))
        self.tiers = tiers
        self._noise = Random(noise_seed)
        self._slowness = 1.0  # of this stride, by the profile's noise
        self._loading_s = 0.0  # time to load blocks of the requests admitted in this step
        self.due = inf
        """When `advance` is to be called next; inf while nothing runs."""
        self.waiting: deque[Job] = deque()
        self.prefilling: Job | None = None
        self._decoding: list[tuple[int, int, Job]] = []  # a heap by the step of the last token
        self._context = 0  # tokens of context of all decoding requests together
        self._steps = 0
        self._began = 0.0
        self._stride = 0  # steps until due
        self._first: list[Job] = []  # jobs whose prefill ends with this step
        self.busy_s = 0.0
        """Seconds spent on prefill since the start."""

    @property
    def running(self) -> int:
        """Return requests that hold blocks."""
        return len(self._decoding) + len(self._first) + (self.prefilling is not None)

    @property
    def usage(self) -> float:
        """Share of the room for running requests in use, 0 to 1."""
        return self.cache.used / self.cache.room

    def add(self, job: Job, now: float) -> None:
        """Queue a job. Raises ValueError for one that could never be admitted."""
        job.blocks = -(-(job.prompt_tokens + job.answer_tokens) // self.block_tokens)
        if job.blocks > self.cache.room:
            raise ValueError(f"{job.blocks} blocks, where {self.cache.room} fit")
        self.waiting.append(job)
        if self.due == inf:
            self._plan(now)
        elif self._stride > 1 and len(self.waiting) == 1:
            self._cut(now)

    def advance(self, now: float) -> tuple[list[Job], list[Job]]:
        """End the stride; return the jobs that got their first token and those that finished."""
        first, self._first = self._first, []
        decoding, steps = self._decoding, self._steps + self._stride
        self._steps = steps
        self._context += len(decoding) * self._stride
        ended = []
        while decoding and decoding[0][0] <= steps:
            job = heappop(decoding)[2]
            self._context -= job.prompt_tokens + job.answer_tokens - 1
            ended.append(job)
        for job in first:
            if job.answer_tokens == 1:
                ended.append(job)
            else:
                heappush(decoding, (steps + job.answer_tokens - 1, job.number, job))
                self._context += job.prompt_tokens
        for job in ended:
            self.cache.release(job.keys[: job.named], job.blocks - job.named)
        self._plan(now)
        return first, ended

    def drop(self, job: Job) -> bool:
        """Drop a request without a first token, at the end of the step; False if it is too late.

        What is computed of it by then stays cached. Add a new job to go on with it.
        """
        if job is self.prefilling:
            self.prefilling = None
            self.cache.release(job.keys[: job.named], job.blocks - job.named)
        elif job in self.waiting:
            self.waiting.remove(job)
        else:
            return False
        return True

    def clear(self) -> list[Job]:
        """Start over as a new process would, with nothing cached; return the jobs lost."""
        lost = [*(entry[2] for entry in self._decoding), *self._first, *self.waiting]
        if self.prefilling is not None:
            lost.append(self.prefilling)
        self.waiting.clear()
        self._decoding.clear()
        self._first = []
        self.prefilling = None
        self._context = self._stride = 0
        self.due = inf
        self.cache = StrideCache(self.cache.room, self.cache.capacity)
        if self.tiers is not None:
            self.tiers.clear()
        return lost

    def _plan(self, now: float) -> None:
        """Begin the next stride: one step with prefill, or all steps until a decode finishes."""
        profile, sequences = self.profile, len(self._decoding)
        mixed = profile.mixed_steps
        prefill_s = self._prefill(profile.max_num_batched_tokens - (sequences if mixed else 0))
        self._began = now
        if prefill_s:
            self.busy_s += prefill_s
            self._stride = 1 if mixed else 0  # tokens of each answer
            step_s = prefill_s + (self._seconds(1) if mixed else profile.t0_s)
            self.due = now + profile.noisy(step_s, 1, self._noise)
        elif sequences:
            self._stride = self._decoding[0][0] - self._steps
            self._slowness = profile.noisy(1.0, self._stride, self._noise)
            self.due = now + self._slowness * self._seconds(self._stride)
        else:
            self.due = inf

    def _prefill(self, budget: int) -> float:
        """Spend one step's budget on prefill; return the seconds that this adds to the step."""
        seconds = 0.0
        while budget > 0:
            job = self.prefilling or self._admitted()
            if job is None:
                break
            chunk = min(job.prompt_tokens - job.computed, budget)
            seconds += self.profile.prefill_seconds(chunk, job.computed)
            budget -= chunk
            job.computed += chunk
            full = min(job.computed // self.block_tokens, len(job.keys))
            if full > job.named:
                self.cache.name(job.keys[job.named : full])
                if self.tiers is not None:
                    self.tiers.write(job.keys[job.named : full])
                job.named = full
            if job.computed == job.prompt_tokens:
                self._first.append(job)
                self.prefilling = None
            else:
                self.prefilling = job
        seconds += self._loading_s
        self._loading_s = 0.0
        return seconds

    def _admitted(self) -> Job | None:
        """Return a dmit and return the head of the queue, or None if it cannot run yet."""
        if not self.waiting or self.running >= self.profile.max_num_seqs:
            return None
        job = self.waiting[0]
        size = self.block_tokens
        # The last token is always computed, so a prompt of n full blocks finds n - 1 at most.
        limit = (job.prompt_tokens - 1) // size
        matched = self.cache.held(job.keys, limit)
        if not self.cache.admit(job.keys[:matched], job.blocks):
            return None
        if self.tiers is not None:
            loaded = self.tiers.find(job.keys[:limit], matched)
            self._loading_s += loaded.seconds
            job.l1_tokens, job.l2_tokens = loaded.l1 * size, loaded.l2 * size
            found = matched + loaded.l1 + loaded.l2
            self.cache.name(job.keys[matched:found])
            matched = found
        job.named = matched
        job.computed = job.cached_tokens = matched * size
        return self.waiting.popleft()

    def _seconds(self, steps: int) -> float:
        """Return the duration of `steps` steps for the decoding requests, without prefill."""
        profile, count = self.profile, len(self._decoding)
        one = profile.t0_s + profile.decode_seconds(count, self._context)
        return steps * one + profile.tk_s * count * (steps * (steps - 1) // 2)

    def _cut(self, now: float) -> None:
        """End the stride with the step now under way, because a new job has arrived."""
        self._stride = self._steps_by(now)
        self.due = max(now, self._began + self._slowness * self._seconds(self._stride))

    def _steps_by(self, now: float) -> int:
        """Return how many steps of the stride have begun."""
        profile, count = self.profile, len(self._decoding)
        growth = profile.tk_s * count / 2
        one = profile.t0_s + profile.decode_seconds(count, self._context) - growth
        spent = (now - self._began) / self._slowness
        steps = (
            spent / one
            if growth == 0
            else (sqrt(one * one + 4 * growth * spent) - one) / (2 * growth)
        )
        return min(self._stride, max(1, ceil(steps)))
