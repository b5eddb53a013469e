"""Requests held in the router until a worker is about to be free, over real sockets."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import Any

import httpx
import pytest

from router import holding
from router.admission import Admission, Wait
from router.holding import Holding
from strategies.load import LONG_S, TOGETHER_S, Booking, Load
from strategies.pace import Pace
from strategies.pause import FEW
from strategies.prefixaware import PrefixAware
from tests.health.failing import says
from tests.reload.changing import change
from tests.support import OK, Action, MakeRouter, MakeStub, Router, Stub, send, until

PATH = "/v1/chat/completions"
QUIET = {"interval": "30s"}
ANSWER = b"".join(part for part in OK if isinstance(part, bytes))


class Gate:
    """Holds a worker's answers back until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def script(self) -> list[Action]:
        """An answer that waits for the gate, which the stub polls every few milliseconds."""
        return [self.opened.is_set, *OK]


def asked(words: str, tokens: int, model: str = "m") -> dict[str, object]:
    """A streamed chat of about `tokens` tokens; its first byte marks the end of its prefill."""
    text = (words + " ") * (4 * tokens // (len(words) + 1))
    return {"model": model, "stream": True, "messages": [{"role": "user", "content": text}]}


def ask(
    router: Router, crowd: ThreadPoolExecutor, words: str, tokens: int, model: str = "m"
) -> Future[httpx.Response]:
    """Send such a prompt on a connection of its own."""
    return crowd.submit(httpx.post, router.url + PATH, json=asked(words, tokens, model), timeout=30)


def busied(router: Router, crowd: ThreadPoolExecutor, worker: Stub) -> Future[httpx.Response]:
    """Send a long prompt to a worker that has had none, and wait until it is there."""
    first = ask(router, crowd, "long", 60_000)
    until(lambda: len(worker.requests) == 1)
    return first


def held(router: Router, count: int) -> Callable[[], bool]:
    """A condition: that many requests are held."""
    return lambda: router.metric("warmroute_held") == count


def since(load: Load) -> float:
    """For how many seconds the oldest prompt there has been computed."""
    return monotonic() - load.head_since


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The in-flight count of the worker concerned, recorded at every booking."""
    counts: list[int] = []
    book = Load.book

    def booked(self: Load, *args: float, **kwargs: bool) -> Booking:
        booking = book(self, *args, **kwargs)  # type: ignore[arg-type]
        counts.append(self.in_flight)
        return booking

    monkeypatch.setattr(Load, "book", booked)
    return counts


def test_who_would_only_queue_is_held_here(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """While a long prompt is computed, further requests are held; afterwards they are sent."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET)
    first = busied(router, crowd, worker)
    others = [ask(router, crowd, f"other{number}", 2000) for number in range(3)]
    until(held(router, 3))
    assert len(worker.requests) == 1
    gate.opened.set()
    assert [answer.result().status_code for answer in (first, *others)] == [200] * 4
    assert router.metric("warmroute_held") == 0
    assert router.metric("warmroute_held_requests_total") == 3
    assert router.worker().load.promised_s == 0.0
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


def test_what_ends_elsewhere_lets_them_go(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another process of the router sent the long prompt, its report releases held requests."""
    monkeypatch.setattr(holding, "TICK_S", 3600.0)
    router = route(stub().url, health=QUIET, timeouts={"queue": "1h"})
    load, loop = router.worker().load, router._server._loop
    assert loop is not None
    theirs = load.book(monotonic(), 60.0, 60_000, elsewhere=True)
    answer = ask(router, crowd, "ours", 2000)
    until(held(router, 1))
    load.release(theirs, monotonic())
    for _ in range(3):  # processes report often
        loop.call_soon_threadsafe(router.door.freed_elsewhere)
    assert answer.result().status_code == 200
    until(router.idle)


def test_who_leaves_while_held_is_never_sent(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """A held request whose client disconnects is never sent to a worker. The strategy knows of it
    for as long as it is held."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET)
    strategy = router.door.fleet.pools[0].strategy
    assert isinstance(strategy, PrefixAware)
    under_way = strategy._tree.root
    first = busied(router, crowd, worker)
    request = httpx.Request("POST", router.url + PATH, json=asked("gone", 2000))
    request.read()
    port = httpx.URL(router.url).port
    assert port is not None
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(request.content)}\r\n\r\n"
    leaving = send(port, head.encode() + request.content)
    until(held(router, 1))
    assert under_way.users == 2
    leaving.close()
    until(held(router, 0))
    assert under_way.users == 1
    gate.opened.set()
    assert first.result().status_code == 200
    until(router.idle)
    assert under_way.users == 0
    assert len(worker.requests) == 1


def test_nobody_is_held_beyond_the_time_a_queue_may_take(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """After `timeouts.queue` a held request is sent and waits at the worker."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET, timeouts={"queue": "300ms"})
    answers = [busied(router, crowd, worker)]
    answers.append(ask(router, crowd, "other", 2000))
    until(lambda: len(worker.requests) == 2)
    gate.opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 2


def test_no_more_are_held_than_may_queue(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """Requests beyond `limits.queue` are not held but sent, as the worker has places for them."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET, limits={"queue": 1})
    answers = [busied(router, crowd, worker)]
    answers += [ask(router, crowd, f"other{number}", 2000) for number in range(3)]
    until(lambda: len(worker.requests) == 3)
    assert held(router, 1)()
    gate.opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 4


def test_those_let_go_queue_as_all_others(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """If new settings leave no place, who was held is new in the queue: it counts, and may be
    refused."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET)
    first = busied(router, crowd, worker)
    replies = [ask(router, crowd, f"other {number}", 8_000) for number in range(3)]
    until(held(router, 3))
    change(router, worker.url, health=QUIET, limits={"in_flight": 1, "queue": 1})
    until(lambda: sum(reply.done() for reply in replies) == 2)
    gate.opened.set()
    assert sorted(reply.result().status_code for reply in replies) == [200, 429, 429]
    assert first.result().status_code == 200
    assert router.metric("warmroute_queued_total") == 1


def test_new_settings_do_not_send_those_held(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are decided again, and held on if they would still only queue at the worker."""
    waits: list[Wait] = []
    turn = Holding.turn

    async def counted(self: Holding, *args: Any) -> bool:
        waits.append(args[-1])
        return await turn(self, *args)

    monkeypatch.setattr(Holding, "turn", counted)
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET)
    first = busied(router, crowd, worker)
    replies = [ask(router, crowd, f"other {number}", 8_000) for number in range(3)]
    until(held(router, 3))
    change(router, worker.url, health=QUIET, logs={"requests": True})
    until(lambda: len(waits) == 6)
    until(held(router, 3))
    (binding,) = router.door._proxy._holding._pools.values()
    assert [one.since for one in binding] == [wait.held for wait in waits[:3]]
    assert len(worker.requests) == 1
    gate.opened.set()
    assert [reply.result().status_code for reply in (first, *replies)] == [200] * 4
    assert router.metric("warmroute_held_requests_total") == 3
    until(router.idle)


def test_another_worker_that_is_free_is_taken(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """If another worker is free, nothing is held."""
    gate = Gate()
    busy, free = stub(gate.script()), stub()
    router = route(busy.url, free.url, health=QUIET)
    first = ask(router, crowd, "long", 60_000)
    until(lambda: busy.requests or free.requests)
    taken = (busy, free) if busy.requests else (free, busy)
    gate.opened.set() if taken[0] is free else None
    assert ask(router, crowd, "other", 2000).result().status_code == 200
    gate.opened.set()
    assert first.result().status_code == 200
    assert router.metric("warmroute_held_requests_total") == 0


def test_no_worker_gets_more_than_its_cap_from_those_held(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, most: list[int]
) -> None:
    """No more are held than there are places; the others queue, and the cap is never exceeded."""
    gate = Gate()
    worker = stub([gate.opened.is_set, ANSWER[:-1], 0.02, ANSWER[-1:]])
    router = route(worker.url, health=QUIET, limits={"in_flight": 2})
    answers = [busied(router, crowd, worker)]
    answers += [ask(router, crowd, f"other{number}", 2000) for number in range(6)]
    until(lambda: router.metric("warmroute_queue_length") + router.metric("warmroute_held") == 6)
    assert held(router, 1)()
    gate.opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 7
    assert max(most) <= 2
    until(router.idle)


def test_holding_and_queueing_take_no_longer_than_one_of_them_may(
    stub: MakeStub,
    route: MakeRouter,
    crowd: ThreadPoolExecutor,
    most: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A held request without a place at its deadline gets 503 and is not sent beyond the cap."""
    waits: list[Wait] = []
    begins = Admission.wait

    def once(self: Admission) -> Wait:
        waits.append(begins(self))
        return waits[-1]

    monkeypatch.setattr(Admission, "wait", once)
    begun, ended = Gate(), Gate()
    worker = stub([begun.opened.is_set, ANSWER[:-1], ended.opened.is_set, ANSWER[-1:]])
    router = route(
        {"url": worker.url, "models": ["m", "n"]},
        health=QUIET,
        limits={"in_flight": 2},
        timeouts={"queue": "1s"},
    )
    answers = [busied(router, crowd, worker)]
    answers.append(ask(router, crowd, "other", 2000))
    until(held(router, 1))
    late = ask(router, crowd, "late", 2000, "n")
    until(held(router, 2))
    begun.opened.set()
    assert late.result().status_code == 503
    ended.opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 2
    assert max(most) == 2
    assert len(waits) == 2, "one end each for the two that waited, however often they did"
    until(router.idle)


def test_who_joins_takes_those_held(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """A worker that becomes ready takes held requests, though they were decided without it."""
    gate = Gate()
    workers = stub(gate.script()), stub(gate.script())
    workers[1].well = False
    router = route(*(worker.url for worker in workers), health={"interval": "50ms"})
    first = ask(router, crowd, "long", 60_000)
    until(lambda: len(workers[0].requests) == 1)
    other = ask(router, crowd, "other", 2000)
    until(held(router, 1))
    workers[1].well = True
    until(lambda: len(workers[1].requests) == 1)
    gate.opened.set()
    assert [answer.result().status_code for answer in (first, other)] == [200] * 2


def test_a_worker_for_another_model_takes_its_own(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """In one pool, requests held for a busy model do not block those held for a free one."""
    gates = Gate(), Gate()
    workers = [stub(gate.script(), model) for gate, model in zip(gates, "mn", strict=True)]
    router = route(*(worker.url for worker in workers), health=QUIET)
    answers = []
    for worker, model in zip(workers, "mn", strict=True):
        answers.append(ask(router, crowd, "long", 60_000, model))
        until(lambda: len(worker.requests) == 1)  # noqa: B023 - looked at before the next
    answers.append(ask(router, crowd, "mine", 2000, "m"))
    until(held(router, 1))
    answers.append(ask(router, crowd, "other", 2000, "n"))
    until(held(router, 2))
    gates[0].opened.set()
    until(lambda: len(workers[0].requests) == 2)
    gates[1].opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 4


def test_those_held_hear_that_their_model_is_gone(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """Held requests get 503 early if no worker has their model any more, like queued ones."""
    gate = Gate()
    stays, goes = (stub(gate.script(), model) for model in "mn")
    soon = {"interval": "50ms", "fall": 1}
    router = route(stays.url, goes.url, health=soon, timeouts={"queue": "25s"})
    first = ask(router, crowd, "long", 60_000, "n")
    until(lambda: len(goes.requests) == 1)
    other = ask(router, crowd, "other", 2000, "n")
    until(held(router, 1))
    before = monotonic()
    goes.well = False
    reply = other.result()
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_worker")
    assert monotonic() - before < 15
    gate.opened.set()
    first.result()


def test_an_explanation_says_what_would_be_waited_for(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """`/explain` says whether the request would be held, would wait for a place, or neither."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET, limits={"in_flight": 2})

    def waits() -> tuple[str, bool]:
        found = router.http.post("/explain", json=asked("explained", 2000)).json()
        return found["waits"], "Before that it would" in found["words"]

    assert waits() == ("", False)
    answers = [busied(router, crowd, worker)]
    assert waits() == ("held", True)
    answers.append(ask(router, crowd, "other", 2000))
    until(held(router, 1))
    assert waits() == ("place", True)
    gate.opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 2


def test_an_explanation_tells_a_pause_from_a_queue(stub: MakeStub, route: MakeRouter) -> None:
    """`/explain` says so if a long prompt would be held for the sake of answers that have begun."""
    router = route(stub().url, health=QUIET)
    load = router.worker().load

    def waits(tokens: int) -> tuple[str, bool]:
        found = router.http.post("/explain", json=asked("explained", tokens)).json()
        return found["waits"], "answers there nearly stand still" in found["words"]

    def begin() -> list[Booking]:
        now = monotonic()
        begun = [load.book(now, LONG_S) for _ in range(FEW)]
        for booking in begun:
            load.first_byte(booking, now + 3600.0)  # which makes a long pause
        return begun

    def end(begun: list[Booking]) -> None:
        for booking in begun:
            load.release(booking, monotonic())

    begun: list[Booking] = []
    router.call(lambda: begun.extend(begin()))
    assert waits(60_000) == ("pause", True)
    assert waits(2_000) == ("", False)
    router.call(lambda: end(begun))
    assert waits(60_000) == ("", False)


def test_those_held_hear_that_no_worker_is_left(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """Held requests get 503 well before `timeouts.queue` if no worker is left."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health={"interval": "50ms", "fall": 1}, timeouts={"queue": "10m"})
    first = busied(router, crowd, worker)
    other = ask(router, crowd, "other", 2000)
    until(held(router, 1))
    worker.well = False
    assert other.result().status_code == 503
    gate.opened.set()
    assert first.result().status_code == 200
