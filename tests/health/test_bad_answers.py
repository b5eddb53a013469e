"""A worker that answers badly what its peers answer well is left; a bad request costs none."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.health.failing import (
    CHAT,
    CHUNK,
    DONE,
    EMPTY,
    EVENT,
    PATH,
    QUIET,
    SSE,
    ask,
    ejected,
    events,
    health,
    says,
)
from tests.support import OK, Action, MakeRouter, MakeStub, Router, Stub, until

COMPLETIONS = "/v1/completions"
#: An error that comes as an event and is the request's fault.
REJECTS = events('data: {"error":{"message":"no","type":"BadRequestError","code":400}}', DONE)
ANTHROPIC = events('event: error\ndata: {"type":"error","error":{"type":"api_error"}}')
OLD = events('data: {"object":"error","message":"it failed","code":500}', DONE)
LATE = events('data: {"choices":[{"delta":{"content":"a"}}]}', 'data: {"error":{"code":500}}', DONE)
ROLE = 'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}'
WORD = 'data: {"choices": [{"delta": {"content": "a"}}]}'
STOP = 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}'


def document(text: str) -> list[Action]:
    """A script that answers with a JSON document."""
    kind = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    return [f"{kind}content-length: {len(text)}\r\n\r\n{text}".encode()]


WRONG: list[Action] = [
    b"HTTP/1.1 400 X\r\ncontent-type: application/json\r\ncontent-length: 22\r\n\r\n"
    b'{"error":{"code":"a"}}'
]
WRITES = events('data: {"choices":[{"delta":{"content":"\\ndata: {\\"error\\": 1}"}}]}', DONE)


def chat(router: Router, text: str) -> int:
    """Send a chat with that text; return the status."""
    asked = {**CHAT, "messages": [{"role": "user", "content": text}]}
    return router.http.post(PATH, json=asked).status_code


def states(router: Router) -> list[str]:
    """The state of every worker, as operators see it."""
    return [one["state"] for one in router.http.get("/workers").json()]


@pytest.mark.parametrize(
    ("strategy", "answer"),
    [
        ("roundrobin", says(400)),
        ("leastload", WRONG),
        ("prefixaware", says(422)),
        ("leastload", REJECTS),
    ],
)
def test_quick_refusals_attract_nothing(
    stub: MakeStub, route: MakeRouter, strategy: str, answer: list[Action]
) -> None:
    """A worker that refuses what others answer is asked less and less, and operators see it."""
    bad, *good = stub(answer), stub(), stub()
    router = route(*(w.url for w in (bad, *good)), strategy=strategy, health=QUIET)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: chat(router, f"question {n} " * 100), range(90)))
    assert 2 <= len(bad.requests) < 20
    assert ejected(router) == [0, 0, 0]  # what the others do not do, it may do
    until(router.idle)
    shown = router.http.get("/workers").json()[0]
    assert shown["state"] == "backing_off"
    assert PATH in shown["reason"]


def test_one_endpoint_says_nothing_of_another(stub: MakeStub, route: MakeRouter) -> None:
    """A worker that refuses chats, as it has no template, still gets its completions."""
    bad, good = stub(), stub()
    bad.script_of[PATH.encode()] = says(400)
    router = route(bad.url, good.url, strategy="roundrobin", health=QUIET)
    ask(router, 20)
    assert served(bad, PATH.encode()) < 8
    for _ in range(20):
        reply = router.http.post(COMPLETIONS, json={"model": "m", "prompt": "hello"})
        assert reply.status_code == 200
    assert served(bad, COMPLETIONS.encode()) == 10


def test_one_endpoint_that_fails_ejects_none(stub: MakeStub, route: MakeRouter) -> None:
    """A worker that fails embeddings and answers chats is not ejected, but left for embeddings."""
    bad, good = stub(), stub()
    bad.script_of[b"/v1/embeddings"] = says(500)
    router = route(bad.url, good.url, strategy="roundrobin", health=health())
    for _ in range(30):
        assert ask(router) == [200]
        router.http.post("/v1/embeddings", json={"model": "m", "input": "hello"})
    assert ejected(router) == [0, 0]
    assert sum(b"/v1/embeddings" in request for request in bad.requests) < 10


@pytest.mark.parametrize(
    "script",
    [
        ANTHROPIC,
        OLD,
        LATE,
        document('{"error":{"code":500}}'),
        document(' { "object": "error", "message": "it failed" }'),
        document('{"type": "error", "error": {"type": "api_error"}}'),
        events('data: {"type": "error", "error": "it failed"}'),
        events(": waiting", DONE),
        events(ROLE, DONE),
        events(ROLE, STOP, DONE),
        events(ROLE, WORD),
        document('{"choices": [{"message": {"role": "assistant", "content": ""}}]}'),
        document('{"choices": [{"text": ""}]}'),
    ],
    ids=[
        *("anthropic", "old", "late", "body", "old body", "anthropic's body", "no name"),
        *("a comment", "a role", "a reason", "no end", "no content", "no text"),
    ],
)
def test_what_only_the_answer_tells(
    stub: MakeStub, route: MakeRouter, script: list[Action]
) -> None:
    """An error after the status, in any format, first or last, counts as a failure; so does an
    answer that says nothing, or breaks off, where a peer writes something."""
    bad, good = stub(script), stub(WRITES)
    router = route(bad.url, good.url, strategy="roundrobin", health=health())
    until(lambda: ask(router) and ejected(router) == [1, 0])
    ask(router, 10)
    assert ejected(router) == [1, 0]  # what only looks like an error is none


def test_what_all_answer_with_nothing(stub: MakeStub, route: MakeRouter) -> None:
    """A request to which no model says anything, or nothing that is shown, costs no worker."""
    hidden = document('{"choices": [{"text": ""}], "usage": {"completion_tokens": 9}}')
    workers = [stub(events(ROLE, STOP, DONE)), stub(document('{"choices": [{"text": ""}]}'))]
    router = route(*(w.url for w in workers), strategy="roundrobin", health=health())
    assert ask(router, 20) == [200] * 20
    assert ejected(router) == [0, 0]
    workers[1].script = hidden
    assert ask(router, 20) == [200] * 20
    assert states(router)[1] == "ready"


def by_number(number: int) -> str:
    """A prompt of its own."""
    return f"bad {number} " * 60


def same_start(number: int) -> str:
    """A prompt that begins like the others."""
    return "bad " * 400 + str(number)


@pytest.mark.parametrize(
    ("share", "prompt", "answer"),
    [
        (1.0, by_number, says(500)),
        (0.7, same_start, ["close"]),
        (0.3, by_number, EMPTY),
        (0.3, same_start, EVENT),
    ],
)
def test_bad_requests_eject_no_worker(
    stub: MakeStub,
    route: MakeRouter,
    share: float,
    prompt: Callable[[int], str],
    answer: list[Action],
) -> None:
    """What fails wherever it is sent is the request's fault: others are answered by all workers."""
    workers = [stub() for _ in range(4)]
    for worker in workers:
        worker.script_of[b"bad "] = answer
    router = route(*(worker.url for worker in workers), health=health(failures=5))
    for number in range(120):
        if number * share % 1 + share >= 1:
            chat(router, prompt(number))
        elif number % 2:
            assert chat(router, f"good {number} " * 60) == 200
    until(router.idle)
    assert ejected(router) == [0] * 4
    with ThreadPoolExecutor(4) as pool:
        out = list(pool.map(lambda n: chat(router, f"fine {n} " * 60), range(80)))
    assert out == [200] * 80
    assert all(served(worker, b"fine") >= 5 for worker in workers)


@pytest.mark.parametrize("answer", [LATE, events(ROLE, STOP, DONE), [SSE, CHUNK, "close"]])
def test_answers_that_begin_well(stub: MakeStub, route: MakeRouter, answer: list[Action]) -> None:
    """A request whose answer fails in the middle, wherever it is sent, ejects no worker."""
    workers = [stub() for _ in range(4)]
    for worker in workers:
        worker.script_of[b"bad "] = answer
    urls = (worker.url for worker in workers)
    router = route(*urls, strategy="roundrobin", health=health())
    for number in range(60):
        chat(router, by_number(number))
    until(router.idle)
    assert ejected(router) == [0] * 4
    assert set(states(router)) == {"ready"}


def served(worker: Stub, word: bytes) -> int:
    """How many requests with that word a worker got."""
    return sum(word in request for request in worker.requests)


def test_a_burst_is_no_row(stub: MakeStub, route: MakeRouter) -> None:
    """Bad requests of one client that are at a worker at once count as one failure.

    They end one by one, and in between others are answered elsewhere.
    """
    one, two = stub(), stub()
    tickets: list[int] = []
    over = threading.Event()
    one.script_of[b"bad "] = [lambda: bool(tickets and tickets.pop()), *says(500)]
    two.script_of[b"bad "] = [over.is_set, *OK]
    router = route(one.url, two.url, strategy="roundrobin", health=health())
    with ThreadPoolExecutor(16) as pool:
        clients = [pool.submit(chat, router, "bad ") for _ in range(16)]
        until(lambda: served(one, b"bad ") == 8)
        for ended in range(1, 9):
            tickets.append(1)
            until(lambda: sum(client.done() for client in clients) == ended)  # noqa: B023
            assert chat(router, "good") == 200
        assert ejected(router) == [0, 0]
        over.set()


def test_the_log_of_requests_names_a_flaw(
    stub: MakeStub, route: MakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """An answer of status 200 that is an error is counted and logged as a failure."""
    caplog.set_level("INFO", "warmroute.requests")
    worker = stub(EVENT)
    router = route(worker.url, logs={"requests": True}, health=QUIET)
    ask(router)
    until(lambda: "failure=event" in caplog.text)
    labels = {"pool": "default", "worker": worker.url[7:], "kind": "event"}
    assert router.metric("warmroute_worker_errors_total", **labels) == 1
