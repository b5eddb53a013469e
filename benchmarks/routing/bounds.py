"""What no router can beat, and `prefixaware` with one thing made ideal at a time.

The bounds replace router and workers' queues by one queue, and the workers' caches by one: as large
as all of them together, or infinite. Whichever engine can compute next takes the next request, so
nothing ever waits beside an idle engine. They bound the time to the first token, not that to the
end: answers are not spread.

The replays show where the rest goes. Each makes one thing ideal for all workers and leaves the
decisions to the strategy, which knows nothing of it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count, islice
from math import inf
from random import Random

from msgspec import Struct

from benchmarks.routing.drive import EngineFleet, Seat
from benchmarks.routing.strides import Job, StrideCache, StrideEngine
from benchmarks.routing.workloads import Talk, Work
from simulator.engine.profiles import Profile
from strategies.api import Strategy

#: How many waiting requests, the oldest ones, are compared to find the shortest.
LOOK = 256
#: More blocks than any run has.
_ENDLESS = 1 << 40


class PooledAnswer(Struct):
    """One request that was answered."""

    job: Job
    at_s: float
    first_s: float = 0.0
    """Seconds from the request to the first token."""
    ended_s: float = 0.0
    """Seconds from the request to the last token."""


class IdealEngine(StrideEngine):
    """An engine with a better order, or whose steps can be ended at any time."""

    def __init__(
        self,
        profile: Profile,
        cache: StrideCache,
        block_tokens: int,
        noise_seed: int,
        *,
        shortest: bool = False,
        at_once: bool = False,
    ) -> None:
        """Create it idle.

        `shortest`: the request with the least prefill left goes first, and others stop for it
        between two steps. `at_once`: a step that only decodes, or whose prompt gave way, ends when
        a request comes. What was scheduled of that prompt counts as computed.
        """
        super().__init__(profile, cache=cache, block_tokens=block_tokens, noise_seed=noise_seed)
        self._shortest = shortest
        self._at_once = at_once
        self._chance = Random(noise_seed)
        self.others: Sequence[IdealEngine] = ()
        """Engines that take requests from the same queue."""

    @property
    def prefills(self) -> bool:
        """Whether the step under way has any prefill."""
        return self.prefilling is not None or bool(self._first)

    def add(self, job: Job, now: float) -> None:
        """Queue a job."""
        super().add(job, now)
        if self._at_once and now < self.due < inf and not self.prefills:
            last_s = self._seconds(self._stride) - self._seconds(max(0, self._stride - 1))
            if self._stride and self._chance.random() * last_s < self.due - now:
                self._stride -= 1  # on average, answers get as much as was done of the step
            self.due = now

    def soon(self, now: float) -> float:
        """Return the seconds that a new request would wait here, and be slowed down by answers."""
        if self.due == inf:
            return 0.0
        end = self._began + self._slowness * self._seconds(self._steps_by(now))
        return end - now + self._seconds(1)

    def look(self, now: float) -> None:
        """See what waits: now if idle, else with the next step."""
        if self.due == inf:
            self._plan(now)
        elif self._stride > 1:
            self._cut(now)

    def _prefill(self, budget: int) -> float:
        job = self.prefilling
        if self._shortest and self.waiting and job is not None:
            self._bring_forward()
            left = self.profile.prefill_seconds(job.prompt_tokens - job.computed, job.computed)
            if self._needs(self.waiting[0]) < left:
                self.drop(job)
                self.waiting.append(job)
        return super()._prefill(budget)

    def _admitted(self) -> Job | None:
        if self._shortest and self.waiting:
            self._bring_forward()
        if self._first and not all(other.prefills for other in self.others):
            return None  # another one begins with it sooner
        before = self.waiting[0].cached_tokens if self.waiting else None
        job = super()._admitted()
        if job is not None and before is not None:  # what it computed itself is not a hit
            job.cached_tokens = min(before, job.cached_tokens or 0)
        return job

    def _bring_forward(self) -> None:
        """Move the shortest waiting job to the front of the queue."""
        best = min(islice(self.waiting, LOOK), key=self._needs)
        if best is not self.waiting[0]:
            self.waiting.remove(best)
            self.waiting.appendleft(best)

    def _needs(self, job: Job) -> float:
        """Seconds to compute what the cache lacks of a job."""
        limit = (job.prompt_tokens - 1) // self.block_tokens
        held = self.cache.held(job.keys, limit) * self.block_tokens
        return self.profile.prefill_seconds(job.prompt_tokens - held, held)


class PooledEngines:
    """A fleet with one queue and one cache."""

    def __init__(
        self, fleet: EngineFleet, *, shortest: bool = False, infinite: bool = False
    ) -> None:
        """Create it idle; `infinite`: its cache is, and not only as large as all together."""
        rooms = fleet.profile.kv_tokens // fleet.block_tokens
        caches = max(rooms, (fleet.cache_tokens or 0) // fleet.block_tokens)
        size = _ENDLESS if infinite else caches * fleet.workers
        cache, waiting = StrideCache(rooms * fleet.workers, size), deque[Job]()
        self.engines = [
            IdealEngine(fleet.profile, cache, fleet.block_tokens, number, shortest=shortest)
            for number in range(fleet.workers)
        ]
        for engine in self.engines:
            engine.waiting = waiting
            engine.others = [other for other in self.engines if other is not engine]
        self._waiting = waiting
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()
        self._answers: dict[int, tuple[PooledAnswer, Talk, int]] = {}
        self._done: list[PooledAnswer] = []

    def run(self, work: Work) -> list[PooledAnswer]:
        """Run a workload; return the answers in the order in which they ended."""
        for talk in work.talks:
            self._at(talk.at_s, partial(self._arrive, talk, 0))
        while self._events:
            now, _, happens = heappop(self._events)
            happens(now)
        return self._done

    def _at(self, at_s: float, happens: Callable[[float], None]) -> None:
        heappush(self._events, (at_s, next(self._numbers), happens))

    def _arrive(self, talk: Talk, place: int, now: float) -> None:
        turn, number = talk.turns[place], next(self._numbers)
        job = Job(number, turn.keys, turn.prompt_tokens, turn.answer_tokens)
        size = self.engines[0].block_tokens
        job.blocks = -(-(job.prompt_tokens + job.answer_tokens) // size)
        self._answers[number] = PooledAnswer(job, now), talk, place
        self._waiting.append(job)
        free = [engine for engine in self.engines if not engine.prefills]
        if free:
            self._look(min(free, key=lambda engine: engine.soon(now)), now)

    def _look(self, engine: IdealEngine, now: float) -> None:
        due = engine.due
        engine.look(now)
        if engine.due != due and engine.due < inf:
            self._at(engine.due, partial(self._advance, engine))

    def _advance(self, engine: IdealEngine, now: float) -> None:
        if engine.due != now:  # it has changed, with an event of its own
            return
        first, ended = engine.advance(now)
        if engine.due < inf:
            self._at(engine.due, partial(self._advance, engine))
        for job in first:
            answer = self._answers[job.number][0]
            answer.first_s = now - answer.at_s
        for job in ended:
            answer, talk, place = self._answers.pop(job.number)
            answer.ended_s = now - answer.at_s
            self._done.append(answer)
            if place + 1 < len(talk.turns):
                think_s = talk.turns[place + 1].think_s
                self._at(now + think_s, partial(self._arrive, talk, place + 1))
        for other in self.engines if ended and self._waiting else []:
            self._look(other, now)  # there may be room now


class RoomyCache(StrideCache):
    """A cache that grows for as long as running requests find no room in it."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, capacity)
        self._usual = capacity

    def admit(self, keys: Sequence[int], blocks: int) -> bool:
        """Take the blocks, whatever is in use."""
        self.room = self.capacity = max(self._usual, self.used + blocks)
        return super().admit(keys, blocks)


class SharedCache(StrideCache):
    """A worker's room for running requests; what it caches lies in one cache of all workers."""

    def __init__(self, room: int, shared: StrideCache) -> None:
        super().__init__(room, room)
        self._shared = shared

    def held(self, keys: Sequence[int], limit: int | None = None) -> int:
        """Return how many of `keys`, from the first without a gap, are cached."""
        return self._shared.held(keys, limit)

    def admit(self, keys: Sequence[int], blocks: int) -> bool:
        """Reference the cached `keys`, take new blocks; False if this worker has no room."""
        return super().admit(keys, blocks) and self._shared.admit(keys, blocks)

    def name(self, keys: Sequence[int]) -> None:
        """Register computed blocks for all workers."""
        super().name(keys)
        self._shared.name(keys)

    def release(self, keys: Sequence[int], nameless: int) -> None:
        """Drop a request's references."""
        super().release(keys, nameless)
        self._shared.release(keys, nameless)


def _engines(seats: Sequence[Seat], *, shortest: bool = False, at_once: bool = False) -> None:
    for number, seat in enumerate(seats):
        was = seat.engine
        seat.engine = IdealEngine(
            *(was.profile, was.cache, was.block_tokens, number), shortest=shortest, at_once=at_once
        )


def _roomy(seats: Sequence[Seat]) -> None:
    for seat in seats:
        seat.engine.cache = RoomyCache(seat.engine.cache.capacity)
        seat.room_tokens = _ENDLESS


def _large(seats: Sequence[Seat]) -> None:
    for seat in seats:
        cache = seat.engine.cache
        seat.engine.cache = StrideCache(cache.room, cache.capacity * len(seats))


def _shared(seats: Sequence[Seat]) -> None:
    caches = [seat.engine.cache for seat in seats]
    room, size = (sum(getattr(one, name) for one in caches) for name in ("room", "capacity"))
    shared = StrideCache(room, size)
    for seat in seats:
        seat.engine.cache = SharedCache(seat.engine.cache.room, shared)


#: What is made ideal, and how; each alone.
IDEALS: dict[str, Callable[[Sequence[Seat]], None]] = {
    "steps end at once": partial(_engines, at_once=True),
    "KV room never short": _roomy,
    "no cache lost: each worker's as large as all": _large,
    "no wrong worker: one cache as large as all": _shared,
    "shortest first within each worker": partial(_engines, shortest=True),
}


def idealised(
    name: str,
    make: Callable[[Sequence[Seat], int], Strategy],
    seats: Sequence[Seat],
    seed: int,
) -> Strategy:
    """Make one thing ideal for these seats, and return the strategy."""
    IDEALS[name](seats)
    return make(seats, seed)
