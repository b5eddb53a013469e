"""What counts as the first token of an answer, and what its time tells."""

import threading
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest
from msgspec.structs import replace

from router.attempt import Attempt
from router.job import Job
from router.worker import Worker
from strategies.base import Candidate
from strategies.load import TOGETHER_S
from strategies.loads import Loading
from strategies.pace import Pace
from tests.health.failing import says
from tests.overload.busy import PATH, QUIET, Gate, ask, asked, busied, since, waits
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
    """A worker's comments pass at once, and its prefill goes on: the next request is held, nothing
    is learned and no time is counted until the first event."""
    computed, gate, seen = threading.Event(), Gate(), bytearray()
    script: list[Action] = [HEAD]
    for piece in pieces:
        script += [piece, 0.02]
    script += [computed.is_set, b"data: {}\n\n", gate.opened.is_set, b"data: [DONE]\n\n", "close"]
    worker = stub(script)
    router = route(worker.url, health=QUIET)
    load, pace, unknown = router.worker().load, router.worker().pace, Pace().computed(1.0, 0)
    with router.http.stream("POST", PATH, json=asked("long", 60_000)) as reply:
        parts = reply.iter_raw()
        while len(seen) < sum(map(len, pieces)):
            seen += next(parts)
        worker.script = OK
        other = ask(router, crowd, "other", 2000)
        until(waits(router, 1))
        assert (load.decoding, pace.computed(1.0, 0)) == (0, unknown)
        assert router.metric("warmroute_first_byte_seconds_count", pool="default") == 0
        until(lambda: monotonic() > load.head_since + 2 * TOGETHER_S)
        computed.set()
        assert other.result().status_code == 200
        assert (load.decoding, pace.computed(1.0, 0) > unknown) == (1, True)
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


def test_what_has_begun_tells_what_is_computed_by_then(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """The first token of a stream comes long before the worker tells how much it had cached."""
    computed, gate = threading.Event(), Gate()
    begun, rest = HEAD + b"data: {}\n\n", b"data: [DONE]\n\n"
    worker = stub([computed.is_set, begun, gate.opened.is_set, rest, "close"])
    router = route(worker.url, health=QUIET)
    answer = busied(router, crowd, worker)
    pace, load, unknown = router.worker().pace, router.worker().load, Pace().computed(1.0, 0)
    until(lambda: since(load) > 2 * TOGETHER_S)
    computed.set()
    until(lambda: pace.computed(1.0, 0) > unknown)
    assert (pace.curve.factor, load.decoding) == (1.0, 1)
    gate.opened.set()
    assert answer.result().status_code == 200


def test_what_is_loaded_tells_nothing_of_what_is_computed(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a prompt was loaded from a slower tier, its first token says how fast that is."""
    init = Attempt.__init__

    def loads(self: Attempt, job: Job, worker: Worker, choice: Candidate, *rest: Any) -> None:
        init(self, job, worker, replace(choice, loading=Loading(choice.cost.prefill)), *rest)

    monkeypatch.setattr(Attempt, "__init__", loads)
    gate, worker = Gate(), stub()
    router = route(worker.url, health=QUIET)
    pace, load = router.worker().pace, router.worker().load
    begun = HEAD + b"data: {}\n\n"
    worker.script = [lambda: since(load) > 2 * TOGETHER_S, begun, gate.opened.is_set, "close"]
    with router.http.stream("POST", PATH, json=asked("long", 60_000)) as reply:
        assert next(reply.iter_bytes()) == b"data: {}\n\n"
        assert pace.computed(1.0, 0) == Pace().computed(1.0, 0)
        gate.opened.set()
    until(router.idle)


def test_what_was_held_was_not_computed(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time until a first byte is that of the tokens that its worker did not hold; and a worker
    that rejects a prompt has not computed it."""
    timed: list[tuple[float, float]] = []
    monkeypatch.setattr(Pace, "began", lambda _, tokens, held, __: timed.append((tokens, held)))
    worker = stub()
    router = route(worker.url, health=QUIET)
    load = router.worker().load
    for rejects in (True, False, False):
        answer = says(400) if rejects else OK
        worker.script = [lambda: since(load) > 2 * TOGETHER_S, *answer]
        reply = router.http.post(PATH, json=asked("long", 5000))
        assert reply.status_code == (400 if rejects else 200)
        until(router.idle)
    (tokens, none), (rest, held) = timed
    assert tokens > none == 0
    assert held > rest
