"""A request that leaves a full queue because one of another pool takes its place."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import httpx

from tests.overload.test_overload import line_is
from tests.support import OK, MakeRouter, MakeStub, until

PATH = "/v1/chat/completions"


def test_it_is_told_the_limits_of_its_own_pool(stub: MakeStub, route: MakeRouter) -> None:
    """HyperPod's body counts the places of the pool that the refused request was for."""
    opened = threading.Event()
    workers = [stub([opened.is_set, *OK], model) for model in ("one", "two", "two")]
    urls = [worker.url for worker in workers]
    router = route(
        pools=[
            {"name": "one", "models": ["one"], "workers": urls[:1]},
            {"name": "two", "models": ["two"], "workers": urls[1:]},
        ],
        strategy="leastload",
        limits={"in_flight": 1, "queue": 2, "overflow": {"body": "hyperpod"}},
    )

    def ask(model: str) -> Future[httpx.Response]:
        said = {"model": model, "messages": []}
        return crowd.submit(httpx.post, router.url + PATH, json=said, timeout=30)

    with ThreadPoolExecutor(8) as crowd:
        replies = [ask("one"), ask("two"), ask("two")]
        try:
            until(lambda: all(worker.requests for worker in workers))
            waiting = []
            for place in (1, 2):
                waiting.append(ask("one"))
                until(partial(line_is, router, place))
            replies += [waiting[0], ask("two")]
            refused = waiting[1].result(20)
        finally:
            opened.set()
        assert refused.status_code == 429
        assert refused.json()["max_concurrent"] == refused.json()["current"] == 1
        assert {reply.result().status_code for reply in replies} == {200}
