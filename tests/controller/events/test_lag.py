"""How far events are behind, whatever the clocks of two machines show."""

import pytest

from controller.events.source import EventSource, Lag
from controller.index.index import Index
from tests.controller.announcements import batch, stored

SKEWS = [-3600.0, -0.5, 0.0, 0.5, 3600.0]


def take(lag: Lag, now: float, made: float, came: float | None = None) -> float:
    """Apply a batch at `now`; return how far behind it was."""
    first = lag.came(now if came is None else came)
    lag.applied(now, made, first=first)
    return lag.seconds


@pytest.mark.parametrize("skew", SKEWS)
def test_what_waits_ages(skew: float) -> None:
    """Ten batches a second are made and five applied, whatever the engine's clock shows; the first
    had to wait for its turn."""
    lag = Lag()
    assert take(lag, 100.25, 100 + skew, came=100) == pytest.approx(0.25)
    for number in range(1, 50):
        now = 100.25 + number * 0.2
        assert take(lag, now, 100 + number * 0.1 + skew) == pytest.approx(0.25 + number * 0.1)
    assert lag.late
    lag.caught_up()
    assert (lag.seconds, lag.late) == (0, False)


@pytest.mark.parametrize("skew", SKEWS)
def test_a_stream_that_is_never_behind(skew: float) -> None:
    """Batches that are applied as they are made are on time, even if something always waits."""
    lag = Lag()
    assert max(take(lag, 100.0 + number, 100.0 + number + skew) for number in range(100)) == 0


def test_a_first_batch_that_was_held_up_is_made_up_for() -> None:
    """A later one that took less time shows what is usual."""
    lag = Lag()
    take(lag, 105.0, 100.0)
    assert take(lag, 106.0, 106.0) == 0
    assert take(lag, 109.0, 107.0) == 2.0


def test_a_clock_that_is_set_counts_no_longer_than_something_waits() -> None:
    """Back by an hour, the lag is what waiting explains at most; the next quiet moment ends it."""
    lag = Lag()
    take(lag, 100.0, 5000.0)
    assert take(lag, 101.0, 1401.0) == 1.0
    lag.caught_up()
    assert take(lag, 102.0, 1402.0) == 0
    assert take(lag, 102.5, 5002.5) == 0, "and forward again"
    lag.caught_up()
    take(lag, 103.0, 5003.0)
    assert take(lag, 106.0, 5004.0) == 2.0


def test_without_stamps_waiting_is_all_that_is_known() -> None:
    """Then it may have waited since the socket was empty."""
    lag = Lag()
    assert [take(lag, now, 0.0) for now in (100.0, 101.5, 103.0)] == [0, 1.5, 3.0]
    lag.caught_up()
    assert take(lag, 200.0, 0.0) == 0


def heard(source: EventSource, sequence: int, now: float, made: float) -> str:
    """Hand on a live message; return the doubt that is left."""
    source.connected = True
    source.heard(sequence, batch(stored(0, 1), made=made), now)
    return source.doubt


def test_an_engine_that_is_behind_is_doubted() -> None:
    """Until nothing waits any more."""
    source = EventSource(Index(1 << 20), "w")
    doubts = [heard(source, number, 10.0 + 2 * number, 1.0 + number) for number in range(4)]
    assert doubts == ["", "", "", "late"]
    assert source.lag.seconds == 3.0
    source.lag.caught_up()
    assert source.doubt == ""


def test_what_waited_for_a_replay_is_no_measure_of_what_is_new() -> None:
    """A message that waited with others, behind steps that were late, had not just come."""
    source = EventSource(Index(1 << 20), "w", replays=True)
    heard(source, 0, 10.0, 5.0)
    source.lag.caught_up()
    assert [heard(source, 2, 11.0, 6.0), heard(source, 3, 11.0, 6.0)] == ["gap", "gap"]
    source.lag.caught_up()
    source.replayed(1, 1, batch(stored(1, 1), made=5.5))
    source.replay_ended(1, 11.5)
    assert heard(source, 4, 12.0, 7.0) == "gap", "applied after what the replay released"
    while source.late:
        source.catch_up()
    assert heard(source, 5, 42.0, 8.0) == "late"
    assert source.lag.seconds == 29.0


def test_a_batch_that_cannot_be_read_is_no_measure() -> None:
    """The stamp of the one before it does not say when it was made."""
    source = EventSource(Index(1 << 20), "w")
    heard(source, 0, 10.0, 5.0)
    source.lag.caught_up()
    source.heard(1, b"?", 100.0)
    assert heard(source, 2, 103.0, 95.0) == "late"
    assert source.lag.seconds == 3.0


@pytest.mark.parametrize("made", [float("nan"), float("inf"), float("-inf")])
def test_a_stamp_that_is_no_time_is_none(made: float) -> None:
    """As if there were no stamp."""
    source = EventSource(Index(1 << 20), "w")
    assert heard(source, 0, 10.0, made) == ""
    assert heard(source, 1, 13.0, made) == "late"
    assert (source.batch_time, source.lag.seconds) == (0.0, 3.0)
