"""Which requests of a soak count as lost or sent twice, and how fast a value grows."""

import pytest

from benchmarks.soak.fleet import RECOVERY_S, Book, Timeline, book
from benchmarks.soak.judge import End, Failure, Twice, after_warm_up, asked_twice, lost, slope
from benchmarks.soak.worker import Entry

SENT, ENDED = 100.0, 101.0
LONG_BEFORE = SENT - RECOVERY_S - 1


def failure(number: int = 7, worker: str = "") -> Failure:
    """Return a request that got a 5xx."""
    return Failure(number, SENT, ENDED, End.FAILED, 503, "no_worker", worker, "")


def well(since: float, until: float | None = None) -> Timeline:
    """Return a worker's timeline with one spell of health."""
    timeline = Timeline()
    timeline.well(since)
    if until is not None:
        timeline.unwell(until)
    return timeline


def worker(
    timeline: Timeline,
    *entries: tuple[int, bool],
    name: str = "one",
    stays: bool = True,
    at: float = SENT,
) -> Book:
    """Return a worker that has read these requests."""
    read = [Entry(number, refused, at) for number, refused in entries]
    return book(name, timeline, read, stays=stays)


def is_lost(*books: Book, named: str = "") -> bool:
    """Return whether a failed request counts as lost."""
    return bool(lost([failure(worker=named)], books))


def test_nobody_read_it_and_somebody_could_have() -> None:
    """A request that no worker read, while one was well, is lost."""
    assert is_lost(worker(well(LONG_BEFORE)))


def test_nobody_could_have_answered() -> None:
    """It is not lost if no worker was well throughout, or if one joined only just before."""
    assert not is_lost(worker(well(LONG_BEFORE, until=SENT + 0.5)))
    assert not is_lost(worker(well(SENT - 1)))
    assert not is_lost(worker(Timeline()))


def test_a_guest_saves_nobody() -> None:
    """A worker that comes and goes with reloads cannot be counted on."""
    assert not is_lost(worker(well(LONG_BEFORE), stays=False))


def test_a_refusal_is_no_excuse() -> None:
    """A request that was read and answered with 503 counts as never read."""
    full = worker(Timeline(), (7, True), name="full")
    assert is_lost(full, worker(well(LONG_BEFORE)))


def test_a_worker_that_failed_may_have_begun() -> None:
    """A request read by a worker that then failed must not be sent to another one."""
    failed = worker(well(LONG_BEFORE, until=SENT + 0.5), (7, False), name="failed")
    assert not is_lost(failed, worker(well(LONG_BEFORE)))


def test_a_worker_that_was_well_would_have_answered() -> None:
    """If the worker that read it stayed well, the failure is the router's."""
    assert is_lost(worker(well(LONG_BEFORE), (7, False)))


def test_what_a_killed_worker_never_read() -> None:
    """If the answer names a worker that was killed meanwhile, it is unknown whether that one read
    it."""
    killed = worker(well(LONG_BEFORE, until=SENT + 0.5), name="killed")
    killed.timeline.blind(SENT + 0.5, SENT + 0.6)
    other = worker(well(LONG_BEFORE))
    assert not is_lost(killed, other, named="killed")
    assert is_lost(killed, other, named="one")
    assert is_lost(killed, other)


def test_a_kill_long_ago_is_no_excuse() -> None:
    """A kill counts only if it happened during the request."""
    killed = worker(Timeline(), name="killed")
    killed.timeline.blind(SENT - 5, SENT - 4)
    assert is_lost(killed, worker(well(LONG_BEFORE)), named="killed")


def test_asked_twice() -> None:
    """Two workers read the request and did not refuse it."""
    one = worker(Timeline(), (1, False), (2, False), (3, True), (4, False), at=SENT + 0.1)
    other = worker(Timeline(), (2, False), (3, False), (4, True), (5, False), name="other")
    assert asked_twice([one, other]) == [Twice(2, "other", "one", died=False)]


@pytest.mark.parametrize(("death", "died"), [(SENT + 0.05, True), (SENT - 1, False), (101, False)])
def test_asked_again_after_a_death(death: float, *, died: bool) -> None:
    """It counts as died only if the first was killed between its read and the second's."""
    one = worker(Timeline(), (2, False))
    one.timeline.died(death, death + 0.01)
    other = worker(Timeline(), (2, False), name="other", at=SENT + 0.1)
    assert asked_twice([other, one]) == [Twice(2, "one", "other", died=died)]


def test_a_line_has_its_slope() -> None:
    """Exact without noise; 0 without two points, or without time between them."""
    assert slope([(at, 3 + 0.5 * at) for at in range(10)]) == pytest.approx(0.5)
    assert slope([(1.0, 2.0)]) == 0
    assert slope([(1.0, 2.0), (1.0, 4.0)]) == 0


def test_the_warm_up_is_left_out() -> None:
    """The first quarter of the time is dropped, not of the points."""
    points = [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (25.0, 2.0), (100.0, 3.0)]
    assert after_warm_up(points) == [(25.0, 2.0), (100.0, 3.0)]
    assert after_warm_up([]) == []
