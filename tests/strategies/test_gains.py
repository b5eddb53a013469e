"""What a held request knows of the workers by its last decision, without a new one."""

import pytest

from strategies.base import Candidate, Cost, Decision, Prompt
from strategies.held import FULL_LOOK_S, LOOK_S, REMEMBERED, Held
from tests.strategies.desk import Stand


def _held(*costs: Cost) -> tuple[Held[str], list[Stand]]:
    workers = [Stand(f"w{number}") for number in range(len(costs))]
    candidates = [Candidate(*one) for one in zip(workers, costs, strict=True)]
    return Held("r", Prompt("m", 10), 0.0, Decision(candidates, "load"), ""), workers


@pytest.mark.parametrize(
    ("wait", "promised", "other_wait", "other_promised", "gains"),
    [
        (3.0, 0.0, 0.0, 0.0, True),
        (3.0, 0.0, 0.2, 0.0, False),
        (3.0, 0.0, 0.0, 0.2, False),
        (3.0, 0.2, 0.2, 0.0, True),
        (2.9, 0.0, 0.0, 0.0, False),
    ],
)
def test_another_worker_has_become_the_cheapest(
    wait: float, promised: float, other_wait: float, other_promised: float, *, gains: bool
) -> None:
    """By what is booked and promised now; the rest of its cost is as it was, without the wait."""
    held, (best, other) = _held(Cost(wait=2.0, prefill=1.0), Cost(wait=9.0, prefill=4.0))
    best.load.book(0.0, wait, stream=False)
    best.load.promised_s, other.load.promised_s = promised, other_promised
    assert held.gains({other.load: other_wait}, 0.0) is gains


def test_so_has_its_own() -> None:
    """Once that is ready."""
    held, (best,) = _held(Cost(wait=2.0, prefill=1.0))
    assert held.gains({best.load: best.load.wait(2.0)}, 2.0)


def test_only_some_of_the_best_are_remembered() -> None:
    """Any other is compared when it is due."""
    held, workers = _held(*(Cost(wait=9.0) for _ in range(REMEMBERED + 1)))
    workers[0].load.book(0.0, 9.0)
    assert held.gains({workers[REMEMBERED - 1].load: 0.0}, 0.0)
    assert not held.gains({workers[REMEMBERED].load: 0.0}, 0.0)


def test_one_that_lacks_room_gains_by_no_prefill() -> None:
    """It is due sooner instead, as no event tells of room."""
    held, (best, other) = _held(Cost(wait=2.0, room=1.0), Cost(wait=9.0))
    best.load.book(0.0, 9.0)
    assert not held.gains({other.load: 0.0}, 0.0)
    assert held.again == FULL_LOOK_S < LOOK_S
    held.look(Decision([Candidate(other, Cost())], "load"), 1.0)
    assert held.again == 1.0 + LOOK_S


def test_what_its_worker_holds_takes_no_more_room() -> None:
    """Of the tokens that it takes; those of its answer come on top."""
    prompt = Prompt("m", 10, answer_tokens=5)
    choice = Candidate(Stand("w"), Cost(room=1.0), held_tokens=8)
    held = Held("r", prompt, 0.0, Decision([choice], "prefix"), "")
    assert held.tokens == held.lacking == 7
