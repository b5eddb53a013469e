"""Which worker is stuck, what waits there in vain, and where it would do better."""

from math import inf

from strategies.api import FREE, Candidate, Cost, Decision, Prompt
from strategies.cost.load import Load
from strategies.cost.prefill import Curve, Pace
from strategies.hold.stuck import better, hangs, stranded
from tests.strategies.workers import untold

PROMPT = Prompt("m", 1000, stream=True)


def known() -> Pace:
    """The pace of a worker in a pool that has answered."""
    curve = Curve()
    curve.seen = 1
    return Pace(curve)


def stuck_at(prefill_s: float, pace: Pace) -> float:
    """Return after how many seconds a worker counts as stuck that computes one such prompt."""
    load = Load()
    both = [load.book(0.0, prefill_s), load.book(1.0, 1.0)]
    for tenths in range(100_000):
        now = tenths / 10
        if hangs(load, pace, now):
            assert stranded(load, pace, now) == both
            return now
        assert stranded(load, pace, now) == []
    return inf


def test_a_worker_is_stuck_if_its_oldest_prompt_is_very_late() -> None:
    """By some seconds, and by several times as long as it should have taken."""
    short, long = stuck_at(1.0, known()), stuck_at(50.0, known())
    assert 5.0 < short < 20.0
    assert 3 * 50.0 < long < 10 * 50.0


def test_a_pace_that_is_only_guessed_may_be_far_off() -> None:
    """Before any answer, an engine may just be slow."""
    assert stuck_at(1.0, Pace()) > 20.0
    assert stuck_at(1.0, Pace()) < inf


def test_who_is_not_stuck() -> None:
    """A worker with nothing to do, with an answer in one piece, or with a prompt of which another
    process would hear."""
    assert not hangs(Load(), known(), 1000.0)
    load = Load()
    load.book(0.0, 1.0, stream=False)
    assert stranded(load, known(), 1000.0) == []
    load.book(0.0, 1.0, elsewhere=True)
    assert stranded(load, known(), 1000.0) == []


def test_the_next_one_does_not_wait_for_so_long_again() -> None:
    """Once the oldest was moved, those that waited behind it are stranded as it was; those that
    come later are not, until they are as late themselves."""
    load = Load()
    first, second = load.book(0.0, 1.0), load.book(2.0, 1.0)
    load.moved(20.0)
    load.drop(first, 20.0, 0.0)
    third = load.book(21.0, 1.0)
    assert stranded(load, known(), 22.0) == [second]
    assert not hangs(load, known(), 22.0)
    load.release(second, 22.0)
    assert stranded(load, known(), 25.0) == []
    assert stranded(load, known(), 60.0) == [third]


def test_an_answer_that_begins_shows_that_it_is_not_stuck() -> None:
    """Nor does a worker count as stuck for ever."""
    load = Load()
    first, second = load.book(0.0, 1.0), load.book(0.0, 1.0)
    load.moved(20.0)
    load.drop(first, 20.0, 0.0)
    assert stranded(load, known(), 21.0) == [second]
    load.answers()
    assert stranded(load, known(), 21.0) == []
    other = Load()
    old = other.book(0.0, 1_000.0)
    other.book(0.0, 1_000.0)
    other.moved(9_000.0)
    other.drop(old, 9_000.0, 0.0)
    assert stranded(other, known(), 9_005.0)
    assert stranded(other, known(), 9_500.0) == []


def late() -> Candidate:
    """The choice of a worker that is very late by 22: it costs 5 s besides."""
    stand = untold("late")
    stand.load.book(0.0, 2.0)
    return Candidate(stand, Cost(wait=100.0, prefill=2.0, price=3.0))


def goes(cost: Cost, *, preempts: int = 0, uncached: int = 0) -> bool:
    """Whether a request moves to a worker that costs so much, with so many tokens booked."""
    stand = untold("other")
    if uncached:
        stand.load.book(21.0, 1.0, uncached)
    best = Candidate(stand, cost, preempts=preempts)
    found = better(late(), Decision([best], "cold"), 22.0)
    assert found in (None, best)
    return found is not None


def test_it_moves_where_it_does_better() -> None:
    """Than where it is: it is taken to wait there as long again, and what it cost besides counts.
    The wait of the decision with which it was sent is long past."""
    there = late()
    stays = there.worker.load.late(22.0) + there.cost.total - there.cost.wait
    assert goes(Cost(prefill=stays - 0.1))
    assert not goes(Cost(prefill=stays + 0.1))


def test_it_moves_only_where_it_is_taken_at_once() -> None:
    """Not into another queue, nor where there is no room, nor before others."""
    assert not goes(Cost(wait=1.0, prefill=1.0), uncached=20_000)
    assert not goes(Cost(prefill=1.0, room=0.1))
    assert not goes(Cost(prefill=1.0), preempts=1)
    assert not goes(FREE), "a strategy that does not compare could send it back"
