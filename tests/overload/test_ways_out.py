"""Every way in which a request stops waiting, whatever it waits for: it is answered once, by a
worker or by the router, and nothing of it is left."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import monotonic, sleep
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest

from router.fleet.worker import ProbeState
from strategies.api import Candidate, Cost, Decision, Prompt
from tests.overload.busy import PATH, QUIET, Gate, ask, asked, waits
from tests.reload.changing import change
from tests.retry.test_failover import full
from tests.support import OK, Action, MakeRouter, MakeStub, Router, Stub, post, until

#: What a request waits for: a place at a worker, its turn, or a worker that is not full.
KINDS = ("place", "turn", "refused")


class Scene(NamedTuple):
    """A router with one request that waits, and what keeps its worker busy."""

    router: Router
    worker: Stub
    gate: Gate
    waiting: socket.socket
    sent: int
    """How many requests its worker has been sent."""


@pytest.fixture
def scene(
    stub: MakeStub,
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    stack: ExitStack,
    backs_off: None,
) -> Callable[..., Scene]:
    """Make such a router."""

    def make(kind: str, **settings: Any) -> Scene:
        gate, worker = Gate(), stub()
        settings = {"strategy": "prefixaware", "health": QUIET, **settings}
        if kind == "refused":
            worker.script = full(b"x")
        else:
            worker.script = gate.script()
            if kind == "place":
                settings["limits"] = {"in_flight": 1}
        router = route(worker.url, **settings)
        if kind != "refused":
            ask(router, crowd, "long", 60_000)
            until(lambda: len(worker.requests) == 1)
        body = json.dumps(asked("waits", 2_000)).encode()
        waiting = stack.enter_context(
            post(router.port, PATH, body, b"content-type: application/json")
        )
        until(waits(router, 1))
        return Scene(router, worker, gate, waiting, len(worker.requests))

    return make


def status(client: socket.socket) -> tuple[int, str]:
    """The status of an answer, and the code of its error."""
    client.settimeout(20)
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"
    )
    while len(body) < length:
        body += client.recv(65536)
    error = json.loads(body).get("error") or {}
    assert (b"\r\nretry-after: " in head) == (b" 503 " in head[:14])
    return int(head[9:12]), error.get("code", "")


def leaves(scene: Scene, _: Stub) -> None:
    """Its client does."""
    scene.waiting.close()


def removed(scene: Scene, other: Stub) -> None:
    """Its worker is not in the settings any more, but another is."""
    change(scene.router, other.url)


def all_drain(scene: Scene, _: Stub) -> None:
    """Its worker is to get nothing new."""
    change(scene.router, {"url": scene.worker.url, "drain": True})


def dies(scene: Scene, _: Stub) -> None:
    """Its worker does."""
    scene.router.call(lambda: scene.router.worker().become(ProbeState.DOWN, "it was unplugged"))


def joined(scene: Scene, other: Stub) -> None:
    """A worker is new in the settings."""
    change(scene.router, scene.worker.url, other.url)


def replaced(scene: Scene, other: Stub) -> None:
    """Its pool is, by one that has another worker too."""
    change(scene.router, scene.worker.url, other.url, strategy="leastload")


def stops(scene: Scene, _: Stub) -> None:
    """The router does."""
    scene.router.server.stop(now=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("happens", "told"),
    [
        (leaves, None),
        (removed, (200, "")),
        (joined, (200, "")),
        (replaced, (200, "")),
        (all_drain, (503, "no_worker")),
        (dies, (503, "no_worker")),
        (stops, (503, "router_stopped")),
    ],
)
def test_whatever_happens(
    stub: MakeStub,
    scene: Callable[..., Scene],
    happens: Callable[[Scene, Stub], None],
    told: tuple[int, str] | None,
    kind: str,
) -> None:
    """It is told so at once, or goes elsewhere; its worker never gets it."""
    made, other = scene(kind), stub()
    happens(made, other)
    if told is not None:
        assert status(made.waiting) == told
        assert len(other.requests) == (told[0] == 200)
    until(waits(made.router, 0))
    made.gate.opened.set()
    until(made.router.idle)
    assert len(made.worker.requests) == made.sent
    left = made.router.metric("warmroute_refused_requests_total", status="499")
    assert left == (told is None)


@pytest.mark.parametrize("kind", ["place", "refused"])
def test_the_wait_is_bounded(scene: Callable[..., Scene], kind: str) -> None:
    """After `timeouts.queue` without a worker that accepts it, a request gets 503."""
    made = scene(kind, timeouts={"queue": "300ms"})
    assert status(made.waiting) == (503, "overloaded")
    until(waits(made.router, 0))
    made.gate.opened.set()
    until(made.router.idle)


@pytest.mark.parametrize("kind", ["place", "refused"])
def test_new_settings_lose_nothing(scene: Callable[..., Scene], kind: str) -> None:
    """However often they come, also for another strategy: the request waits on, and is answered."""
    made = scene(kind)
    bounds = {"limits": {"in_flight": 1}} if kind == "place" else {}
    for strategy in ("leastload", "prefixaware", "leastload"):
        change(made.router, made.worker.url, strategy=strategy, **bounds)
        until(waits(made.router, 1))
    assert len(made.worker.requests) == made.sent
    made.worker.script = OK
    made.gate.opened.set()
    if kind == "refused":
        made.router.call(lambda: made.router.door.dispatcher.scheduler.rests.keep(()))
    assert status(made.waiting) == (200, "")
    assert made.router.metric("warmroute_queued_total") == 1
    until(made.router.idle)


def raises(*_: object) -> Decision:
    """Fail."""
    raise RuntimeError("a fault in a plug-in")


def nothing(*_: object) -> Decision:
    """Decide for nobody."""
    return Decision([], "nobody")


def no_number(prompt: Prompt, workers: Any, _: float) -> Decision:
    """Predict no time."""
    return Decision([Candidate(workers[0], Cost(prefill=float("nan")))], "odd")


@pytest.mark.parametrize(
    ("kind", "ranks"), [("place", raises), ("turn", nothing), ("refused", no_number)]
)
def test_a_strategy_that_fails(
    scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch, ranks: Any, kind: str
) -> None:
    """The request gets 500 as soon as the strategy is asked; others go on once that works again."""
    made = scene(kind)
    pool = made.router.door.fleet.pools[0]
    with monkeypatch.context() as patch:
        failing = Mock(wraps=pool.strategy)
        failing.rank = ranks
        patch.setattr(pool, "strategy", failing)
        made.worker.script = OK
        made.gate.opened.set()
        if kind == "refused":
            made.router.call(lambda: made.router.door.dispatcher.scheduler.rests.keep(()))
        assert status(made.waiting)[0] == 500
    until(waits(made.router, 0))
    assert made.router.http.post(PATH, json=asked("next", 10)).status_code == 200
    until(made.router.idle)


def test_the_next_worker_is_full_by_now(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, backs_off: None
) -> None:
    """A request that its first worker refuses late waits for the second one, which has got as many
    as it may have."""
    refuses, gate = Gate(), Gate()
    first, second = stub([refuses.opened.is_set, *full(b"x")]), stub(gate.script())
    router = route(
        *(first.url, second.url), strategy="roundrobin", health=QUIET, limits={"in_flight": 1}
    )
    replies = [ask(router, crowd, "refused", 10)]
    until(lambda: len(first.requests) == 1)
    replies.append(ask(router, crowd, "taken", 10))
    until(lambda: len(second.requests) == 1)
    refuses.opened.set()
    until(waits(router, 1))
    assert len(second.requests) == 1
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 2
    assert len(second.requests) == 2
    until(router.idle)


class Slots(list[Action]):
    """The script of a worker that takes one request at a time, and is full for others."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate
        self._taken = False

    def __iter__(self) -> Any:
        """Take the place, or refuse."""
        if self._taken:
            return iter(full(b"x"))
        self._taken = True
        return iter([self._gate.opened.is_set, self._leaves, *OK])

    def _leaves(self) -> bool:
        self._taken = False
        return True


def test_a_worker_with_a_limit_of_its_own(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, backs_off: None
) -> None:
    """Its refusals are kept from clients; what waits for it is not sent at once whenever it may
    have room, and newcomers come after it."""
    gate = Gate()
    worker = stub(Slots(gate))
    router = route(worker.url, strategy="roundrobin", health=QUIET)
    replies = [ask(router, crowd, "first", 10)]
    until(lambda: len(worker.requests) == 1)
    for number in range(5):
        replies.append(ask(router, crowd, f"r{number}", 10))
        until(waits(router, number + 1))
    assert len(worker.requests) == 2, "only one has found out"
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 6
    assert len(worker.requests) <= 2 * 6
    until(router.idle)


def test_a_full_queue_behind_full_workers(scene: Callable[..., Scene]) -> None:
    """Newcomers are refused at once, instead of passing those that wait."""
    made = scene("refused", limits={"queue": 1})
    reply = made.router.http.post(PATH, json=asked("new", 10))
    assert reply.status_code == 429
    assert len(made.worker.requests) == made.sent
    made.waiting.close()
    until(waits(made.router, 0))


def test_one_request_finds_out_whether_a_full_worker_takes_others(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, backs_off: None
) -> None:
    """The others wait for its answer, so that they do not all come at once."""
    gate, worker = Gate(), stub(full(b"x"))
    router = route(worker.url, strategy="roundrobin", health=QUIET)
    replies = [ask(router, crowd, f"r{number}", 10) for number in range(5)]
    until(waits(router, 5))
    refused = len(worker.requests)
    worker.script = gate.script()
    rest = router.worker().rest
    assert rest is not None
    rest.until = monotonic()
    until(lambda: len(worker.requests) > refused)
    sleep(0.2)  # what waits is looked at four times
    assert len(worker.requests) == refused + 1
    gate.opened.set()
    assert [reply.result().status_code for reply in replies] == [200] * 5
    until(router.idle)


def test_who_was_refused_goes_before_shorter_ones(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, backs_off: None
) -> None:
    """It has had its turn, which was in vain."""
    worker = stub(full(b"x"))
    router = route(worker.url, health=QUIET)
    replies = [ask(router, crowd, "refused", 9_000)]
    until(waits(router, 1))
    for number in range(3):
        replies.append(ask(router, crowd, f"short{number}", 10))
        until(waits(router, number + 2))
    worker.script, sent = OK, len(worker.requests)
    rest = router.worker().rest
    assert rest is not None
    rest.until = 0.0
    assert [reply.result().status_code for reply in replies] == [200] * 4
    assert b"refused" in worker.requests[sent]
    until(router.idle)
