"""The virtual clock: the product's own strategy over simulated workers, event after event.

Every decision goes through `Strategy.rank`, is booked as `router/pool.py` books it, and is settled
as `router/attempt.py` settles it, with the cached tokens that the simulated worker reports. What a
router learns arrives at once: there is no network here.
"""

from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from benchmarks.routing_work import Talk, Work
from router.prompts import Prompts
from simulator.profiles import Profile
from simulator.store import SharedStore
from simulator.strides import BLOCK_TOKENS, Job, StrideEngine
from simulator.tiers import USUAL, Rates, Tiers
from strategies.base import Candidate, Decision, Outcome, Prompt, Strategy
from strategies.load import Booking, Load
from strategies.loads import HARDLY
from strategies.pace import Curve, Pace

#: Where the blocks of prompts end, in tokens, if nothing else is said.
ENDS = range(0, 1 << 32, BLOCK_TOKENS)


class Seat:
    """A worker: the engine, and what the router knows of it (a `WorkerView`)."""

    __slots__ = ("engine", "kv_tokens", "load", "name", "pace", "room_tokens")

    def __init__(self, name: str, engine: StrideEngine) -> None:
        self.name = name
        self.engine = engine
        cache = engine.cache
        self.kv_tokens: int | None = None
        """Nobody tells what it has behind its GPU."""
        self.room_tokens: int | None = cache.room * engine.block_tokens
        """Tokens that running requests may take."""
        self.load = Load()
        self.pace = Pace()


#: In the place of a prompt that has not come yet.
_UNREAD = Prompt("model", 0)


class Asked(Struct):
    """One request, not yet placed."""

    talk: Talk
    place: int
    """Of its turn in the talk."""
    prompt: Prompt
    at_s: float
    job: Job


class Placed(Struct):
    """One request on its worker."""

    asked: Asked
    seat: Seat
    choice: Candidate
    booking: Booking
    at_s: float
    """When it was placed."""
    first_s: float = 0.0
    """Seconds from the client's asking to the first token."""
    ended_s: float = 0.0
    """Seconds from the client's asking to the last one."""


Event = Asked | Seat | Callable[[], None]


class Fleet(NamedTuple):
    """How many workers of which kind."""

    profile: Profile
    workers: int = 8
    cache_tokens: int | None = None
    """Tokens of cached prefixes a worker keeps; None for no more than its room for running."""
    block_tokens: int = BLOCK_TOKENS
    host_tokens: int = 0
    """Tokens of each host's memory behind the GPU, which loads in its time."""
    store_tokens: int = 0
    """Tokens of a store that all of them share."""
    rates: Rates = USUAL
    """How fast they load."""


class Held(Protocol):
    """A request that waits in the router."""

    item: Any


class Hold(Protocol):
    """Late binding, as the drive uses it."""

    def __len__(self) -> int:
        """Requests that are held."""

    def must_hold(self, decision: Decision) -> bool:
        """Whether even the best choice is too busy."""

    def enter(self, item: Any, prompt: Prompt, decision: Decision, now: float) -> Held:  # noqa: ANN401 - the caller's
        """Hold it."""

    def release(
        self, rank: Callable[[Prompt], Decision], now: float, loads: Collection[Load]
    ) -> tuple[Held, Decision] | None:
        """Who is to go now, and where; asked when something has changed, until there is none."""


#: Seconds between two looks at those that are held.
TICK_S = 0.1


class Watch(Protocol):
    """What may know the result before the end: each says whether it is certain."""

    def asked(self, number: int, now: float) -> bool:
        """A request has come, at that second."""

    def begun(self, number: int, first_s: float) -> bool:
        """Its first token, so many seconds later."""


class Drive:
    """Runs one workload through one strategy."""

    def __init__(
        self,
        fleet: Fleet,
        strategy: Callable[[Sequence[Seat]], Strategy],
        hold: Hold | None = None,
        until_s: float = inf,
    ) -> None:
        """`strategy` makes it; it is shown the seats, which only exact knowledge may look into.

        Nobody asks after `until_s`.
        """
        self._hold = hold
        self._until_s = until_s
        self._tick_at = inf
        store = _store(fleet)
        self.seats = [_seat(number, fleet, store) for number in range(fleet.workers)]
        self._ends = range(0, 1 << 32, fleet.block_tokens)
        self._size = fleet.block_tokens
        self._named = {seat.name: seat for seat in self.seats}
        curve = Curve()
        for seat in self.seats:  # as `Pool.change` does
            seat.pace.follow(curve)
        self.strategy = strategy(self.seats)
        # What peers are told beyond what a strategy of ours is.
        self._about: Callable[[Talk], None] | None = getattr(self.strategy, "about", None)
        self._computed: Callable[[Prompt, Seat], None] | None = getattr(
            self.strategy, "computed", None
        )
        self._prompts = Prompts()
        self.done: list[Placed] = []
        self.cut: list[Placed] = []
        """Answers that broke off with their worker."""
        self.now = 0.0
        self.eligible = list(self.seats)
        """Who may be sent requests now."""
        self.reports: Callable[[Placed], int | None] = _honest
        """What a worker says it found cached."""
        self.watch: Watch | None = None
        """Once it is certain, nothing more is simulated."""
        self._over = False
        self._events: list[tuple[float, int, Event]] = []
        self._numbers = count()
        self._turns = count(1)
        self._placed: dict[int, Placed] = {}

    def at(self, at_s: float, change: Callable[[], None]) -> None:
        """Have something happen at that time, before what else happens then."""
        heappush(self._events, (at_s, -next(self._numbers), change))

    def leave(self, seat: Seat) -> None:
        """It gets no more requests; those it has end there."""
        self.eligible.remove(seat)
        self.strategy.forget(seat.name)

    def restart(self, seat: Seat, *, noticed: bool = True) -> None:
        """It loses everything. Requests without a first token go elsewhere, as they may.

        The strategy is told to forget it, unless nobody `noticed`.
        """
        lost = [self._placed.pop(job.number) for job in seat.engine.clear()]
        if noticed:
            self.strategy.forget(seat.name)
        for placed in lost:
            outcome = Outcome(ok=False)
            self.strategy.settled(placed.asked.prompt, placed.choice, outcome, self.now)
            seat.load.release(placed.booking, self.now)
            if placed.first_s:
                self.cut.append(placed)
            else:
                job = placed.asked.job
                placed.asked.job = Job(job.number, job.keys, job.prompt_tokens, job.answer_tokens)
                self._arrive(placed.asked)

    def run(self, work: Work) -> list[Placed]:
        """Run all of it; return the requests in the order of their ends."""
        for talk in work.talks:
            self._ask(talk, 0, talk.at_s)
        events = self._events
        while events and not self._over:
            self.now, _, what = heappop(events)
            if isinstance(what, Asked):
                if self.watch is not None:
                    self._over = self.watch.asked(what.job.number, self.now)
                self._arrive(what)
            elif isinstance(what, Seat):
                if what.engine.due == self.now:  # else it was cut short, and is noted anew
                    self._advance(what)
            else:
                what()
        return self.done

    def _ask(self, talk: Talk, place: int, at_s: float) -> None:
        if at_s > self._until_s:
            return
        turn, number = talk.turns[place], next(self._numbers)
        job = Job(number, turn.keys, turn.prompt_tokens, turn.answer_tokens)
        heappush(self._events, (at_s, number, Asked(talk, place, _UNREAD, at_s, job)))

    def _read(self, job: Job) -> Prompt:
        """Make what the router knows of it. The length of its answer is the engine's secret.

        Clients seldom set a limit, so it is expected to be like those before.
        """
        answer_tokens = int(self._prompts.answer_tokens)
        return Prompt(
            *("model", job.prompt_tokens, job.keys, self._ends),
            answer_tokens=answer_tokens,
            counted=True,
            stream=True,
            blocks={self._size: job.keys},
        )

    def _arrive(self, asked: Asked) -> None:
        if self._about is not None:
            self._about(asked.talk)
        asked.prompt = self._read(asked.job)
        decision = self._rank(asked.prompt)
        if self._hold is None or not self._hold.must_hold(decision):
            self._place(asked, decision.candidates[0])
        else:
            self._hold.enter(asked, asked.prompt, decision, self.now)
            self._note_tick()

    def _rank(self, prompt: Prompt) -> Decision:
        return self.strategy.rank(prompt, self.eligible, self.now)

    def _release(self) -> None:
        """Place those of the held whose time has come."""
        if self._hold is None or not len(self._hold):
            return
        loads = [seat.load for seat in self.eligible]
        while released := self._hold.release(self._rank, self.now, loads):
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

    def _place(self, asked: Asked, choice: Candidate) -> None:
        """Book it and send it, as `Pool.book` does."""
        seat = self._named[choice.worker.name]
        prompt, load = asked.prompt, seat.load
        load.turn = next(self._turns)
        booking = load.book(
            self.now,
            choice.cost.prefill,
            prompt.tokens + prompt.answer_tokens,
            uncached=prompt.tokens - choice.held_tokens + choice.loading.tokens,
            stream=True,
        )
        self.strategy.placed(prompt, seat, self.now)
        self._placed[asked.job.number] = Placed(asked, seat, choice, booking, self.now)
        due = seat.engine.due
        seat.engine.add(asked.job, self.now)
        if seat.engine.due != due:
            heappush(self._events, (seat.engine.due, next(self._numbers), seat))

    def _advance(self, seat: Seat) -> None:
        first, ended = seat.engine.advance(self.now)
        if seat.engine.due < inf:
            heappush(self._events, (seat.engine.due, next(self._numbers), seat))
        for job in first:
            placed = self._placed[job.number]
            placed.first_s = self.now - placed.asked.at_s
            seat.load.first_byte(placed.booking, self.now)
            if self.watch is not None:
                self._over = self.watch.begun(placed.asked.job.number, placed.first_s)
            if self._computed is not None:
                self._computed(placed.asked.prompt, seat)
        for job in ended:
            self._end(self._placed.pop(job.number))
        if first or ended:
            self._release()

    def _end(self, placed: Placed) -> None:
        """Settle it as `Attempt.settle` does; the next turn follows when it was thought of."""
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
        loading = placed.choice.loading.seconds
        if booking.computed_s is not None and loading <= HARDLY * placed.choice.cost.prefill:
            seat.pace.observe(tokens - cached, cached, booking.computed_s)
        self._prompts.learn_answer(asked.job.answer_tokens)
        seat.load.release(booking, self.now)
        self.done.append(placed)
        following = asked.place + 1
        if following < len(asked.talk.turns):
            self._ask(asked.talk, following, self.now + asked.talk.turns[following].think_s)


def _store(fleet: Fleet) -> SharedStore[int] | None:
    blocks = fleet.store_tokens // fleet.block_tokens
    return SharedStore(blocks) if blocks else None


def _seat(number: int, fleet: Fleet, store: SharedStore[int] | None) -> Seat:
    size = fleet.block_tokens
    tiers = None
    if fleet.host_tokens or store is not None:
        tiers = Tiers(size, fleet.host_tokens // size, store, fleet.rates)
    engine = StrideEngine(
        fleet.profile, cache_tokens=fleet.cache_tokens, block_tokens=size, tiers=tiers
    )
    return Seat(f"w{number}", engine)


def _honest(placed: Placed) -> int | None:
    return placed.asked.job.cached_tokens
