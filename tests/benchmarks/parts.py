"""The parts that a good choice is made of, and how to do without each."""

from collections.abc import Callable
from typing import Any

import pytest

from strategies import cost, demand
from strategies.base import Candidate, Outcome, Prompt
from strategies.latebinding import LateBinding
from strategies.load import Booking, Load
from strategies.match import NOT_WANTED, Match
from strategies.pace import Pace
from strategies.prefixaware import PrefixAware
from strategies.prefixtree import PrefixTree
from strategies.shadow import Shadow

Without = Callable[[pytest.MonkeyPatch], None]


def without_wait(patch: pytest.MonkeyPatch) -> None:
    """Nobody sees what is queued."""
    patch.setattr(Load, "wait", lambda *_: 0.0)


def without_decode(patch: pytest.MonkeyPatch) -> None:
    """Nobody sees who answers."""
    patch.setattr(cost, "DECODE_S", 0.0)
    patch.setattr(cost, "CROWD", 0.0)


def without_price(patch: pytest.MonkeyPatch) -> None:
    """Prefill costs those who come nothing."""
    patch.setattr(demand, "PRICE", 0.0)
    patch.setattr(demand, "LEAST_PRICE", 0.0)


def without_home(patch: pytest.MonkeyPatch) -> None:
    """Where a session begins is not where its turns will be."""
    patch.setattr(cost, "HOME", 0.0)
    patch.setattr(cost, "FULL", 0.0)


def without_full(patch: pytest.MonkeyPatch) -> None:
    """Where it has been full is as good as anywhere."""
    patch.setattr(cost, "FULL", 0.0)


def without_room(patch: pytest.MonkeyPatch) -> None:
    """A full KV cache keeps nobody waiting."""
    patch.setattr(Load, "stay_s", property(lambda _: 0.0, lambda *_: None))


def without_use(patch: pytest.MonkeyPatch) -> None:
    """A prefix that is in use counts again for each who comes."""
    patch.setattr(Match, "in_use", lambda *_: 0.0)


def without_copies(patch: pytest.MonkeyPatch) -> None:
    """What many ask for is wanted where it lies, and nowhere else."""
    patch.setattr(Match, "wanted", lambda *_: NOT_WANTED)


def without_turns(patch: pytest.MonkeyPatch) -> None:
    """Equals are taken in the order of the list."""
    patch.setattr(Load, "turn", property(lambda _: 0, lambda *_: None))


def without_pace(patch: pytest.MonkeyPatch) -> None:
    """All workers are as fast as was guessed."""
    patch.setattr(Pace, "observe", lambda *_: None)


def without_booking(patch: pytest.MonkeyPatch) -> None:
    """What was sent counts once its first byte is there: never as prefill."""
    booked = Load.book

    def late(self: Load, now: float, prefill_s: float, kv_tokens: int = 0, **more: Any) -> Booking:
        return booked(self, now, 0.0, 0, stream=more["stream"])

    patch.setattr(Load, "book", late)


def without_holding(patch: pytest.MonkeyPatch) -> None:
    """Everybody is bound at once."""
    patch.setattr(LateBinding, "must_hold", staticmethod(lambda _: False))


def without_prefixes(patch: pytest.MonkeyPatch) -> None:
    """Nobody holds anything."""
    patch.setattr(Match, "held", lambda *_: {})


def without_placements(patch: pytest.MonkeyPatch) -> None:
    """What was sent somewhere is known to be there when its answer is."""
    placed, settled = PrefixAware.placed, PrefixAware.settled

    def later(
        self: PrefixAware, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float
    ) -> None:
        placed(self, prompt, candidate.worker, now)
        settled(self, prompt, candidate, outcome, now)

    patch.setattr(PrefixAware, "placed", lambda *_: None)
    patch.setattr(PrefixAware, "settled", later)


def without_forgetting(patch: pytest.MonkeyPatch) -> None:
    """A worker that starts anew is believed to hold what it held."""
    patch.setattr(PrefixAware, "forget", lambda *_: None)


def without_correction(patch: pytest.MonkeyPatch) -> None:
    """Reported tokens teach nothing."""
    patch.setattr(PrefixTree, "correct", lambda *_, **__: None)


def without_bounds(patch: pytest.MonkeyPatch) -> None:
    """What is believed to be held only grows."""
    patch.setattr(Shadow, "shrink", lambda *_, **__: 0)
