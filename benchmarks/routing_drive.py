"""The virtual clock: the product's own strategy over simulated workers, event after event.

Every decision goes through `Strategy.rank`, is booked as `router/fleet.py` books it, and is settled
as `router/attempt.py` settles it, with the cached tokens that the simulated worker reports. What a
router learns arrives at once: there is no network here.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

from msgspec import Struct

from benchmarks.routing_work import Talk, Turn, Work
from simulator.profiles import Profile
from simulator.strides import BLOCK_TOKENS, Job, StrideEngine
from strategies.base import Candidate, Outcome, Prompt, Strategy
from strategies.load import Booking, Load
from strategies.pace import Pace

#: Where the blocks of prompts end, in tokens.
ENDS = range(0, 1 << 32, BLOCK_TOKENS)


class Seat:
    """A worker: the engine, and what the router knows of it (a `WorkerView`)."""

    __slots__ = ("engine", "kv_tokens", "load", "name", "pace", "peak")

    def __init__(self, name: str, engine: StrideEngine, kv_tokens: int | None) -> None:
        self.name = name
        self.engine = engine
        self.kv_tokens = kv_tokens
        self.load = Load()
        self.pace = Pace()


class Asked(Struct):
    """One request on its way."""

    talk: Talk
    place: int
    """Of its turn in the talk."""
    prompt: Prompt
    at_s: float
    job: Job
    seat: Seat | None = None
    choice: Candidate | None = None
    booking: Booking | None = None
    first_s: float = -1.0
    """Seconds to the first token."""
    ended_s: float = -1.0
    """Seconds to the last one."""

    @property
    def turn(self) -> Turn:
        """What is asked."""
        return self.talk.turns[self.place]


class Fleet(NamedTuple):
    """How many workers of which kind."""

    profile: Profile
    workers: int = 8
    cache_tokens: int | None = None
    """Tokens of cached prefixes a worker keeps; None for no more than its room for running."""


class Drive:
    """Runs one workload through one strategy."""

    def __init__(self, fleet: Fleet, strategy: Callable[[Sequence[Seat]], Strategy]) -> None:
        """`strategy` makes it; it is shown the seats, which only exact knowledge may look into."""
        self.seats = [_seat(number, fleet) for number in range(fleet.workers)]
        self.strategy = strategy(self.seats)
        self.done: list[Asked] = []
        self.now = 0.0
        self._events: list[tuple[float, int, Seat | Asked]] = []
        self._numbers = count()
        self._turns = count(1)
        self._asked: dict[int, Asked] = {}

    def run(self, work: Work) -> list[Asked]:
        """Run all of it; return the requests in the order of their ends."""
        for talk in work.talks:
            self._ask(talk, 0, talk.at_s)
        events = self._events
        while events:
            self.now, _, what = heappop(events)
            if isinstance(what, Asked):
                self._arrive(what)
            elif what.engine.due == self.now:  # else it was cut short, and is noted anew
                self._advance(what)
        return self.done

    def _ask(self, talk: Talk, place: int, at_s: float) -> None:
        turn, number = talk.turns[place], next(self._numbers)
        prompt = Prompt(
            "model",
            turn.prompt_tokens,
            turn.keys,
            ENDS,
            answer_tokens=turn.answer_tokens,
            counted=True,
            stream=True,
        )
        job = Job(number, turn.keys, turn.prompt_tokens, turn.answer_tokens)
        heappush(self._events, (at_s, number, Asked(talk, place, prompt, at_s, job)))

    def _arrive(self, asked: Asked) -> None:
        decision = self.strategy.rank(asked.prompt, self.seats, self.now)
        self._place(asked, decision.candidates[0])

    def _place(self, asked: Asked, choice: Candidate) -> None:
        """Book it and send it, as `Pool.book` does."""
        seat, prompt = choice.worker, asked.prompt
        assert isinstance(seat, Seat)
        load = seat.load
        load.turn = next(self._turns)
        asked.seat, asked.choice = seat, choice
        asked.booking = load.book(
            self.now,
            choice.cost.prefill,
            prompt.tokens + prompt.answer_tokens,
            stream=True,
            pace_factor=seat.pace.factor,
        )
        self.strategy.placed(prompt, seat, self.now)
        self._asked[asked.job.number] = asked
        due = seat.engine.due
        seat.engine.add(asked.job, self.now)
        if seat.engine.due != due:
            heappush(self._events, (seat.engine.due, next(self._numbers), seat))

    def _advance(self, seat: Seat) -> None:
        first, ended = seat.engine.advance(self.now)
        if seat.engine.due < inf:
            heappush(self._events, (seat.engine.due, next(self._numbers), seat))
        for job in first:
            self._first(self._asked[job.number])
        for job in ended:
            self._end(self._asked.pop(job.number))

    def _first(self, asked: Asked) -> None:
        asked.first_s = self.now - asked.at_s
        assert asked.seat is not None and asked.booking is not None
        asked.seat.load.first_byte(asked.booking, self.now)

    def _end(self, asked: Asked) -> None:
        """Settle it as `Attempt.settle` does; the next turn follows when it was thought of."""
        seat, booking, choice = asked.seat, asked.booking, asked.choice
        assert seat is not None and booking is not None and choice is not None
        asked.ended_s = self.now - asked.at_s
        tokens, cached = asked.prompt.tokens, asked.job.cached_tokens or 0
        outcome = Outcome(
            ok=True, first_byte_s=asked.first_s, prompt_tokens=tokens, cached_tokens=cached
        )
        self.strategy.settled(asked.prompt, choice, outcome, self.now)
        waited = booking.waited_s / booking.pace_factor
        seat.pace.observe(waited + seat.pace.guess(tokens - cached, cached), asked.first_s)
        seat.load.release(booking, self.now)
        self.done.append(asked)
        following = asked.place + 1
        if following < len(asked.talk.turns):
            think_s = asked.talk.turns[following].think_s
            self._ask(asked.talk, following, self.now + think_s)


def _seat(number: int, fleet: Fleet) -> Seat:
    engine = StrideEngine(fleet.profile, cache_tokens=fleet.cache_tokens)
    room = engine.cache.capacity * engine.block_tokens
    return Seat(f"w{number}", engine, room)
