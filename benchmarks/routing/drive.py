"""A discrete-event simulation of a router's strategy over simulated workers, on a virtual clock.

Every decision goes through `Strategy.rank`, is booked as in `router/fleet/pool.py`, and is
settled as in `router/dispatch/lease.py`, with the cached tokens that the simulated worker reports.
The router learns everything at once: there is no network.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace as replaced
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.routing.strides import BLOCK_TOKENS, Job, StrideEngine
from benchmarks.routing.workloads import Talk, Work
from router.prompt.prompts import Prompts
from simulator.engine.profiles import Profile
from simulator.kv.stores import MemoryBlockStore
from simulator.kv.tiers import DEFAULT_RATES, Rates, Tiers
from strategies.api import Candidate, Decision, Outcome, Prompt, Strategy
from strategies.cost.load import Booking, Load
from strategies.cost.preemption import ahead, computes_from, drop
from strategies.cost.prefill import Curve, Pace
from strategies.hold.queue import Queue, Wait


class EngineFleet(NamedTuple):
    """The number and kind of the simulated workers."""

    profile: Profile
    workers: int = 8
    cache_tokens: int | None = None
    """Tokens of prefixes that a worker caches; None: only its room for running requests."""
    block_tokens: int = BLOCK_TOKENS
    host_tokens: int = 0
    """Tokens of each worker's host memory tier (L1), whose loading takes time; 0: none."""
    store_tokens: int = 0
    """Tokens of a store (L2) that all workers share; 0: none."""
    rates: Rates = DEFAULT_RATES
    """How fast these tiers load."""


class Seat:
    """A worker: its engine, and what the router knows about it (a `WorkerView`)."""

    __slots__ = ("engine", "kv_tokens", "load", "name", "pace", "room_tokens")

    def __init__(self, name: str, engine: StrideEngine) -> None:
        self.name = name
        self.engine = engine
        cache = engine.cache
        self.kv_tokens: int | None = None
        """Its cache capacity as known to the router: None, as memory behind the GPU is not told."""
        self.room_tokens: int | None = cache.room * engine.block_tokens
        """Tokens of KV cache that running requests may use."""
        self.load = Load()
        self.pace = Pace()


def seats(fleet: EngineFleet) -> list[Seat]:
    """Create the workers of a fleet, which share a store and a curve, as those of a pool do."""
    store, curve = _store(fleet), Curve()
    found = [_seat(number, fleet, store) for number in range(fleet.workers)]
    for seat in found:  # as `Pool.change` does
        seat.pace.curve = curve
    return found


def _store(fleet: EngineFleet) -> MemoryBlockStore[int] | None:
    blocks = fleet.store_tokens // fleet.block_tokens
    return MemoryBlockStore(blocks) if blocks else None


def _seat(number: int, fleet: EngineFleet, store: MemoryBlockStore[int] | None) -> Seat:
    size = fleet.block_tokens
    tiers = None
    if fleet.host_tokens or store is not None:
        tiers = Tiers(size, fleet.host_tokens // size, store, fleet.rates)
    engine = StrideEngine(
        fleet.profile,
        cache_tokens=fleet.cache_tokens,
        block_tokens=size,
        tiers=tiers,
        noise_seed=number,
    )
    return Seat(f"w{number}", engine)


def times_as_fast(profile: Profile, fast: float) -> Profile:
    """Return the profile of a worker that takes as many times less for everything."""
    return replaced(
        profile,
        prefill_tokens_per_s=profile.prefill_tokens_per_s * fast,
        t0_s=profile.t0_s / fast,
        ts_s=profile.ts_s / fast,
        tk_s=profile.tk_s / fast,
    )


#: Default block boundaries of prompts, in tokens.
ENDS = range(0, 1 << 32, BLOCK_TOKENS)


#: Placeholder for the prompt of a request that has not arrived yet.
_UNREAD = Prompt("model", 0)


class HeldTurn(Protocol):
    """A request that waits in the router."""

    item: Any
    prompt: Prompt


class Hold(Protocol):
    """The queue of requests that wait in the router, as far as the drive uses it."""

    def __len__(self) -> int:
        """The number of requests that wait."""

    def must_hold(self, decision: Decision, now: float) -> bool:
        """Whether even the best choice is too busy to take the request now."""

    def enter(
        self,
        item: Any,  # noqa: ANN401 - the caller decides
        prompt: Prompt,
        decision: Decision,
        now: float,
        *,
        wait: Wait,
    ) -> HeldTurn:
        """Hold a request."""

    def release(
        self, rank: Callable[[Any], Decision], now: float, loads: Collection[Load]
    ) -> tuple[HeldTurn, Decision] | None:
        """Return the next request to send, and where to, or None.

        It is called after every change, repeatedly until it returns None.
        """


def own_hold() -> Hold:
    """Return the queue that the router has."""
    return Queue()


class PendingTurn(Struct):
    """One request, not yet placed."""

    talk: Talk
    place: int
    """Index of its turn in the talk."""
    prompt: Prompt
    at_s: float
    job: Job
    cached_tokens: int | None = None
    """What its worker held of it before it was preempted, if it was."""


class Placed(Struct):
    """One request on its worker."""

    asked: PendingTurn
    seat: Seat
    choice: Candidate
    booking: Booking
    at_s: float
    """When it was placed."""
    first_s: float = 0.0
    """Seconds from the client's request to the first token."""
    ended_s: float = 0.0
    """Seconds from the client's request to the last token."""


Event = PendingTurn | Seat | Callable[[], None]


#: Seconds between two checks of the requests that wait.
TICK_S = 0.1


class VirtualDrive:
    """Runs one workload through one strategy."""

    def __init__(
        self,
        fleet: EngineFleet,
        strategy: Callable[[Sequence[Seat]], Strategy],
        hold: Hold | None = None,
        until_s: float = inf,
    ) -> None:
        """Create the fleet, and the strategy by calling `strategy` with its seats.

        A strategy may only look into the seats' engines if it is meant to have exact knowledge.
        No requests arrive after `until_s`.
        """
        self._hold = hold
        self._until_s = until_s
        self._tick_at = inf
        self.seats = seats(fleet)
        self._ends = range(0, 1 << 32, fleet.block_tokens)
        self._size = fleet.block_tokens
        self._named = {seat.name: seat for seat in self.seats}
        self.strategy = strategy(self.seats)
        # Optional hooks of peers, beyond the interface of Warmroute's strategies.
        self._about: Callable[[Talk], None] | None = getattr(self.strategy, "about", None)
        self._computed: Callable[[Prompt, Seat], None] | None = getattr(
            self.strategy, "computed", None
        )
        self._prompts = Prompts()
        self.done: list[Placed] = []
        self.cut: list[Placed] = []
        """Requests whose answer broke off because their worker restarted."""
        self.now = 0.0
        self.eligible = list(self.seats)
        """The workers that may get requests now."""
        self.reports: Callable[[Placed], int | None] = _honest
        """The cached tokens that a worker reports for a request."""
        self._reads = self.strategy.capabilities.reads_prompt
        """Whether it looks at what prompts have in common; if not, the router does not either."""
        self._preempts = False
        if isinstance(hold, Queue):
            hold.waits = self.strategy.waits
            self._preempts = self._reads
        self.preempted = 0
        """How often a request was preempted."""
        self._events: list[tuple[float, int, Event]] = []
        self._numbers = count()
        self._turns = count(1)
        self._placed: dict[int, Placed] = {}
        self._booked: dict[Booking, Placed] = {}
        """By booking, the requests that may be preempted."""

    def at(self, at_s: float, change: Callable[[], None]) -> None:
        """Schedule `change` at a time, before all other events of that time."""
        heappush(self._events, (at_s, -next(self._numbers), change))

    def leave(self, seat: Seat) -> None:
        """Send no more requests to a worker; those it has finish there."""
        self.eligible.remove(seat)
        self.strategy.forget(seat.name)

    def restart(self, seat: Seat, *, noticed: bool = True) -> None:
        """Restart a worker: it loses all requests and its cache.

        Requests without a first token are routed again, as they may be; the others are cut. The
        strategy is told to forget the worker if the restart is `noticed`.
        """
        lost = [self._placed.pop(job.number) for job in seat.engine.clear()]
        for placed in lost:
            self._booked.pop(placed.booking, None)
        if noticed:
            self.strategy.forget(seat.name)
        for placed in lost:
            outcome = Outcome(ok=False)
            self.strategy.settled(placed.asked.prompt, placed.choice, outcome, self.now)
            seat.load.release(placed.booking, self.now)
        for placed in lost:
            if placed.first_s:
                self.cut.append(placed)
            else:
                job = placed.asked.job
                placed.asked.job = Job(job.number, job.keys, job.prompt_tokens, job.answer_tokens)
                self._arrive(placed.asked)

    def run(self, work: Work) -> list[Placed]:
        """Run a workload; return the requests in the order in which they ended."""
        for talk in work.talks:
            self._ask(talk, 0, talk.at_s)
        events = self._events
        while events:
            self.now, _, what = heappop(events)
            if isinstance(what, PendingTurn):
                self._arrive(what)
            elif isinstance(what, Seat):
                if what.engine.due == self.now:  # else `due` has changed, with an event of its own
                    self._advance(what)
            else:
                what()
        return self.done

    def _ask(self, talk: Talk, place: int, at_s: float) -> None:
        if at_s > self._until_s:
            return
        turn, number = talk.turns[place], next(self._numbers)
        job = Job(number, turn.keys, turn.prompt_tokens, turn.answer_tokens)
        heappush(self._events, (at_s, number, PendingTurn(talk, place, _UNREAD, at_s, job)))

    def _read(self, job: Job) -> Prompt:
        """Return the prompt as the router sees it, without the length of the answer.

        Clients seldom set a limit, so the router expects the mean length of earlier answers.
        """
        answer_tokens = int(self._prompts.estimates.answer_tokens)
        return Prompt(
            *("model", job.prompt_tokens, job.keys if self._reads else (), self._ends),
            answer_tokens=answer_tokens,
            counted=True,
            stream=True,
            blocks={self._size: job.keys},
        )

    def _arrive(self, asked: PendingTurn) -> None:
        if self._about is not None:
            self._about(asked.talk)
        asked.prompt = self._read(asked.job)
        self._decide(asked)

    def _decide(self, asked: PendingTurn) -> None:
        decision = self._rank(asked.prompt)
        if self._hold is None or not self._hold.must_hold(decision, self.now):
            self._place(asked, decision.candidates[0])
        else:
            wait = Wait(asked.at_s, self.now)
            self._hold.enter(asked, asked.prompt, decision, self.now, wait=wait)
            self._note_tick()

    def _rank(self, prompt: Prompt) -> Decision:
        return self.strategy.rank(prompt, self.eligible, self.now)

    def _rank_held(self, held: HeldTurn) -> Decision:
        return self._rank(held.prompt)

    def _release(self) -> None:
        """Place the waiting requests that are due."""
        if self._hold is None or not len(self._hold):
            return
        loads = [seat.load for seat in self.eligible]
        while released := self._hold.release(self._rank_held, self.now, loads):
            held, decision = released
            self._place(held.item, decision.candidates[0])
        self._note_tick()

    def _note_tick(self) -> None:
        if self._hold is not None and len(self._hold) and self._tick_at == inf:
            self._tick_at = self.now + TICK_S
            heappush(self._events, (self._tick_at, next(self._numbers), self._tick))

    def _tick(self) -> None:
        self._tick_at = inf
        self._release()

    def _place(self, asked: PendingTurn, choice: Candidate) -> None:
        """Book a request and send it, as `Pool.book` does."""
        seat = self._named[choice.worker.name]
        prompt, load = asked.prompt, seat.load
        dropped = self._preempt(seat, choice, prompt.keys) if choice.preempts else []
        load.turn = next(self._turns)
        booking = load.book(
            self.now,
            choice.cost.prefill,
            prompt.tokens + prompt.answer_tokens,
            uncached=prompt.tokens - choice.held_tokens + choice.loading.tokens,
            stream=True,
            since=asked.at_s if self._preempts else None,
        )
        computes_from(booking, prompt, choice)
        self.strategy.placed(prompt, seat, self.now)
        placed = Placed(asked, seat, choice, booking, self.now)
        self._placed[asked.job.number] = self._booked[booking] = placed
        due = seat.engine.due
        seat.engine.add(asked.job, self.now)
        if seat.engine.due != due:
            heappush(self._events, (seat.engine.due, next(self._numbers), seat))
        for other in dropped:
            self._decide(other)

    def _preempt(self, seat: Seat, choice: Candidate, keys: Sequence[int]) -> list[PendingTurn]:
        """Drop the requests that give way to the one about to be placed; return them."""
        dropped = list[PendingTurn]()
        for booking in ahead(seat.load, keys, choice.cost.prefill, self.now)[1]:
            placed = self._booked[booking]
            asked = placed.asked
            job = asked.job
            if seat.engine.drop(job):
                self.preempted += 1
                del self._placed[job.number], self._booked[booking]
                kept = drop(booking, placed.choice, asked.prompt.tokens, self.now)
                outcome = Outcome(ok=False, kept_tokens=kept)
                self.strategy.settled(asked.prompt, placed.choice, outcome, self.now)
                if asked.cached_tokens is None:
                    found = job.cached_tokens
                    asked.cached_tokens = placed.choice.held_tokens if found is None else found
                asked.prompt = replace(asked.prompt, resumed=True)
                asked.job = Job(job.number, job.keys, job.prompt_tokens, job.answer_tokens)
                dropped.append(asked)
        return dropped

    def _advance(self, seat: Seat) -> None:
        first, ended = seat.engine.advance(self.now)
        if seat.engine.due < inf:
            heappush(self._events, (seat.engine.due, next(self._numbers), seat))
        for job in first:
            placed = self._placed[job.number]
            placed.first_s = self.now - placed.asked.at_s
            seat.load.first_byte(placed.booking, self.now)
            self._booked.pop(placed.booking, None)
            if self._computed is not None:
                self._computed(placed.asked.prompt, seat)
        for job in ended:
            self._end(self._placed.pop(job.number))
        if first or ended:
            self._release()

    def _end(self, placed: Placed) -> None:
        """Settle a request as `Lease.finished` does; the next turn follows after its think time."""
        asked, seat, booking = placed.asked, placed.seat, placed.booking
        placed.ended_s = self.now - asked.at_s
        tokens, told = asked.prompt.tokens, self.reports(placed)
        cached = placed.choice.held_tokens if told is None else told
        first_byte_s = asked.at_s + placed.first_s - placed.at_s
        outcome = Outcome(
            ok=True,
            first_byte_s=first_byte_s,
            prompt_tokens=tokens,
            cached_tokens=told,
            answer_tokens=asked.job.answer_tokens,
            computed_s=booking.computed_s,
        )
        self.strategy.settled(asked.prompt, placed.choice, outcome, self.now)
        if booking.computed_s is not None and _only_computes(placed.choice):
            seat.pace.observe(tokens - cached, cached, booking.computed_s)
        if asked.cached_tokens is not None:  # what it computed itself before is not a hit
            asked.job.cached_tokens = min(asked.cached_tokens, asked.job.cached_tokens or 0)
        self._prompts.estimates.learn_answer(asked.job.answer_tokens)
        seat.load.release(booking, self.now)
        self.done.append(placed)
        following = asked.place + 1
        if following < len(asked.talk.turns):
            self._ask(asked.talk, following, self.now + asked.talk.turns[following].think_s)


def _honest(placed: Placed) -> int | None:
    return placed.asked.job.cached_tokens


def _only_computes(choice: Candidate) -> bool:
    return not choice.loading.tokens
