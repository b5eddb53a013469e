"""Faults between router and worker: the client gets an answer or a clear error; all recovers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.chaos.conftest import LIVELY, PATH, SOON, Fleet, MakeFleet, assert_answered, request
from tests.chaos.echo import FULL, answer, body, head
from tests.chaos.proxy import End, Fault
from tests.support import error_of, until

both_ways = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
NOISE = b"\x16\x03\x01\x02\x00 not HTTP\r\n\r\n"


def error_event(content: bytes) -> dict[str, str]:
    """Return the error event that ends a stream; fail if anything follows it."""
    *_, last, rest = content.split(b"\n\n")
    assert rest == b""
    error: dict[str, str] = json.loads(last.strip().removeprefix(b"data: "))["error"]
    return error


@contextmanager
def halfway(made: Fleet, marker: str, *, stream: bool) -> Iterator[tuple[bytes, Iterator[bytes]]]:
    """Start an answer that stalls halfway; yield its first piece and an iterator over the rest."""
    at = answer(marker, stream=stream).index(b"}\n\n\r\n" if stream else b"choices")
    made.chaos[0].fault = Fault("stall", at=at + 5 * stream, once=True)
    asked = request(marker, stream=stream)
    with made.router.http.stream("POST", PATH, json=asked) as reply:
        assert reply.status_code == 200
        pieces = reply.iter_bytes()
        yield next(pieces), pieces


def rest_of(made: Fleet, marker: str, end: End | None) -> bytes:
    """Read the rest of a JSON answer that is cut halfway, or stalls if `end` is None."""
    with halfway(made, marker, stream=False) as (_, rest):
        if end:
            made.chaos[0].drop(end)
        return b"".join(rest)


@both_ways
@pytest.mark.parametrize("place", ["nothing", "header", "head"])
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault("close"), (502, "closed")),
        (Fault("reset"), (502, "closed")),
        (Fault("stall"), (504, "timeout")),
        (Fault("close", garbage=NOISE), (502, "garbled")),
    ],
    ids=["close", "reset", "stall", "garbage"],
)
def test_broken_before_the_body(
    fleet: MakeFleet, fault: Fault, told: tuple[int, str], place: str, stream: bool
) -> None:
    """The client gets a 5xx error; it is charged once to that worker, and no other is asked."""
    made = fleet(timeouts=SOON) if told[0] == 504 else fleet()
    marker = "broken"
    start = head(marker, stream=stream)
    at = {"nothing": 0, "header": start.index(b"\r\n") + 5, "head": len(start)}[place]
    if place == "head" and fault.garbage and not stream:
        at -= 2  # after a head with a Content-Length any byte would be a valid body
    made.chaos[0].fault = Fault(fault.end, at, fault.garbage, once=True)
    reply = made.ask(marker, stream=stream)
    status, kind = told
    assert (reply.status_code, error_of(reply)["type"]) == (status, "server_error")
    assert made.seen_by(marker) == [0]
    assert made.charged() == {(made.chaos[0].name, kind): 1}
    made.works()


@pytest.mark.parametrize(
    ("end", "garbage", "kinds"),
    [
        ("close", b"", {"closed"}),
        ("reset", b"", {"closed"}),
        ("close", NOISE, {"closed", "garbled"}),  # whichever is seen first
        (None, b"", {"timeout"}),
    ],
    ids=["close", "reset", "garbage", "stall"],
)
def test_a_stream_broken_halfway(
    fleet: MakeFleet, end: End | None, garbage: bytes, kinds: set[str]
) -> None:
    """The client keeps what came, then gets an error event; the answer ends without [DONE]."""
    made, marker = fleet() if end else fleet(timeouts=SOON), "broken"
    with halfway(made, marker, stream=True) as (first, rest):
        if end:
            made.chaos[0].drop(end, garbage)
        content = first + b"".join(rest)
    assert content.startswith(first)
    assert error_event(content)["code"] == "worker_failed"
    assert b"[DONE]" not in content
    assert made.seen_by(marker) == [0]
    ((worker, kind),) = made.charged()
    assert worker == made.chaos[0].name
    assert kind in kinds
    made.works()


@pytest.mark.parametrize(
    ("end", "kind"), [("close", "closed"), ("reset", "closed"), (None, "timeout")]
)
def test_a_json_answer_broken_halfway(fleet: MakeFleet, end: End | None, kind: str) -> None:
    """The connection is cut, so the client cannot mistake the half for the whole."""
    made, marker = fleet() if end else fleet(timeouts=SOON), "broken"
    with pytest.raises(httpx.RemoteProtocolError):
        rest_of(made, marker, end)
    assert made.seen_by(marker) == [0]
    assert made.charged() == {(made.chaos[0].name, kind): 1}
    made.works()


@both_ways
@pytest.mark.parametrize("pieces", [3, 64])
def test_an_answer_that_trickles(fleet: MakeFleet, pieces: int, stream: bool) -> None:
    """However small its pieces, an answer arrives complete, and no failure is counted."""
    made, marker = fleet(1), "trickle"
    made.chaos[0].fault = Fault(pieces=pieces)
    assert_answered(made.ask(marker, stream=stream), marker, stream=stream)
    assert made.charged() == {}
    made.works()


@pytest.mark.long
@both_ways
def test_an_answer_cut_in_two_anywhere(fleet: MakeFleet, stream: bool) -> None:
    """Wherever an answer is cut in two, the client gets the same bytes."""
    made, marker = fleet(1), "marker-0"
    for at in range(1, len(answer(marker, stream=stream))):
        made.chaos[0].fault = Fault(first=at)
        assert_answered(made.ask(marker, stream=stream), marker, stream=stream)
    assert made.charged() == {}


@both_ways
def test_an_answer_shorter_than_it_says(fleet: MakeFleet, stream: bool) -> None:
    """A document is cut, so the client learns of it; a stream lacks nothing after `[DONE]`."""
    made, marker = fleet(timeouts=SOON), "short"
    made.workers[0].chunked = False
    end = len(answer(marker, stream=stream, chunked=False))
    made.chaos[0].fault = Fault("stall", at=end, length=1, once=True)
    if stream:
        assert made.ask(marker, stream=True).content == body(marker, stream=True)
        assert made.charged() == {}
    else:
        with pytest.raises(httpx.RemoteProtocolError):
            made.ask(marker, stream=False)
        assert made.charged() == {(made.chaos[0].name, "timeout"): 1}
    made.works()


@both_ways
def test_an_answer_longer_than_it_says(fleet: MakeFleet, stream: bool) -> None:
    """Surplus bytes become part of no answer, neither of this one nor of the next."""
    made, marker = fleet(1), "long"
    made.workers[0].chunked = False
    made.chaos[0].fault = Fault(length=-10, once=True)
    reply = made.ask(marker, stream=stream)
    assert reply.status_code == 200
    assert reply.content == body(marker, stream=stream)[:-10]
    made.works()
    assert made.chaos[0].connections == 2


@both_ways
def test_a_connection_refused(fleet: MakeFleet, stream: bool) -> None:
    """Another worker answers, and the one that refused the connection gets no more requests."""
    made = fleet()
    made.chaos[0].die()
    for _ in range(3):
        marker = made.marker()
        assert_answered(made.ask(marker, stream=stream), marker, stream=stream)
        assert made.seen_by(marker) == [1]
    assert made.charged() == {(made.chaos[0].name, "connect"): 1}
    assert not made.router.worker(0).ready


@both_ways
def test_a_worker_that_vanished(fleet: MakeFleet, stream: bool) -> None:
    """If connecting hangs, another worker answers after `timeouts.connect`; later ones at once."""
    made = fleet(health={"interval": "1h", "timeout": "1s"}, timeouts={"connect": "1s"})
    made.chaos[0].vanish()
    for _ in range(3):
        marker = made.marker()
        assert_answered(made.ask(marker, stream=stream), marker, stream=stream)
        assert made.seen_by(marker) == [1]
    assert made.charged() == {(made.chaos[0].name, "connect"): 1}
    made.chaos[0].listen()
    made.router.worker(0).attention.set()
    made.works()


@both_ways
def test_all_connections_refused(fleet: MakeFleet, stream: bool) -> None:
    """The client gets 503 with Retry-After; when the workers return, requests succeed again."""
    made = fleet(health=LIVELY)
    for chaos in made.chaos:
        chaos.die()
    reply = made.ask(made.marker(), stream=stream)
    assert (reply.status_code, error_of(reply)["code"]) == (503, "no_worker")
    assert int(reply.headers["retry-after"]) > 0
    for chaos in made.chaos:
        chaos.listen()
    made.works()


def test_a_worker_that_dies_in_a_stream_and_returns(fleet: MakeFleet) -> None:
    """The stream ends with an error, others answer meanwhile, and the worker is used again."""
    made, marker = fleet(health=LIVELY), "dying"
    with halfway(made, marker, stream=True) as (first, rest):
        made.chaos[0].die()
        content = first + b"".join(rest)
    assert error_event(content)["code"] == "worker_failed"
    until(lambda: not made.router.worker(0).ready)
    marker = made.marker()
    assert_answered(made.ask(marker, stream=True), marker, stream=True)
    assert made.seen_by(marker) == [1]
    made.chaos[0].listen()
    made.works()


@both_ways
@pytest.mark.parametrize("end", ["close", "reset"])
def test_kept_connections_that_end_while_idle(fleet: MakeFleet, end: End, stream: bool) -> None:
    """The next request uses a new connection, and no failure is counted."""
    made = fleet(1)
    made.works()
    made.chaos[0].drop(end)
    until(lambda: not any(c.usable for c in made.router.worker().upstream.kept))
    made.works()
    assert made.chaos[0].connections == 2
    assert made.charged() == {}


@both_ways
def test_a_kept_connection_that_ends_as_the_request_comes(fleet: MakeFleet, stream: bool) -> None:
    """The request is sent again on a new connection to the same worker, which sees it once."""
    made, marker = fleet(), "crossing"
    made.works()
    made.chaos[0].fault = Fault(hang_up=True, once=True)
    assert_answered(made.ask(marker, stream=stream), marker, stream=stream)
    assert made.seen_by(marker) == [0]
    assert made.charged() == {}
    made.works()


@both_ways
def test_a_new_connection_that_ends_as_the_request_comes(fleet: MakeFleet, stream: bool) -> None:
    """The worker may have begun: the client gets 502, and the request is not sent again."""
    made, marker = fleet(), "hung-up"
    made.chaos[0].fault = Fault(hang_up=True, once=True)
    reply = made.ask(marker, stream=stream)
    assert (reply.status_code, error_of(reply)["code"]) == (502, "worker_failed")
    assert made.seen_by(marker) == []
    assert made.charged() == {(made.chaos[0].name, "closed"): 1}
    made.works()


@both_ways
@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_kept_connection_that_ends_after_a_byte(fleet: MakeFleet, end: End, stream: bool) -> None:
    """The worker had begun to answer, so the request is not sent again."""
    made, marker = fleet(), "begun"
    made.works()
    made.chaos[0].fault = Fault(end, at=1, once=True)
    assert made.ask(marker, stream=stream).status_code == 502
    assert made.seen_by(marker) == [0]
    assert made.charged() == {(made.chaos[0].name, "closed"): 1}
    made.works()


@both_ways
@pytest.mark.parametrize("end", ["stall", "close", "reset"])
def test_a_full_worker_that_breaks_its_refusal(fleet: MakeFleet, end: End, stream: bool) -> None:
    """The status alone is enough to ask another worker."""
    made, marker = fleet(), "full"
    made.workers[0].full = True
    made.chaos[0].fault = Fault(end, at=len(FULL) - 2)
    assert_answered(made.ask(marker, stream=stream), marker, stream=stream)
    assert made.seen_by(marker) == [1]
    assert made.charged() == {(made.chaos[0].name, "full"): 1}
    assert made.router.worker(0).ready
    made.workers[0].full, made.chaos[0].fault = False, None
    made.works()
