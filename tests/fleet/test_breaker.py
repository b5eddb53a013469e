"""When a worker is ejected, for how long, and how it comes back."""

import pytest

from router.fleet.breaker import BreakerState
from router.settings.fleet import EjectionSettings
from tests.fleet.breakers import Pool, fail, work


@pytest.mark.parametrize(
    ("status", "resets", "counts"),
    [
        (200, True, False),
        (307, True, False),
        (400, False, False),
        (404, False, False),
        (429, False, False),
        (500, False, True),
        (501, False, False),
        (503, False, False),
        (504, False, True),
        (None, False, False),
    ],
)
def test_what_a_status_says(status: int | None, resets: bool, counts: bool) -> None:
    """A success resets the count, the worker's own errors add to it; anything else, or a client
    that has left, is neutral."""
    pool = Pool(2)
    fail(pool[0], 0, 2)
    mark = pool[0].began(0)
    if status is None:
        pool[0].neutral(mark)
    else:
        pool[0].answered(0, mark, status)
    assert pool.out() == ([0] if counts else [])
    if not counts:
        fail(pool[0], 0)
        assert pool.out() == ([] if resets else [0])


def test_each_time_is_twice_as_long_up_to_the_longest() -> None:
    """10, 20, 40, then 60 seconds, and 60 again."""
    pool, now = Pool(2), 0.0
    fail(pool[0], now, 3)
    spans = []
    for _ in range(5):
        spans.append(pool[0].until - now)
        now = pool[0].until
        fail(pool[0], now)
    assert spans == [10, 20, 40, 60, 60]


@pytest.mark.parametrize(("closed_for", "span"), [(59, 20), (60, 10)])
def test_the_time_starts_anew_after_a_long_good_time(closed_for: float, span: float) -> None:
    """After `longest` seconds without an ejection the duration starts again at `first`."""
    pool = Pool(2)
    fail(pool[0], 0, 3)
    work(pool[0], 10)
    now = 10 + closed_for
    fail(pool[0], now, 3)
    assert pool[0].until - now == span


def test_after_its_time_there_is_one_trial() -> None:
    """Listing the worker leaves the trial open; sending it a request uses it until it reports."""
    pool = Pool(2)
    fail(pool[0], 0, 3)
    assert pool.admitted(9.9) == [1]
    assert pool.admitted(10) == pool.admitted(11) == [0, 1]
    trial = pool[0].began(11)
    assert pool.admitted(11) == pool.admitted(12) == [1]
    assert pool[0].state(12) is BreakerState.HALF_OPEN
    pool[0].worked(12, trial)
    assert pool[0].state(12) is BreakerState.CLOSED
    assert (pool.admitted(12), pool.out()) == ([0, 1], [])


@pytest.mark.parametrize("status", [None, 400, 429, 503])
def test_a_trial_without_judgment_is_followed_by_another(status: int | None) -> None:
    """A client that left, a 400, a 429 or a 503 decides nothing, so another trial may follow."""
    pool = Pool(2)
    fail(pool[0], 0, 3)
    trial = pool[0].began(10)
    assert pool.admitted(10) == [1]
    if status is None:
        pool[0].neutral(trial)
    else:
        pool[0].answered(10, trial, status)
    assert pool.admitted(10) == [0, 1]
    assert pool[0].state(10) is BreakerState.HALF_OPEN


def test_a_lost_trial_expires_and_is_not_heard_later() -> None:
    """A trial that has not reported within 60 s is given up; a later report of it is ignored."""
    pool = Pool(2)
    fail(pool[0], 0, 3)
    lost = pool[0].began(10)
    assert pool.admitted(69) == [1]
    assert pool.admitted(70) == [0, 1]
    second = pool[0].began(70)
    pool[0].failed(71, lost, "timeout")
    assert pool[0].state(71) is BreakerState.HALF_OPEN
    pool[0].worked(72, second)
    assert pool[0].state(72) is BreakerState.CLOSED


def test_what_was_sent_before_says_nothing_after() -> None:
    """Requests sent before the ejection change nothing when they end, well or badly."""
    pool = Pool(2)
    marks = [pool[0].began(0) for _ in range(20)]
    for mark in marks[:10]:
        pool[0].failed(1, mark, "closed")
    assert pool[0].until == 11
    pool[0].worked(11, marks[10])
    assert pool[0].state(11) is BreakerState.HALF_OPEN
    trial = pool[0].began(11)
    pool[0].failed(12, marks[11], "closed")
    pool[0].neutral(marks[12])
    pool[0].answering(12, marks[13])
    assert pool.admitted(12) == [1]
    pool[0].worked(13, trial)
    for mark in marks[13:]:
        pool[0].failed(13, mark, "closed")
    assert pool[0].state(13) is BreakerState.CLOSED


def test_a_restart_ends_an_ejection() -> None:
    """What failed is gone, and what was sent before says nothing of the new process."""
    pool = Pool(2)
    old = pool[0].began(0)
    fail(pool[0], 0, 3)
    pool[0].restarted(1)
    assert pool.admitted(1) == [0, 1]
    pool[0].failed(1, old, "closed")
    fail(pool[0], 2, 3)
    assert pool[0].until == 12  # as if it were its first time


def test_an_answer_that_begins_lets_others_in_on_probation() -> None:
    """Others need not wait for a long stream to end; if it breaks, the next ejection is longer."""
    pool = Pool(2)
    fail(pool[0], 0, 3)
    trial = pool[0].began(10)
    pool[0].answering(11, trial)
    assert pool.admitted(11) == [0, 1]
    pool[0].failed(20, trial, "closed")
    assert pool[0].until == 40
    trial = pool[0].began(40)
    pool[0].answering(41, trial)
    pool[0].worked(50, trial)
    fail(pool[0], 50, 2)
    assert pool.out() == []


def test_words_for_people() -> None:
    """The reason and the log lines say why, and until when."""
    pool = Pool(2)
    assert pool[0].reason(0) == ""
    fail(pool[0], 0, 2, "timeout")
    fail(pool[0], 0.5)
    assert pool[0].reason(4) == "3 failures in a row, the last: closed; back in 7 s"
    assert pool[0].reason(10.5) == "3 failures in a row, the last: closed; on trial"
    work(pool[0], 11)
    assert pool[0].reason(11) == ""
    assert pool.told == [
        "worker w0 is ejected: 3 failures in a row, the last: closed; back in 10 s",
        "worker w0 is let back in",
    ]
    once = Pool(2, EjectionSettings.model_construct(failures=1))
    fail(once[0], 0)
    assert once[0].reason(1) == "1 failure, the last: closed; back in 4 s"


def test_ejections_are_counted_by_their_last_failure() -> None:
    """The counts per kind of failure are kept by worker, for the metrics."""
    pool = Pool(4)
    fail(pool[0], 0, 3, "closed")
    fail(pool[0], 10, 1, "timeout")
    fail(pool[0], 30, 1, "timeout")
    pool[1].answered(0, pool[1].began(0), 500)
    assert [pool[place].ejections for place in (0, 1)] == [{"closed": 1, "timeout": 2}, {}]
