"""Where all workers hold most of a prompt, those that are held are sent before those that come."""

import pytest

from strategies.base import NO_LOADING, Candidate, Cost, Decision, Prompt
from strategies.latebinding import ALIKE_READY_S, READY_S, READY_TOKENS, LateBinding
from strategies.preemption import STEP_S
from strategies.ranking import Ranking, Row, ordered_as
from tests.strategies.placing import Stand, fleet

TOKENS = 10_000
PREFILL_S = 0.2


class Desk:
    """Two workers that both have so many seconds of prefill, in more than a few steps."""

    def __init__(self, wait: float) -> None:
        self.workers = fleet(2)
        self.binding: LateBinding[str] = LateBinding()
        self.now = 0.0
        self.decided = 0
        """Number of decisions so far."""
        for worker in self.workers:
            worker.load.book(0.0, wait, uncached=10 * READY_TOKENS)

    def rank(self, prompt: Prompt) -> Decision:
        """Rank by wait; only the second worker holds prompts for the model `one`."""
        self.decided += 1
        rows = [self._row(place, worker, prompt) for place, worker in enumerate(self.workers)]
        return Decision(Ranking(rows, TOKENS), "prefix")

    def _row(self, place: int, worker: Stand, prompt: Prompt) -> Row:
        held = TOKENS - 1_000 if place or prompt.model == "all" else 0
        wait = worker.load.wait(self.now) + worker.load.promised_s
        rest = 0.0, 0.0, 0.0, 0.0, held, NO_LOADING, 0
        return wait + PREFILL_S, wait, worker.load.turn, place, worker, PREFILL_S, *rest

    def come(self, name: str, model: str = "all") -> bool:
        """Let a request arrive; return whether it is held."""
        prompt = Prompt(model, TOKENS)
        decision = self.rank(prompt)
        if not self.binding.must_hold(prompt, decision, self.now):
            return False
        self.binding.enter(name, prompt, decision, self.now)
        return True

    def released(self) -> str | None:
        """Return the request that is released now."""
        loads = [worker.load for worker in self.workers]
        found = self.binding.release(self.rank, self.now, loads)
        return found[0].item if found is not None else None


def test_who_is_held_goes_when_one_that_comes_would_be_sent() -> None:
    """Otherwise all that come later go before it, for as long as workers always have a queue."""
    desk = Desk(ALIKE_READY_S + 0.1)
    assert desk.come("first")
    assert desk.released() is None
    desk.now = 0.2
    assert not Desk(ALIKE_READY_S - 0.1).come("later")
    assert desk.released() == "first"


def test_others_are_held_as_ever() -> None:
    """Those of which not all workers hold most are sent to a worker that is about to be free."""
    desk = Desk(ALIKE_READY_S + 0.1)
    assert desk.come("other", "one")
    assert desk.come("first")
    desk.now = 0.2
    assert desk.released() == "first"
    decided = desk.decided
    desk.now = ALIKE_READY_S + 0.09 - READY_S
    assert desk.released() is None
    assert desk.decided == decided, "it is not decided anew in vain"
    desk.now = ALIKE_READY_S + 0.11 - READY_S
    assert desk.released() == "other"


@pytest.mark.parametrize(("alike", "ready_s"), [(True, ALIKE_READY_S), (False, READY_S)])
def test_a_longer_queue_is_none(ready_s: float, *, alike: bool) -> None:
    """Nor if some of it gives way, or if much of it is only promised there and the rest is computed
    in one step."""

    def held(wait: float, preempts: int = 0) -> bool:
        choice = Candidate(there, Cost(wait=wait, prefill=1.0), preempts=preempts, alike=alike)
        return LateBinding.must_hold(Prompt("m", TOKENS), Decision([choice], "prefix"), 0.0)

    there = Stand("a")
    assert not held(ready_s + STEP_S, preempts=1)
    assert held(ready_s + STEP_S + 0.01, preempts=1)
    there.load.promises = [(0.0, ready_s)]
    assert not held(ready_s + 0.1)
    there.load.promises = [(0.0, ready_s + 0.01)]
    assert held(ready_s + 0.1)


def test_only_the_first_candidate_says_so() -> None:
    """Whichever way it is accessed, and not one that another was put before."""
    candidates = Desk(1.0).rank(Prompt("all", TOKENS)).candidates
    for listed in (candidates[:2], candidates[:], list(candidates), [candidates[0], candidates[1]]):
        assert [one.alike for one in listed] == [True, False]
    assert [one.alike for one in candidates[1:]] == [False]
    assert isinstance(candidates, Ranking)
    led = candidates.led_by("w1")
    assert led is not None
    assert not any(one.alike for one in led)


def test_it_says_so_in_another_order_as_well() -> None:
    """As of `kvaware` with a threshold: the first in that order says it, and no other."""
    desk = Desk(1.0)
    candidates = desk.rank(Prompt("all", TOKENS)).candidates
    for other in (candidates, candidates[::-1]):
        ordered = ordered_as(candidates, other)
        assert [one.worker for one in ordered] == [one.worker for one in other]
        assert [one.alike for one in ordered] == [True, False]
    rest = desk.rank(Prompt("one", TOKENS)).candidates
    assert not any(one.alike for one in ordered_as(rest, rest[::-1]))
