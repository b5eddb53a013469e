"""A fleet that has not finished an answer yet: what its first bytes tell about the wait."""

from collections.abc import Sequence

import pytest

from strategies.base import Candidate, Prompt
from strategies.cost import Costs
from strategies.load import Load
from strategies.pace import Curve, Pace
from tests.strategies.untold import Stand

PROMPT = Prompt("any", 8000)


@pytest.fixture
def workers() -> list[Stand]:
    """Two workers of one pool, each computing an equal prompt."""
    curve = Curve()
    found = [Stand(name, pace=Pace(curve)) for name in "ab"]
    for worker in found:
        worker.load.book(0.0, worker.pace.prefill(8000, 0))
    return found


def waits(workers: Sequence[Stand], now: float) -> list[float]:
    """The wait of a prompt on each worker."""
    ranked: Sequence[Candidate] = Costs().rank(PROMPT, workers, now)
    return [c.cost.wait for c in sorted(ranked, key=lambda c: c.worker.name)]


def test_the_first_answer_tells_when_the_others_begin(workers: list[Stand]) -> None:
    """It came after half of the time that was expected, margin aside, so the others are due."""
    first, other = workers
    predicted = other.pace.prefill(8000, 0)
    half = first.pace.curve.seconds(8000, 0) / 2
    before = waits(workers, half)
    assert before == pytest.approx([predicted - half] * 2)
    first.load.first_byte(next(iter(first.load.pending)), half)
    first.pace.began(8000, 0, half)
    assert waits(workers, half) == pytest.approx([0.0, predicted / 2 - half])
    assert other.pace.prefill(8000, 0) == predicted, "nothing is learned about how fast they are"


def test_once_an_answer_has_ended_predictions_count_again(workers: list[Stand]) -> None:
    """What is booked from then on is predicted by what it showed."""
    first, other = workers
    half = first.pace.curve.seconds(8000, 0) / 2
    first.pace.began(8000, 0, half)
    first.pace.observe(8000, 0, half)
    left = [worker.load.wait(half) for worker in (first, other)]
    assert waits(workers, half) == pytest.approx(left)


@pytest.mark.parametrize("tokens", [500, 8000, 24_000])
@pytest.mark.parametrize("booked", [8000, 24_000, 60_000])
def test_however_much_is_booked_it_ends_as_soon(tokens: int, booked: int) -> None:
    """Also where it is so much that it might give way to a shorter prompt, but may not."""
    pace = Pace()
    load = Load()
    for _ in range(2):
        load.book(0.0, pace.prefill(booked, 0))
    pace.began(8000, 0, 0.6 * pace.curve.seconds(8000, 0))
    cost = Costs().rank(Prompt("any", tokens), [Stand("a", load, pace)], 0.0)[0].cost
    assert cost.wait == pytest.approx(0.6 * 2 * pace.prefill(booked, 0))


def test_each_pool_goes_by_its_own_answers(workers: list[Stand]) -> None:
    """Workers of another pool are cold as well, but nothing is known of those."""
    curve = Curve()
    others = [Stand(name, pace=Pace(curve)) for name in "cd"]
    for other in others:
        other.load.book(0.0, other.pace.prefill(8000, 0))
    workers[0].pace.began(8000, 0, curve.seconds(8000, 0) / 2)
    left = waits([*workers, *others], 0.0)
    whole = others[0].pace.prefill(8000, 0)
    assert left == pytest.approx([whole / 2, whole / 2, whole, whole])
