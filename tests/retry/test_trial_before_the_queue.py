"""An early trial while others queue: it is for whoever the other workers refused first."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from time import monotonic

import httpx

from tests.health.failing import CHAT, PATH, health
from tests.overload.test_overload import line_is
from tests.retry.test_failover import breaker_of, full
from tests.support import OK, MakeRouter, MakeStub, Router, until


def say(router: Router, crowd: ThreadPoolExecutor, text: str) -> Future[httpx.Response]:
    """Send a request with that text, on a connection of its own."""
    asked = {**CHAT, "messages": [{"role": "user", "content": text}]}
    return crowd.submit(httpx.post, router.url + PATH, json=asked, timeout=30)


def test_one_that_was_left_out_although_others_queue(stub: MakeStub, route: MakeRouter) -> None:
    """The first that is refused is the trial; then come those in the queue, and newcomers last."""
    events = refuses, later, trial = threading.Event(), threading.Event(), threading.Event()
    busy, well = stub([refuses.is_set, *full(b"a")]), stub([trial.is_set, *OK])
    router = route(
        busy.url,
        well.url,
        strategy="roundrobin",
        health=health(failures=1, first="10ms", panic=0),
        limits={"in_flight": 1},
        timeouts={"queue": "10m"},
    )
    breaker = breaker_of(router, well)
    router.call(lambda: breaker.failed(monotonic(), breaker.began(monotonic()), "5xx"))
    breaker.until += 3600
    until(lambda: breaker.near(monotonic()))
    with ThreadPoolExecutor(5) as crowd:
        try:
            clients = [say(router, crowd, "first")]
            until(lambda: busy.requests)
            for place in (1, 2, 3):
                clients.append(say(router, crowd, f"queued {place}"))
                until(partial(line_is, router, place))
            busy.script = [later.is_set, *full(b"a")]
            refuses.set()
            until(lambda: well.requests)
            assert b"first" in well.requests[0]
            until(lambda: len(busy.requests) == 2)  # the place there is free for the next
            clients.append(say(router, crowd, "newcomer"))
            until(lambda: line_is(router, 3))
            trial.set()
            until(lambda: sum(client.done() for client in clients) == 4)
            later.set()
            assert [client.result().status_code for client in clients] == [200] * 5
        finally:
            for event in events:
                event.set()
    words = (b"first", b"queued 2", b"queued 3", b"newcomer", b"queued 1")
    assert [word in body for word, body in zip(words, well.requests, strict=True)] == [True] * 5
