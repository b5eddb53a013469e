"""Many slow clients at once: each is cut off when its time is over, and others are served.

Three attacks of slowhttptest: endless heads, missing bodies, unread answers. (The fourth, thousands
of ranges, is a row of `raw/`.) Also connections that stay idle, and too many of them.
"""

import pytest

from router.http.connection import PROBE_CONNECTIONS
from tests.http.raw.crowd import Crowd, Readers, meanwhile
from tests.http.raw.judge import is_error, says_close
from tests.http.raw.play import serves
from tests.http.raw.request import BODY, CHUNKED, HOST, LENGTH, LINE, get, head, post
from tests.support import JSON, OK, Action, MakeRouter, MakeStub, Router, Stub, until

MANY = 120
READERS = 30
QUIET = {"interval": "1h"}

_FIELDS = head(LINE, HOST)[:-2]
_CHUNKS = head(LINE, HOST, CHUNKED)

#: Heads that never end: how they begin, and how they go on.
HEADS = {
    "fields": (_FIELDS, b"x: y\r\n"),
    "method": (b"P", b""),
    "target": (b"\r\nPOST /v1/completions", b"?"),
    "line": (LINE, b""),
    "name": (_FIELDS + b"x", b"y"),
    "value": (_FIELDS + b"x:", b" "),
    "last-byte": (head(LINE, HOST, LENGTH)[:-1], b""),
}
#: Requests whose bodies do not go on, and what is sent instead.
BODIES = {
    "nothing": (head(LINE, HOST, LENGTH), b""),
    "all-but-one": (head(LINE, HOST, LENGTH) + BODY[:-1], b""),
    "no-chunk": (_CHUNKS, b""),
    "half-a-chunk": (_CHUNKS + b"d\r\n" + BODY[:4], b""),
    "zeros": (_CHUNKS, b"0"),
    "extension": (_CHUNKS + b"d;a=", b"x"),
    "trailers": (_CHUNKS + b"d\r\n" + BODY + b"\r\n0\r\n", b"x: y\r\n"),
    "after-100": (head(LINE, HOST, LENGTH, b"expect: 100-continue"), b""),
}


def assert_timed_out(crowd: Crowd) -> None:
    """Check that each client got 408 (or 431 for endless trailers) and `Connection: close`."""
    for name, answer in crowd.last():
        assert answer.status == 408 or (name == "trailers" and answer.status == 431), name
        assert is_error(answer), name
        assert says_close(answer), name


def test_heads_without_end(stub: MakeStub, route: MakeRouter) -> None:
    """Endless heads get 408 after `clients.header`, and nothing reaches a worker."""
    worker = stub()
    router = route(worker.url, clients={"header": "1s"}, health=QUIET)
    with Crowd(router.port, HEADS, MANY // len(HEADS)) as crowd:
        meanwhile(router, crowd.over)
        assert_timed_out(crowd)
    assert all(b"x-request-id: after" in request for request in worker.requests)


def test_bodies_that_stop(stub: MakeStub, route: MakeRouter) -> None:
    """Bodies that stop get 408 after `clients.body`, and nothing reaches a worker."""
    worker = stub()
    router = route(worker.url, clients={"body": "1s"}, health=QUIET)
    with Crowd(router.port, BODIES, MANY // len(BODIES)) as crowd:
        meanwhile(router, crowd.over)
        assert_timed_out(crowd)
        waited = [answers for answers in crowd.answers if answers.interims]
        assert len(waited) == MANY // len(BODIES)  # those that got 100 Continue and sent nothing
    assert all(b"x-request-id: after" in request for request in worker.requests)


def test_a_body_that_comes_slowly(stub: MakeStub, route: MakeRouter) -> None:
    """`clients.body` limits the time between pieces of a body that does come, however long."""
    router = route(stub().url, clients={"body": "3s"}, health=QUIET)
    steady = {"steady": (_CHUNKS, b"400\r\n%b\r\n" % (b" " * 1024))}
    with (
        Crowd(router.port, steady, 5) as slow,
        Crowd(router.port, {"silent": BODIES["nothing"]}, 5) as silent,
    ):
        meanwhile(router, lambda: slow.over() or silent.over())
        assert slow.answered(0)
        slow.go_on(b"d\r\n" + BODY + b"\r\n0\r\n\r\n")
        until(lambda: slow.answered(1))
        assert [answer.body for _, answer in slow.last()] == [JSON] * 5


#: How a body begins, and the bytes that follow one after the other; the last after a request whose
#: head is recognised.
DRIPS = {
    "length": (head(LINE, HOST, b"content-length: 1000000"), b" "),
    "chunks": (_CHUNKS, b"1\r\n \r\n"),
    "one-chunk": (_CHUNKS + b"fffff\r\n", b" "),
    "second": (post() + head(LINE, HOST, b"content-length: 1000000"), b" "),
}


def test_bodies_that_drip(stub: MakeStub, route: MakeRouter) -> None:
    """Bodies that come byte by byte get 408 in the end, though none ever stops."""
    router = route(stub().url, clients={"body": "1s"}, health=QUIET)
    with Crowd(router.port, DRIPS, MANY // len(DRIPS)) as crowd:
        meanwhile(router, crowd.over)
        assert_timed_out(crowd)


def test_an_answer_that_comes_slowly(stub: MakeStub, route: MakeRouter) -> None:
    """The client timeouts do not run while a client waits for its worker."""
    soon = dict.fromkeys(("header", "body", "write", "keepalive"), "1s")
    worker = stub([1.5, *OK])
    router = route(worker.url, clients=soon, health=QUIET)
    with Crowd(router.port, {"waiting": (post(), b"")}, 20) as crowd:
        until(crowd.over, 30)
        assert [answer.body for _, answer in crowd.last()] == [JSON] * 20


#: An answer that stalls after half; that half is more than a client's buffers hold.
_HALF = b"x" * (1 << 20)
HALF: list[Action] = [
    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (2 * len(_HALF)) + _HALF,
    "stall",
]


@pytest.fixture
def unread(stub: MakeStub, route: MakeRouter) -> tuple[Stub, Router]:
    """A worker with long answers, and a router that has another one for other clients."""
    long, quick = stub(HALF, model="long"), stub()
    return long, route(long.url, quick.url, clients={"write": "1s"}, health=QUIET)


def test_answers_that_are_not_read(unread: tuple[Stub, Router]) -> None:
    """After `clients.write` an unread answer's connections are closed and its place is free."""
    worker, router = unread
    with Readers(router.port, READERS, "long") as readers:
        until(lambda: len(worker.requests) == READERS)
        assert not router.idle()
        meanwhile(router, lambda: worker.closed_by_peer == READERS)
        readers.take_the_rest()
        assert max(readers.taken) < len(_HALF)


@pytest.mark.long
def test_an_answer_that_is_read_slowly(unread: tuple[Stub, Router]) -> None:
    """A client that reads a little from time to time is not cut off."""
    worker, router = unread
    with Readers(router.port, READERS, "long") as readers:

        def others_are_over() -> bool:
            assert readers.take(0, 4096)
            assert serves(router.port)
            return worker.closed_by_peer >= READERS - 1

        until(others_are_over, 30)
        while readers.taken[0] < len(_HALF):
            assert readers.take(0, 65536)
        assert worker.closed_by_peer == READERS - 1
        assert not router.idle()
    until(lambda: worker.closed_by_peer == READERS)
    until(router.idle)


@pytest.mark.long
def test_a_whole_answer_that_is_not_read(stub: MakeStub, route: MakeRouter) -> None:
    """An unread answer whose worker is done is also dropped after `clients.write`."""
    body = _HALF[: 400 << 10]
    whole: list[Action] = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body]
    worker, quick = stub(whole, model="long"), stub()
    router = route(worker.url, quick.url, clients={"write": "1s"}, health=QUIET)
    with Readers(router.port, READERS, "long") as readers:
        until(lambda: len(worker.requests) == READERS)
        meanwhile(router, lambda: len(router.door.clients) < 2)  # a valid client's may be left
        until(lambda: not router.door.clients)
        readers.take_the_rest()
        assert max(readers.taken) < len(body)


def test_connections_that_say_nothing(stub: MakeStub, route: MakeRouter) -> None:
    """They are closed in time: without an answer or with 408, or when idle after their answer."""
    clients = {"header": "3s", "keepalive": "1s"}
    router = route(stub().url, clients=clients, health=QUIET)
    sayings = {"nothing": (b"", b""), "an-empty-line": (b"\r\n", b""), "idle": (post(), b"")}
    with Crowd(router.port, sayings, MANY // 3) as crowd:
        meanwhile(router, crowd.over)
        said = crowd.statuses()
    assert said["nothing"] == {()}
    assert said["an-empty-line"] <= {(), (408,)}
    assert said["idle"] == {(200,)}


def test_too_many_connections(stub: MakeStub, route: MakeRouter) -> None:
    """Connections over the limit get 503 with Retry-After; the others go on."""
    router = route(stub().url, clients={"connections": 8}, health=QUIET)
    with Crowd(router.port, {"early": (get(), b"")}, 8) as early:
        until(lambda: early.answered(1))
        for probe in ("/health/live", "/health/ready", "/health", "/ping"):
            assert router.http.get(probe).status_code == 200  # though at the limit
        assert router.http.get("/workers").status_code == 503
        with Crowd(router.port, {"late": (post(), b"")}, MANY) as late:
            until(late.over)
            for answers in late.answers:
                assert len(answers.final) <= 1
            for name, answer in late.last():
                assert answer.status == 503, name
                assert is_error(answer)
                assert says_close(answer)
                assert int(answer.values(b"retry-after")[0]) > 0
        assert not serves(router.port)
        early.go_on(post())
        until(lambda: early.answered(2))
        assert {answer.status for _, answer in early.last()} == {200}
    until(lambda: serves(router.port))
    until(router.idle)


@pytest.mark.long
def test_far_too_many_connections(stub: MakeStub, route: MakeRouter) -> None:
    """Some more connections are read, for health checks; those beyond get 503 unread."""
    most, beyond = 8, 20
    bounds = {"connections": most, "header": "1h", "keepalive": "1h"}
    router = route(stub().url, clients=bounds, health=QUIET)
    silent = {"silent": (b"", b"")}
    with Crowd(router.port, silent, most + PROBE_CONNECTIONS):
        until(lambda: len(router.door.clients) == most + PROBE_CONNECTIONS)
        with Crowd(router.port, silent, beyond) as late:
            until(late.over)
            for name, answer in late.last():
                assert answer.status == 503, name
                assert says_close(answer)
        until(lambda: len(router.door.clients) == most + PROBE_CONNECTIONS)
    until(lambda: serves(router.port))
