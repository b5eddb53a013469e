"""One engine's events: which engine they are from, how far they are behind, and any bytes."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.events.source import UNEXPECTED, EventSource, Lag, SharedSocket, binds
from controller.events.stream import ReplayRequest
from controller.index.index import Index
from tests.controller.announcements import batch, stored
from tests.controller.events.test_decode import EVENTS, JUNK

SKEWS = [-3600.0, 0.5, 3600.0]
PAYLOADS = (
    st.binary(max_size=100)
    | JUNK.map(msgspec.msgpack.encode)
    | EVENTS.map(lambda events: batch(*events))
)
SEQUENCES = st.integers(0, 12) | st.integers(0, 2**64 - 1)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("live", "live", "replay", "end", "fail", "tick", "open", "gone")),
        SEQUENCES,
        PAYLOADS,
    ),
    max_size=30,
)
LIMIT = 1 << 16


@pytest.mark.parametrize(
    ("endpoint", "wanted"),
    [
        ("tcp://*:5557", True),
        ("tcp://0.0.0.0:5557", True),
        ("tcp://[::]:5557", True),
        ("tcp://10.0.0.1:5557", False),
        ("tcp://[2001:db8::5]:5557", False),
        ("tcp://[::1]:5557", False),
        ("ipc:///run/engine", False),
    ],
)
def test_only_an_address_of_ours_is_bound(endpoint: str, wanted: bool) -> None:
    """The address of an engine may have two colons as well."""
    assert binds(endpoint) is wanted


def shared(*workers: str) -> tuple[SharedSocket, list[EventSource]]:
    """Create a socket of these workers, which are known by their name and their host."""
    made, sources = SharedSocket(), [EventSource(Index(1 << 20), worker) for worker in workers]
    for source in sources:
        made.add(source, None, {source.worker, source.worker.partition(":")[0]})
    return made, sources


def test_one_alone_is_known_whatever_it_calls_itself() -> None:
    """Then the address identifies it, whatever the topic."""
    made, (source,) = shared("10.0.0.1:8000")
    assert made.of(b"") is made.of(b"kv@elsewhere@m") is source


def test_several_are_told_apart_by_topic() -> None:
    """By name or host; topics that fit no worker, or more than one, are counted and dropped."""
    made, (first, second, third) = shared("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.2:8001")
    assert made.of(b"kv@10.0.0.1@model@with@ats") is first
    assert made.of(b"kv@10.0.0.1:8000@m") is first
    assert made.of(b"kv@10.0.0.2:8001@m") is third
    for topic in (b"", b"kv-events", b"kv@10.0.0.2@m", b"kv@10.0.0.9@m", b"kv@\xff@m", b"x@a@m"):
        assert made.of(topic) is None
    assert second.refused == {"topic of nobody": 6}


def test_who_was_one_of_several_needs_its_topic_to_the_end() -> None:
    """The engine of a worker that left may go on publishing."""
    made, (first, second) = shared("a", "b")
    assert not made.remove(first)
    assert made.of(b"kv@a@m") is None
    assert made.of(b"kv@b@m") is second
    assert made.remove(second)
    assert list(made) == []


def test_an_empty_socket_ends_the_lag_of_all_that_were_heard() -> None:
    """What came first has just come; what waited while others were attended to has not."""
    made, (first, second) = shared("a", "b")
    for topic in (b"kv@a@m", b"kv@b@m"):
        assert made.of(topic)
    assert first.lag.came(10.0)
    assert not first.lag.came(11.0)
    made.caught_up()
    assert first.lag.came(12.0)
    made.waits(13.0)
    assert not second.lag.came(14.0)
    made.caught_up()
    assert second.lag.came(15.0)


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


@pytest.mark.parametrize("made", [float("nan"), float("inf"), float("-inf")])
def test_a_stamp_that_is_no_time_is_none(made: float) -> None:
    """As if there were no stamp."""
    source = EventSource(Index(1 << 20), "w")
    assert heard(source, 0, 10.0, made) == ""
    assert heard(source, 1, 13.0, made) == "late"
    assert (source.batch_time, source.lag.seconds) == (0.0, 3.0)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.booleans())
def test_a_source_survives_anything(steps: list[tuple[str, int, bytes]], replays: bool) -> None:
    """No exception is raised, and the index stays within its bound."""
    index = Index(LIMIT)
    source = EventSource(index, "w", replays=replays)
    asked = 0
    for now, (what, number, payload) in enumerate(steps):
        asks: list[ReplayRequest] = []
        if what == "live":
            asks = source.heard(number, payload, float(now))
        elif what == "replay":
            asks = source.replayed(asked, number, payload)
        elif what == "end":
            asks = source.replay_ended(asked, float(now))
        elif what == "fail":
            asks = source.replay_failed(asked, float(now))
        elif what == "tick":
            asks = source.tick(float(now) * 400)
        elif what == "open":
            asks = source.opened(float(now))
        else:
            source.disconnected()
        for _ in range(min(now % 3, len(source.late))):
            source.catch_up()
        asked = asks[-1].round if asks else asked
    assert index.bytes <= LIMIT
    assert not source.refused[UNEXPECTED]
