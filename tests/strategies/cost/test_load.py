"""Booking and settling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.cost.load import Booking, Load


def _margin() -> float:
    """Return what one predicted second of prefill counts as in a wait."""
    load = Load()
    load.book(0.0, 1.0)
    return load.wait(0.0)


M = _margin()
#: As late as nothing counts any more.
EVER_S = 10_000.0
_seconds = st.floats(0, 100)
_actions = st.lists(
    st.tuples(
        st.sampled_from(["book", "byte", "drop", "moved", "release"]), st.integers(0, 9), _seconds
    ),
    max_size=60,
)


@given(_actions, st.booleans())
def test_everything_returns_to_zero(actions: list[tuple[str, int, float]], stream: bool) -> None:
    """Whatever is called, in any order, repeatedly or not at all: once all is released, nothing is
    booked."""
    load, now = Load(), 0.0
    bookings: list[Booking] = []
    for what, which, seconds in actions:
        now += seconds / 10
        if what == "book":
            bookings.append(load.book(now, seconds, int(seconds), stream=stream))
        elif bookings and what == "byte":
            load.first_byte(bookings[which % len(bookings)], now)
        elif what == "drop":
            if load.pending:
                load.drop(list(load.pending)[which % len(load.pending)], now, seconds / 100)
        elif what == "moved":
            load.moved(now)
        elif bookings:
            load.release(bookings[which % len(bookings)], now)
        assert load.wait(now) >= load.late(now) >= 0
        assert 0 <= load.decoding <= load.in_flight
        assert load.uncached == sum(booking.uncached for booking in load.pending)
    for booking in bookings:
        load.release(booking, now)
    now += EVER_S
    assert (load.wait(now), load.in_flight, load.kv_tokens, load.decoding) == (0, 0, 0, 0)
    assert load.kv_surplus(now + 10_000) == pytest.approx(0.0)


def test_a_burst_is_seen_at_once() -> None:
    """Every booking adds to the wait before any byte is sent."""
    load = Load()
    waits = []
    for _ in range(4):
        waits.append(load.wait(0.0))
        load.book(0.0, 1.0)
    assert waits == pytest.approx([0.0, M, 2 * M, 3 * M])
    assert load.wait(0.0) == pytest.approx(4 * M)
    assert M > 1.0, "it may take longer than predicted"


@pytest.mark.parametrize(("elsewhere", "late"), [(False, 50.0 - M), (True, 0.0)])
def test_a_late_prefill_is_expected_to_take_as_long_again(late: float, *, elsewhere: bool) -> None:
    """A worker that does not come to an end gets less and less; but not if another process serves
    the request: news of its first byte may be lost."""
    load = Load()
    load.book(0.0, 1.0, elsewhere=elsewhere)
    load.book(0.0, 2.0)
    assert load.wait(M) == pytest.approx(2 * M)
    assert load.wait(50.0) == pytest.approx(2 * M + late)


def test_the_next_one_starts_when_the_first_byte_is_seen() -> None:
    """Only the oldest booking shrinks with time."""
    load = Load()
    first = load.book(0.0, 1.0)
    load.book(0.0, 2.0)
    load.first_byte(first, 5.0)
    assert load.wait(5.0) == pytest.approx(2 * M)
    assert load.wait(6.0) == pytest.approx(2 * M - 1.0)


def test_answers_in_one_piece_expire_by_themselves() -> None:
    """Their first byte comes only with their last, so their prefill counts as done after its
    predicted time."""
    load = Load()
    load.book(0.0, 1.0, stream=False)
    load.book(0.0, 2.0, stream=False)
    assert load.wait(M + 1.0) == pytest.approx(2 * M - 1.0)
    assert load.wait(3 * M) == 0
    assert load.in_flight == load.decoding == 2


def test_a_prefill_is_timed_from_when_the_one_before_it_was_done() -> None:
    """Time spent waiting for earlier prompts is not counted; prompts whose first bytes come from
    the same step are not timed."""
    load = Load()
    first, second, third = (load.book(0.0, 1.0) for _ in range(3))
    load.first_byte(first, 2.0)
    load.first_byte(second, 3.5)
    assert (first.computed_s, second.computed_s) == (2.0, 1.5)
    load.first_byte(third, 3.501)
    assert (second.computed_s, third.computed_s) == (None, None)


def test_an_answer_in_one_piece_is_not_timed() -> None:
    """Its first byte only comes when the answer is complete."""
    load = Load()
    booking = load.book(0.0, 1.0, stream=False)
    load.first_byte(booking, 9.0)
    assert booking.computed_s is None


def test_an_answer_in_one_piece_that_came_early_tells_a_bound() -> None:
    """If it came before its predicted prefill time, that time was too long; if later, nothing is
    known."""
    load = Load()
    early, late = load.book(0.0, 2.0, stream=False), load.book(0.0, 1.0, stream=False)
    load.first_byte(early, 0.5)
    assert (early.whole_s, early.computed_s) == (0.5, None)
    assert load.wait(9.0) == 0.0
    load.release(late, 9.0)
    assert late.whole_s is None


def test_a_clock_that_goes_back_does_no_harm() -> None:
    """A booking dated before the latest one counts with its true age."""
    load = Load()
    load.book(100.0, 1.0)
    load.book(80.0, 1.0)
    assert 1.0 < load.given_s < 2.0
    assert load.given_at == 100.0


def test_what_was_refused_was_not_given() -> None:
    """A worker that accepts nothing has not been busy."""
    load = Load()
    kept = load.book(0.0, 3.0)
    for number in range(10):
        refused = load.book(number, 8.0)
        load.take_back(refused, number + 0.5)
        load.release(refused, number + 0.5)
    load.release(kept, 11.0)
    assert 2.0 < load.given_lately(11.0) < 3.0


def test_the_prefill_after_a_drop_is_not_timed() -> None:
    """It began in the middle of a step that was for the dropped prompt; the one after it is timed
    again, from when it was done, and does not count as computed together with it."""
    load = Load()
    before, dropped, after, later = (load.book(0.0, 4.0, since=0.0) for _ in range(4))
    load.first_byte(before, 1.0)
    load.drop(dropped, 3.0, 0.5)
    assert load.wait(3.5) == pytest.approx(8 * M - 0.5)
    load.first_byte(after, 4.0)
    load.first_byte(later, 6.0)
    assert (before.computed_s, dropped.computed_s, after.computed_s) == (1.0, None, None)
    assert later.computed_s == pytest.approx(2.0)


def test_of_what_was_dropped_the_part_that_was_done_was_given() -> None:
    """How busy the worker has been shows it; how long requests stay does not."""
    load = Load()
    load.release(load.book(0.0, 3.0), 0.0)
    stay_s = load.stay_s
    for done in (0.25, 1.0, 0.0):
        load.drop(load.book(0.0, 8.0, since=0.0), 0.0, done)
    assert load.given_s == pytest.approx(3.0 + 2.0 + 8.0)
    assert load.stay_s == stay_s


def test_a_worker_from_which_requests_were_moved_stays_late() -> None:
    """As late as they would be, though nothing is booked there, for a while or until it answers."""
    load = Load()
    only = load.book(0.0, 1.0)
    assert load.late(0.5) == 0.0
    assert load.late(21.0) == pytest.approx(21.0 - M)
    load.moved(21.0)
    load.drop(only, 21.0, 0.0)
    assert load.late(21.0) == load.wait(21.0) == pytest.approx(21.0 - M)
    assert load.wait(31.0) == pytest.approx(31.0 - M)
    assert load.wait(EVER_S) == load.late(EVER_S) == 0.0
    load.moved(21.0)
    load.answers()
    assert load.wait(21.0) == 0.0
