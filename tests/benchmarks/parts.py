"""The parts that make a good choice, and how to remove each of them."""

from collections.abc import Callable
from typing import Any

import pytest

from strategies.api import Candidate, Outcome, Prompt
from strategies.cost import cost, demand, load, preemption
from strategies.cost.booking import Booking
from strategies.cost.load import Load
from strategies.cost.prefill import Pace
from strategies.hold.queue import Queue
from strategies.policies.prefix_aware import PrefixAware
from strategies.prefix.lru import Shadow
from strategies.prefix.match import NOT_WANTED, Match
from strategies.prefix.tree import PrefixTree

Without = Callable[[pytest.MonkeyPatch], None]


def without_wait(patch: pytest.MonkeyPatch) -> None:
    """Queues are not seen."""
    patch.setattr(Load, "wait", lambda *_: 0.0)


def without_decode(patch: pytest.MonkeyPatch) -> None:
    """Decoding requests are not seen."""
    patch.setattr(cost, "DECODE_S", 0.0)
    patch.setattr(cost, "CROWD", 0.0)


def without_price(patch: pytest.MonkeyPatch) -> None:
    """Prefill costs later requests nothing."""
    patch.setattr(demand, "PRICE", 0.0)
    patch.setattr(demand, "LEAST_PRICE", 0.0)


def without_preemption(patch: pytest.MonkeyPatch) -> None:
    """A prompt that was sent keeps its worker."""
    patch.setattr(preemption, "gives_way", lambda *_, **__: False)


def without_home(patch: pytest.MonkeyPatch) -> None:
    """It does not matter that a session's later turns will return to the same worker."""
    patch.setattr(cost, "HOME", 0.0)
    patch.setattr(cost, "FULL_FROM", 9.0)


def without_full(patch: pytest.MonkeyPatch) -> None:
    """It does not matter how full a worker's KV cache has been."""
    patch.setattr(cost, "FULL_FROM", 9.0)


def without_room(patch: pytest.MonkeyPatch) -> None:
    """A request never waits for room in a full KV cache."""
    patch.setattr(Load, "stay_s", property(lambda _: 0.0, lambda *_: None), raising=False)


def without_use(patch: pytest.MonkeyPatch) -> None:
    """A prefix already in use is counted again for each new request."""
    patch.setattr(Match, "in_use", lambda *_: 0.0)


def without_copies(patch: pytest.MonkeyPatch) -> None:
    """No more copies of a prefix are wanted, however many requests share it."""
    patch.setattr(Match, "wanted", lambda *_: NOT_WANTED)


def without_turns(patch: pytest.MonkeyPatch) -> None:
    """Ties go to the first in the list."""
    patch.setattr(Load, "turn", property(lambda _: 0, lambda *_: None), raising=False)


def without_pace(patch: pytest.MonkeyPatch) -> None:
    """All workers are as fast as the initial guess."""
    patch.setattr(Pace, "observe", lambda *_: None)


def without_lateness(patch: pytest.MonkeyPatch) -> None:
    """It does not matter how late a worker's oldest prompt is."""
    for module in (load, preemption):
        patch.setattr(module, "late_s", lambda *_: 0.0)


def without_waiting(patch: pytest.MonkeyPatch) -> None:
    """Requests that are held are not counted as users of their prefix."""
    patch.setattr(PrefixTree, "wait", lambda *_: bool)


def without_booking(patch: pytest.MonkeyPatch) -> None:
    """A request counts only from its first byte: never as prefill."""
    booked = Load.book

    def late(self: Load, now: float, prefill_s: float, kv_tokens: int = 0, **more: Any) -> Booking:
        return booked(self, now, 0.0, 0, stream=more["stream"])

    without_lateness(patch)
    patch.setattr(Load, "book", late)


def without_holding(patch: pytest.MonkeyPatch) -> None:
    """Requests are never held in the router."""
    patch.setattr(Queue, "must_hold", staticmethod(lambda *_: False))


def without_order(patch: pytest.MonkeyPatch) -> None:
    """Requests are computed in the order in which they come."""
    without_holding(patch)
    without_preemption(patch)


def without_prefixes(patch: pytest.MonkeyPatch) -> None:
    """No worker is credited with a prefix."""
    patch.setattr(Match, "held", lambda *_: {})


def without_placements(patch: pytest.MonkeyPatch) -> None:
    """A prompt counts as held only once its answer has ended."""
    placed, settled = PrefixAware.placed, PrefixAware.settled

    def later(
        self: PrefixAware, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float
    ) -> None:
        placed(self, prompt, candidate.worker, now)
        settled(self, prompt, candidate, outcome, now)

    patch.setattr(PrefixAware, "placed", lambda *_: None)
    patch.setattr(PrefixAware, "settled", later)


def without_forgetting(patch: pytest.MonkeyPatch) -> None:
    """A restarted worker is believed to hold what it held before."""
    patch.setattr(PrefixAware, "forget", lambda *_: None)


def without_correction(patch: pytest.MonkeyPatch) -> None:
    """Reported cached tokens teach nothing."""
    patch.setattr(PrefixTree, "correct", lambda *_, **__: None)


def without_bounds(patch: pytest.MonkeyPatch) -> None:
    """What is believed to be held only ever grows."""
    patch.setattr(Shadow, "shrink", lambda *_, **__: 0)
