"""Clients that take their time, many at once: each is ended when its time is over, others go on.

The four ways of slowhttptest: heads that never end, bodies that never come, answers that are not
read, and ranges by the thousand. And connections that are merely there.
"""

import pytest

from router.protocol import RESERVE
from tests.http.raw.crowd import Crowd, Readers, meanwhile
from tests.http.raw.judge import is_error, says_close
from tests.http.raw.play import serves
from tests.http.raw.request import BODY, CHUNKED, HOST, LENGTH, LINE, get, head, post
from tests.support import JSON, OK, Action, MakeRouter, MakeStub, Router, Stub, until

MANY = 200
READERS = 50
QUIET = {"interval": "1h"}

_FIELDS = head(LINE, HOST)[:-2]
_CHUNKS = head(LINE, HOST, CHUNKED)

#: Heads that are never whole: how they begin, and how they go on.
HEADS = {
    "fields": (_FIELDS, b"x: y\r\n"),
    "method": (b"P", b""),
    "target": (b"\r\nPOST /v1/completions", b"?"),
    "line": (LINE, b""),
    "name": (_FIELDS + b"x", b"y"),
    "value": (_FIELDS + b"x:", b" "),
    "last-byte": (head(LINE, HOST, LENGTH)[:-1], b""),
}
#: Bodies of which nothing more comes, whatever else does.
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
    """Each was told why, and that this is the end."""
    for name, answer in crowd.last():
        assert answer.status == 408 or (name == "trailers" and answer.status == 431), name
        assert is_error(answer), name
        assert says_close(answer), name


def assert_unheard(worker: Stub) -> None:
    """Only proper clients reached the worker."""
    assert all(b"x-request-id: after" in request for request in worker.requests)


def test_heads_without_end(stub: MakeStub, route: MakeRouter) -> None:
    """However eagerly they go on, 408 when the time for a head is over; no worker hears of them."""
    worker = stub()
    router = route(worker.url, clients={"header": "1s"}, health=QUIET)
    with Crowd(router.port, HEADS, MANY // len(HEADS)) as crowd:
        meanwhile(router, crowd.over)
        assert_timed_out(crowd)
    assert_unheard(worker)


def test_a_second_head_without_end(stub: MakeStub, route: MakeRouter) -> None:
    """A connection that was used well has no more time than others."""
    router = route(stub().url, clients={"header": "3s"}, health=QUIET)
    with Crowd(router.port, {"second": (post(), b"x: y\r\n")}, MANY) as crowd:
        until(lambda: crowd.answered(1))
        assert {answer.status for _, answer in crowd.last()} == {200}
        crowd.go_on(_FIELDS)
        meanwhile(router, crowd.over)
        assert_timed_out(crowd)


def test_bodies_that_stop(stub: MakeStub, route: MakeRouter) -> None:
    """No piece of the body comes for too long: 408; no worker hears of them."""
    worker = stub()
    router = route(worker.url, clients={"body": "1s"}, health=QUIET)
    with Crowd(router.port, BODIES, MANY // len(BODIES)) as crowd:
        meanwhile(router, crowd.over)
        assert_timed_out(crowd)
        waited = [answers for answers in crowd.answers if answers.interims]
        assert len(waited) == MANY // len(BODIES)  # those who were told to go on, and did not
    assert_unheard(worker)


def test_a_body_that_comes_slowly(stub: MakeStub, route: MakeRouter) -> None:
    """It is waited for as long as something comes: the time is for a piece, not for all of them."""
    router = route(stub().url, clients={"body": "1s"}, health=QUIET)
    steady = {"steady": (_CHUNKS, b"1\r\n \r\n")}
    with (
        Crowd(router.port, steady, 5) as slow,
        Crowd(router.port, {"silent": BODIES["nothing"]}, 5) as silent,
    ):
        meanwhile(router, lambda: slow.over() or silent.over())
        assert slow.answered(0)
        slow.go_on(b"d\r\n" + BODY + b"\r\n0\r\n\r\n")
        until(lambda: slow.answered(1))
        assert [answer.body for _, answer in slow.last()] == [JSON] * 5


def test_an_answer_that_comes_slowly(stub: MakeStub, route: MakeRouter) -> None:
    """A client that waits for its worker is not slow itself."""
    soon = dict.fromkeys(("header", "body", "write", "keepalive"), "1s")
    worker = stub([2.5, *OK])
    router = route(worker.url, clients=soon, health=QUIET)
    with Crowd(router.port, {"waiting": (post(), b"")}, 20) as crowd:
        until(crowd.over, 30)
        assert [answer.body for _, answer in crowd.last()] == [JSON] * 20


#: An answer of which half never comes; the other half is more than a client's buffers hold.
_HALF = b"x" * (1 << 20)
HALF: list[Action] = [
    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (2 * len(_HALF)) + _HALF,
    "stall",
]


@pytest.fixture
def unread(stub: MakeStub, route: MakeRouter) -> tuple[Stub, Router]:
    """A worker whose answers are long, and a router with another one for all other clients."""
    long, quick = stub(HALF, model="long"), stub()
    return long, route(long.url, quick.url, clients={"write": "1s"}, health=QUIET)


def test_answers_that_are_not_read(unread: tuple[Stub, Router]) -> None:
    """Past `clients.write` the connection is closed, the worker told, and its room free again."""
    worker, router = unread
    with Readers(router.port, READERS, "long") as readers:
        until(lambda: len(worker.requests) == READERS)
        assert not router.idle()
        meanwhile(router, lambda: worker.closed_by_peer == READERS)
        readers.take_the_rest()
        assert max(readers.taken) < len(_HALF)


def test_an_answer_that_is_read_slowly(unread: tuple[Stub, Router]) -> None:
    """Who takes something from time to time is not cut off with those who take nothing."""
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


def test_a_whole_answer_that_is_not_read(stub: MakeStub, route: MakeRouter) -> None:
    """The worker is done and what is left waits here: no longer than `clients.write` either."""
    body = _HALF[: 400 << 10]
    whole: list[Action] = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body]
    worker, quick = stub(whole, model="long"), stub()
    router = route(worker.url, quick.url, clients={"write": "1s"}, health=QUIET)
    with Readers(router.port, READERS, "long") as readers:
        until(lambda: len(worker.requests) == READERS)
        meanwhile(router, lambda: len(router.door.clients) < 2)  # the proper one's, perhaps
        until(lambda: not router.door.clients)
        readers.take_the_rest()
        assert max(readers.taken) < len(body)


def test_ranges_by_the_thousand(stub: MakeStub, route: MakeRouter) -> None:
    """A header like any other: no work, no 206, whatever the path."""
    worker = stub()
    router = route(worker.url, health=QUIET)
    ranges = b"range: bytes=0-," + b",".join(b"5-%d" % n for n in range(1300))
    said = post(ranges) + get(ranges, b"connection: close")
    with Crowd(router.port, {"ranges": (said, b"")}, MANY) as crowd:
        meanwhile(router, crowd.over)
        for answers in crowd.answers:
            assert [answer.status for answer in answers.final] == [200, 200]
            assert answers.final[0].body == JSON
    assert sum(ranges in request for request in worker.requests) == MANY


def test_connections_that_say_nothing(stub: MakeStub, route: MakeRouter) -> None:
    """They are closed in time, and nothing is said to them either; or that they were late."""
    clients = {"header": "1s", "keepalive": "1s"}
    router = route(stub().url, clients=clients, health=QUIET)
    sayings = {"nothing": (b"", b""), "an-empty-line": (b"\r\n", b"")}
    with Crowd(router.port, sayings, MANY // 2) as crowd:
        meanwhile(router, crowd.over)
        for answers in crowd.answers:
            assert [answer.status for answer in answers.final] in ([], [408])


def test_connections_that_fall_idle(stub: MakeStub, route: MakeRouter) -> None:
    """After `clients.keepalive` they are closed without another word."""
    router = route(stub().url, clients={"keepalive": "500ms"}, health=QUIET)
    sayings = {"ours": (get(), b""), "a worker's": (post(), b"")}
    with Crowd(router.port, sayings, MANY // 2) as crowd:
        meanwhile(router, crowd.over)
        for answers in crowd.answers:
            assert [answer.status for answer in answers.final] == [200]


def test_too_many_connections(stub: MakeStub, route: MakeRouter) -> None:
    """One too many is told to come later, or refused; those there are go on; then there is room."""
    router = route(stub().url, clients={"connections": 8}, health=QUIET)
    with Crowd(router.port, {"early": (get(), b"")}, 8) as early:
        until(lambda: early.answered(1))
        for probe in ("/health/live", "/health/ready", "/health", "/ping"):
            assert router.http.get(probe).status_code == 200  # a full house is not a dead one
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


def test_far_too_many_connections(stub: MakeStub, route: MakeRouter) -> None:
    """A few more are read, for the sake of who probes; all beyond are sent away unheard."""
    most, beyond = 8, 20
    bounds = {"connections": most, "header": "1h", "keepalive": "1h"}
    router = route(stub().url, clients=bounds, health=QUIET)
    silent = {"silent": (b"", b"")}
    with Crowd(router.port, silent, most + RESERVE):
        until(lambda: len(router.door.clients) == most + RESERVE)
        with Crowd(router.port, silent, beyond) as late:
            until(late.over)
            for name, answer in late.last():
                assert answer.status == 503, name
                assert says_close(answer)
        until(lambda: len(router.door.clients) == most + RESERVE)
    until(lambda: serves(router.port))
