"""Failover: which worker is asked next, and whose answer the client gets."""

import threading

import pytest

from router.fleet.breaker import Breaker
from tests.health.failing import CHAT, FAULTS, PATH, QUIET, ask, health, says, start, status
from tests.support import OK, Action, MakeRouter, MakeStub, Router, Stub, until


def full(name: bytes) -> list[Action]:
    """A 503 answer with Retry-After and this body."""
    fields = b"content-length: %d\r\nretry-after: 17" % len(name)
    return [b"HTTP/1.1 503 Service Unavailable\r\n%b\r\n\r\n%b" % (fields, name)]


def breaker_of(router: Router, stub: Stub) -> Breaker:
    """The router's circuit breaker for that worker."""
    return next(w.breaker for w in router.door.fleet.workers if w.name == stub.url[7:])


@pytest.mark.parametrize(("attempts", "last"), [(1, b"a"), (2, b"b"), (3, b"c"), (10, b"c")])
def test_all_are_full(stub: MakeStub, route: MakeRouter, attempts: int, last: bytes) -> None:
    """If none may wait, the client gets the refusal of the last worker that may be asked, with its
    Retry-After."""
    workers = [stub(full(name)) for name in (b"a", b"b", b"c")]
    router = route(
        *(worker.url for worker in workers),
        strategy="roundrobin",
        limits={"attempts": attempts, "queue": 0},
        health=QUIET,
    )
    reply = router.http.post(PATH, json=CHAT)
    assert (reply.status_code, reply.content) == (503, last)
    assert reply.headers["retry-after"] == "17"
    assert reply.headers["x-warmroute-worker"] == workers[last[0] - ord("a")].url[7:]
    assert [len(worker.requests) for worker in workers] == [1, 1, 1][:attempts] + [0] * (
        3 - min(3, attempts)
    )


def test_full_then_gone(stub: MakeStub, route: MakeRouter) -> None:
    """Unreachable workers do not count as attempts, so the one with room answers."""
    workers = [stub(full(b"a")), stub(), stub(full(b"c")), stub()]
    router = route(*(w.url for w in workers), strategy="roundrobin", health=QUIET)
    workers[1].stop()
    reply = router.http.post(PATH, json=CHAT)
    assert reply.status_code == 200
    assert reply.headers["x-warmroute-worker"] == workers[3].url[7:]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_may_have_begun(stub: MakeStub, route: MakeRouter, fault: str) -> None:
    """A request that may have begun on a worker is not sent again, whatever the budget."""
    script, _ = FAULTS[fault]
    bad, good = stub(script), stub()
    router = route(
        bad.url,
        good.url,
        strategy="roundrobin",
        limits={"retries": 1.0, "attempts": 10},
        timeouts={"first_byte": "200ms"},
        health=QUIET,
    )
    router.http.post(PATH, json=CHAT)
    until(router.idle)
    assert (len(bad.requests), len(good.requests)) == (1, 0)


@pytest.mark.parametrize("status", [400, 401, 404, 408, 422, 429, 500, 501, 502, 504])
def test_other_answers_are_answers(stub: MakeStub, route: MakeRouter, status: int) -> None:
    """These answers are relayed as they are, and no other worker is asked."""
    odd, good = stub(says(status)), stub()
    router = route(odd.url, good.url, strategy="roundrobin", health=QUIET)
    reply = router.http.post(PATH, json=CHAT)
    assert (reply.status_code, reply.content) == (status, b"{}")
    assert (len(odd.requests), len(good.requests)) == (1, 0)


def test_one_that_is_left_out_meanwhile(stub: MakeStub, route: MakeRouter) -> None:
    """A candidate that was ejected while the first worker answered is skipped."""
    refuses = threading.Event()
    busy, bad, well = stub([refuses.is_set, *full(b"a")]), stub(says(500)), stub()
    settings = health(failures=1, panic=0)
    workers = (busy.url, bad.url, well.url)
    router = route(*workers, strategy="roundrobin", health=settings)
    client = start(router)
    until(lambda: len(busy.requests) == 1)
    assert ask(router) == [500]
    assert not breaker_of(router, bad).closed
    refuses.set()
    assert status(client) == 200
    assert (len(bad.requests), len(well.requests)) == (1, 1)
    until(router.idle)


#: How engines say that they have not got a model, or a path; the last two are no such thing.
MODEL = b'{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","code":404}}'
OLD = b'{"object":"error","message":"The model `m` does not exist.","param":null,"code":404}'
MESSAGES = (
    b'{"type":"error","error":{"type":"not_found_error","message":"The model `m` does not exist."}}'
)
FASTAPI, VLLM = b'{"detail":"Not Found"}', b'{"error":{"message":"Not Found","code":404}}'
RESPONSE = b'{"error":{"message":"Response with id \'r\' not found.","code":404}}'
ODD = b'{"error":"The model `m` does not exist."}'


TASK = b'{"error":{"message":"The model does not support Chat Completions API","code":501}}'
TEMPLATE = (
    b'{"error":{"message":"As of transformers v4.44, default chat template is no longer allowed,'
    b' so you must provide a chat template if the tokenizer does not define one.","code":400}}'
)
MEDIA = b'{"error":{"message":"At most 0 image(s) may be provided in one prompt.","code":400}}'
LENGTH = b'{"error":{"message":"This model\'s maximum context length is 9 tokens.","code":400}}'


def lacking(said: bytes, status: int = 404) -> list[Action]:
    """A script that refuses."""
    return [b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(said), said)]


@pytest.mark.parametrize("said", [MODEL, OLD, MESSAGES, FASTAPI, VLLM])
def test_one_that_lacks_the_model_or_the_path(
    stub: MakeStub, route: MakeRouter, said: bytes
) -> None:
    """Its 404 is for the client only if no other worker is there; the endpoint is remembered."""
    lacks, good = stub(lacking(said)), stub()
    router = route(lacks.url, good.url, strategy="roundrobin", health=QUIET)
    assert ask(router, 6) == [200] * 6
    path = said in {FASTAPI, VLLM}
    assert len(lacks.requests) == (1 if path else 6)
    failures = "warmroute_worker_errors_total"
    labels = {"pool": "default", "worker": lacks.url[7:], "kind": "missing"}
    assert router.metric(failures, **labels) == len(lacks.requests)
    good.script = lacking(said)
    reply = router.http.post(PATH, json=CHAT)
    assert (reply.status_code, reply.content) == (404, said)
    until(router.idle)


@pytest.mark.parametrize(
    ("status", "said", "remembered"),
    [(501, TASK, True), (400, TEMPLATE, True), (400, MEDIA, False), (400, LENGTH, False)],
)
def test_one_that_cannot_do_what_others_can(
    stub: MakeStub, route: MakeRouter, status: int, said: bytes, remembered: bool
) -> None:
    """Another answers in its place; what concerns all requests to the endpoint is remembered."""
    unable, good = stub(lacking(said, status)), stub()
    for worker, limit in ((unable, 1000), (good, 2000)):
        worker.tells("/v1/models", {"data": [{"id": "m", "max_model_len": limit}]})
    router = route(unable.url, good.url, strategy="roundrobin", health=QUIET)
    assert ask(router, 6) == [200] * 6
    assert len(unable.requests) == (1 if remembered else 6)
    good.script = lacking(said, status)
    reply = router.http.post(PATH, json=CHAT)
    assert (reply.status_code, reply.content) == (status, said)
    until(router.idle)


def test_what_every_worker_refuses_is_not_remembered(stub: MakeStub, route: MakeRouter) -> None:
    """It may be the request: the next one may go to all of them."""
    one, two = (stub(lacking(TEMPLATE, 400)) for _ in range(2))
    router = route(one.url, two.url, strategy="roundrobin", health=QUIET)
    assert ask(router, 1) == [400]
    one.script = two.script = OK
    assert ask(router, 4) == [200] * 4
    assert (len(one.requests), len(two.requests)) == (3, 3)


def test_workers_of_one_length_are_not_asked_in_turn(stub: MakeStub, route: MakeRouter) -> None:
    """A prompt that is too long for one is too long for all."""
    one, two = (stub(lacking(LENGTH, 400)) for _ in range(2))
    router = route(one.url, two.url, strategy="roundrobin", health=QUIET)
    assert ask(router, 1) == [400]
    assert len(one.requests) + len(two.requests) == 1


@pytest.mark.parametrize("said", [RESPONSE, ODD, b"[]", b""])
def test_another_404_is_an_answer(stub: MakeStub, route: MakeRouter, said: bytes) -> None:
    """What is missing may be the request's own, such as a response to continue."""
    odd, good = stub(lacking(said)), stub()
    router = route(odd.url, good.url, strategy="roundrobin", health=QUIET)
    reply = router.http.post(PATH, json=CHAT)
    assert (reply.status_code, reply.content) == (404, said)
    assert not good.requests
