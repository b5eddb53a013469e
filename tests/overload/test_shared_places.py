"""Requests for several models wait for places on the workers that they share."""

import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import httpx

from tests.overload.test_overload import line_is
from tests.reload.changing import change
from tests.support import OK, MakeRouter, MakeStub, Stub, until

PATH = "/v1/chat/completions"


def names(worker: Stub) -> list[str]:
    """The ids of the requests that reached the worker, in order."""
    return [
        name.decode() for name in re.findall(rb"x-request-id: (\w+)", b"".join(worker.requests))
    ]


def test_places_that_two_models_share_leave_both_in_order(
    stub: MakeStub, route: MakeRouter
) -> None:
    """None is called for a place that another has got: it would come back as the last in line."""
    opened = threading.Event()
    worker = stub([opened.is_set, *OK])
    entry = {"url": worker.url, "models": ["m", "n"]}
    router = route(entry, limits={"in_flight": 1}, strategy="leastload")

    def ask(name: str) -> Future[httpx.Response]:
        said, fields = {"model": name[0], "messages": []}, {"x-request-id": name}
        return crowd.submit(httpx.post, router.url + PATH, json=said, headers=fields, timeout=30)

    with ThreadPoolExecutor(8) as crowd:
        replies = [ask("m0")]
        try:
            until(lambda: len(worker.requests) == 1)
            for place, name in enumerate(("m1", "m2", "n0", "n1", "n2"), 1):
                replies.append(ask(name))
                until(partial(line_is, router, place))
            change(router, entry, limits={"in_flight": 3}, strategy="leastload")
            until(lambda: len(worker.requests) == 3)
            change(router, entry, limits={"in_flight": 1}, strategy="leastload")
        finally:
            opened.set()
        assert {reply.result().status_code for reply in replies} == {200}
    assert sorted(names(worker)[:3]) == ["m0", "m1", "m2"]
    assert names(worker)[3:] == ["n0", "n1", "n2"]
    assert router.metric("warmroute_queued_total") == 5
