"""Adapters that are loaded and unloaded while workers run: a request for one comes at once."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.health.failing import CHAT, PATH, QUIET, says
from tests.support import MakeRouter, MakeStub, Router, Stub, error_of, post, until

#: An answer that never comes to its end.
STALLS = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"


class Lists(dict[bytes, bytes]):
    """The fixed answers of a stub, which counts how often it was asked for its models."""

    asked = 0

    def __getitem__(self, path: bytes) -> bytes:
        self.asked += path == b"/v1/models"
        return super().__getitem__(path)


def listing(worker: Stub, *names: str) -> Lists:
    """Have a worker list these models from now on, and count how often it is asked."""
    worker.tells("/v1/models", {"data": [{"id": name} for name in names]})
    if not isinstance(worker.fixed, Lists):
        worker.fixed = Lists(worker.fixed)
    assert isinstance(worker.fixed, Lists)
    return worker.fixed


def ask(router: Router, model: str, **more: Any) -> httpx.Response:
    """Send a chat to a model."""
    return router.http.post(PATH, json={**CHAT, "model": model}, **more)


def test_the_first_request_is_answered(stub: MakeStub, route: MakeRouter) -> None:
    """By whichever worker has loaded it, though the router was not told; one that was found does
    not delay the next."""
    one, two = stub(), stub()
    router = route(one.url, two.url, health=QUIET)
    for number in range(1, 4):
        listing(two, "m", *(f"sql-{one}" for one in range(number)))
        assert ask(router, f"sql-{number - 1}").status_code == 200
    assert (len(one.requests), len(two.requests)) == (0, 3)


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (PATH, {"json": {**CHAT, "model": "sql"}}),
        ("/v1/embeddings", {"json": {"model": "sql", "input": "x"}}),
        ("/v1/audio/transcriptions", {"data": {"model": "sql"}, "files": {"file": b"x"}}),
        ("/explain", {"json": {**CHAT, "model": "sql"}}),
        ("/v1/models/sql", {}),
        (
            "/endpoints/e/invocations",
            {
                "json": {"messages": CHAT["messages"]},
                "headers": {"x-amzn-sagemaker-inference-component": "sql"},
            },
        ),
        ("/invocations", {"json": {"messages": CHAT["messages"], "model": "sql"}}),
    ],
)
def test_wherever_it_is_named(
    stub: MakeStub, route: MakeRouter, path: str, more: dict[str, Any]
) -> None:
    """On every path that takes a model's name."""
    worker = stub()
    router = route(worker.url, health=QUIET)
    listing(worker, "m", "sql")
    method = "POST" if more else "GET"
    assert router.http.request(method, path, **more).status_code == 200
    assert all(b"sql" in request for request in worker.requests)


def test_many_names_cause_few_questions(stub: MakeStub, route: MakeRouter) -> None:
    """However many unknown names are asked for, each worker is asked once in a few seconds."""
    workers = [stub(), stub()]
    router = route(*(worker.url for worker in workers), health=QUIET)
    lists = [listing(worker, "m") for worker in workers]
    before = [one.asked for one in lists]
    with ThreadPoolExecutor(8) as clients:
        replies = list(clients.map(lambda number: ask(router, f"x{number}"), range(80)))
    assert {error_of(reply)["code"] for reply in replies} == {"model_not_found"}
    assert [one.asked - was for one, was in zip(lists, before, strict=True)] == [1, 1]
    assert not any(worker.requests for worker in workers)


def test_one_that_hangs_is_not_waited_for(stub: MakeStub, route: MakeRouter) -> None:
    """The request goes on as soon as a worker has told of its model; and else, when the time for a
    probe is over, it is refused."""
    quick, hangs = stub(), stub()
    router = route(quick.url, hangs.url, health={"interval": "1h", "timeout": "500ms"})
    hangs.fixed[b"/v1/models"] = STALLS
    listing(quick, "m", "sql")
    assert ask(router, "sql").status_code == 200
    assert ask(router, "none").status_code == 404
    assert router.worker(1).ready


def test_a_client_that_leaves_meanwhile(stub: MakeStub, route: MakeRouter) -> None:
    """Nothing is left of its request, and others are told; a list that cannot be read changes
    nothing."""
    worker = stub()
    router = route(worker.url, health={"interval": "1h", "timeout": "1s"})
    lists = listing(worker, "m")
    listed = worker.fixed[b"/v1/models"]
    worker.fixed[b"/v1/models"] = STALLS
    before = lists.asked
    with post(router.port, PATH, json.dumps({**CHAT, "model": "sql"}).encode()):
        until(lambda: lists.asked > before)
    worker.fixed[b"/v1/models"] = listed
    assert ask(router, "none").status_code == 404
    until(router.idle)
    router.door.fleet.pools[0].sought_at -= 60
    worker.tells("/v1/models", {"models": []})
    assert ask(router, "sql").status_code == 404
    assert ask(router, "m").status_code == 200


def test_only_by_workers_that_could_have_it(stub: MakeStub, route: MakeRouter) -> None:
    """Not of another pool, and not one whose models the settings name."""
    ours, named, other = stub(), stub(), stub()
    pools = [
        {
            "name": "a",
            "models": ["m*"],
            "workers": [ours.url, {"url": named.url, "models": ["m"]}],
        },
        {"name": "b", "models": ["o*"], "workers": [other.url]},
    ]
    router = route(pools=pools, health=QUIET)
    lists = [listing(worker, "m", "m-sql", "o-sql") for worker in (ours, named, other)]
    assert ask(router, "m-sql").status_code == 200
    assert ask(router, "x").status_code == 404  # of no pool
    assert [one.asked for one in lists] == [1, 0, 0]


def test_one_that_was_unloaded(stub: MakeStub, route: MakeRouter) -> None:
    """After the worker's 404 its list is read; then the name is unknown, and found again later."""
    worker = stub()
    lists = listing(worker, "m", "sql")
    router = route(worker.url, health=QUIET)
    listing(worker, "m")
    worker.script = says(404)
    assert ask(router, "sql").content == b"{}"
    until(lambda: "sql" not in router.worker().models)
    assert error_of(ask(router, "sql"))["code"] == "model_not_found"
    assert len(worker.requests) == 1
    router.door.fleet.pools[0].sought_at -= 60
    listing(worker, "m", "sql")
    worker.script = says(200)
    assert ask(router, "sql").status_code == 200
    assert lists.asked >= 4
