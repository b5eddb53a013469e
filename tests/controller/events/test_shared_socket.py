"""Which engine a message is from, when several connect to one address."""

from controller.events.shared_socket import SharedSocket
from controller.events.source import EventSource
from controller.index.index import Index


def line(*workers: str) -> tuple[SharedSocket, list[EventSource]]:
    """Create a line of these workers, which are known by their name and their host."""
    made, sources = SharedSocket(), [EventSource(Index(1 << 20), worker) for worker in workers]
    for source in sources:
        made.add(source, None, {source.worker, source.worker.partition(":")[0]})
    return made, sources


def test_one_alone_is_known_whatever_it_calls_itself() -> None:
    """Then the address identifies it, whatever the topic."""
    made, (source,) = line("10.0.0.1:8000")
    assert made.of(b"") is made.of(b"kv@elsewhere@m") is source


def test_several_are_told_apart_by_topic() -> None:
    """By name or host; topics that fit no worker, or more than one, are counted and dropped."""
    made, (first, second, third) = line("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.2:8001")
    assert made.of(b"kv@10.0.0.1@model@with@ats") is first
    assert made.of(b"kv@10.0.0.1:8000@m") is first
    assert made.of(b"kv@10.0.0.2:8001@m") is third
    for topic in (b"", b"kv-events", b"kv@10.0.0.2@m", b"kv@10.0.0.9@m", b"kv@\xff@m", b"x@a@m"):
        assert made.of(topic) is None
    assert second.refused == {"topic of nobody": 6}


def test_who_was_one_of_several_needs_its_topic_to_the_end() -> None:
    """The engine of a worker that left may go on publishing."""
    made, (first, second) = line("a", "b")
    assert not made.remove(first)
    assert made.of(b"kv@a@m") is None
    assert made.of(b"kv@b@m") is second
    assert made.remove(second)
    assert list(made) == []


def test_an_empty_socket_ends_the_lag_of_all_that_were_heard() -> None:
    """What came first has just come; what waited while others were attended to has not."""
    made, (first, second) = line("a", "b")
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
