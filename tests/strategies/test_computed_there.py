"""A prompt is hardly ever held where most of the same prompt is just being computed."""

import pytest

from strategies.base import Candidate, Cost, Decision, Prompt
from strategies.latebinding import OWN_READY_S, READY_S, READY_TOKENS, LateBinding
from strategies.preemption import MOSTLY, computes_most
from tests.strategies.placing import Run, Stand, fleet, prompt

COMMON = tuple(range(8))
#: The common beginning, and two blocks of its own.
ASKED = (*COMMON, 100, 101)


def computing(keys: tuple[int, ...] = COMMON, held_blocks: int = 0) -> Stand:
    """Return a worker that computes these blocks, of which it has held some before."""
    stand = Stand("a")
    booking = stand.load.book(0.0, 1.0, uncached=READY_TOKENS + 1)
    booking.keys, booking.held_blocks = keys, held_blocks
    return stand


@pytest.mark.parametrize(
    ("keys", "held_blocks", "most"),
    [
        (COMMON, 0, True),
        (COMMON, 2, True),
        (COMMON, 3, False),
        (COMMON[:7], 0, False),
        ((*COMMON[:7], 55), 0, False),
        ((*COMMON, 55, 56), 0, True),
        ((), 0, False),
    ],
    ids=["all", "less", "half", "too short", "another end", "longer", "nothing"],
)
def test_most_of_it(keys: tuple[int, ...], held_blocks: int, *, most: bool) -> None:
    """Three quarters of it, of which the worker holds at most one when it begins."""
    assert MOSTLY == 0.75
    assert computes_most(computing(keys, held_blocks).load, ASKED) == most


def test_nothing_is_known_of_a_prompt_without_keys() -> None:
    """As of one that no strategy looks at."""
    assert not computes_most(computing(()).load, ())
    assert not computes_most(computing().load, ())


def test_it_need_not_be_the_first_in_the_queue() -> None:
    """Another prompt may be computed before; once its own is computed, nothing is."""
    stand = Stand("a")
    stand.load.book(0.0, 1.0)
    booking = stand.load.book(0.0, 1.0)
    booking.keys = COMMON
    assert computes_most(stand.load, ASKED)
    stand.load.first_byte(booking, 1.0)
    assert not computes_most(stand.load, ASKED)


@pytest.mark.parametrize(("keys", "ready_s"), [(ASKED, OWN_READY_S), ((77,) * 10, READY_S)])
def test_it_is_held_if_that_takes_long(keys: tuple[int, ...], ready_s: float) -> None:
    """It waits there in any case, and the others of its kind are done no sooner elsewhere."""

    def held(wait: float, room: float = 0.0) -> bool:
        choice = Candidate(computing(), Cost(wait=wait, prefill=0.1, room=room))
        return LateBinding.must_hold(Prompt("m", 10_000, keys), Decision([choice], "prefix"), 0.0)

    assert not held(ready_s)
    assert held(ready_s + 0.01)
    assert held(ready_s, room=0.1)


def test_not_before_those_that_are_held_for_it() -> None:
    """Where more comes than is computed, those with least need go first, in whatever order they
    came."""
    there = computing()
    choice = Candidate(there, Cost(wait=OWN_READY_S, prefill=0.1))
    asked, decision = Prompt("m", 10_000, ASKED), Decision([choice], "prefix")
    there.load.promised_s, there.load.promises = READY_S, [(9.0, READY_S)]
    assert not LateBinding.must_hold(asked, decision, 0.0)
    there.load.promised_s, there.load.promises = READY_S + 0.01, [(9.0, READY_S + 0.01)]
    assert LateBinding.must_hold(asked, decision, 0.0)


@pytest.mark.parametrize("strategy", ["prefixaware", "kvaware"])
def test_a_fleet_that_starts_with_one_prompt_for_all(strategy: str) -> None:
    """None of those that come while it is computed is held, and they go round."""
    workers = fleet(4)
    run = Run(strategy, workers)
    common = "what all requests begin with " * 700
    for n in range(16):
        asked = prompt(f"{common} {n}")
        decision = run.strategy.rank(asked, workers, 0.01 * n)
        assert not LateBinding.must_hold(asked, decision, 0.01 * n)
        choice = decision.candidates[0]
        load = choice.worker.load
        lacks = asked.tokens - choice.held_tokens
        booking = load.book(0.01 * n, choice.cost.prefill, asked.tokens, uncached=lacks)
        booking.keys = asked.keys
        booking.held_blocks = asked.blocks_in(choice.held_tokens)
        load.turn = n
        run.strategy.placed(asked, choice.worker, 0.01 * n)
    assert sorted(worker.load.in_flight for worker in workers) == [3, 4, 4, 5]
