"""What counts as the first token of an answer, and what its time tells."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from strategies.cost.prefill import Pace
from tests.overload.busy import PATH, QUIET, Gate, ask, asked, busied, waits
from tests.support import OK, Action, MakeRouter, MakeStub, until

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def test_a_response_that_is_announced_is_not_computed(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """A streamed response begins with events that come before its prefill: the next request is
    held all the same, and nothing is learned from how early they came."""
    gate, last = Gate(), Gate()
    announced = b"event: response.created\ndata: {}\n\n"
    worker = stub([HEAD + announced, gate.opened.is_set, announced, "close"])
    router = route(worker.url, health=QUIET)
    body = {"model": "m", "stream": True, "input": "long " * 60_000}
    with router.http.stream("POST", "/v1/responses", json=body) as reply:
        parts = reply.iter_bytes()
        assert next(parts) == announced
        worker.script = [last.opened.is_set, *OK]
        other = ask(router, crowd, "other", 2000)
        until(waits(router, 1))
        gate.opened.set()
        assert list(parts)
    until(lambda: router.worker().load.in_flight == 1 and waits(router, 0)())
    assert router.worker().pace.curve.factor == 1.0
    assert router.worker().pace.computed(1.0, 0) == Pace().computed(1.0, 0)
    last.opened.set()
    assert other.result().status_code == 200
    until(router.idle)


@pytest.mark.parametrize(
    "pieces",
    [
        [b": keep-alive\n\n"],
        [b": keep-alive\n\n", b": keep-alive\n\n"],
        [b": keep", b"-alive\n\n"],
        [b":\r\n\r\n", b": keep-alive\r\n", b"\r\n"],
    ],
    ids=["one", "two", "cut", "other-ends"],
)
def test_a_comment_is_not_the_first_token(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, pieces: list[bytes]
) -> None:
    """A worker's comments pass at once, and its prefill goes on: the next request is held, and no
    time is counted until the first event."""
    computed, gate, seen = threading.Event(), Gate(), bytearray()
    script: list[Action] = [HEAD]
    for piece in pieces:
        script += [piece, 0.02]
    script += [computed.is_set, b"data: {}\n\n", gate.opened.is_set, b"data: [DONE]\n\n", "close"]
    worker = stub(script)
    router = route(worker.url, health=QUIET)
    load = router.worker().load
    with router.http.stream("POST", PATH, json=asked("long", 60_000)) as reply:
        parts = reply.iter_raw()
        while len(seen) < sum(map(len, pieces)):
            seen += next(parts)
        worker.script = OK
        other = ask(router, crowd, "other", 2000)
        until(waits(router, 1))
        assert load.decoding == 0
        assert router.metric("warmroute_first_byte_seconds_count", pool="default") == 0
        computed.set()
        assert other.result().status_code == 200
        assert load.decoding == 1
        assert router.metric("warmroute_first_byte_seconds_count", pool="default") == 2
        gate.opened.set()
        assert seen + b"".join(parts) == b"".join([*pieces, b"data: {}\n\ndata: [DONE]\n\n"])
    until(router.idle)


def test_a_token_right_after_a_comment(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """If both come in one piece, the prefill is over."""
    gate = Gate()
    begun = HEAD + b": keep-alive\n\ndata: {}\n\n"
    worker = stub([begun, gate.opened.is_set, b"data: [DONE]\n\n", "close"])
    router = route(worker.url, health=QUIET)
    answer = busied(router, crowd, worker)
    until(lambda: router.worker().load.decoding == 1)
    gate.opened.set()
    assert answer.result().status_code == 200
