"""Explanations of requests that no worker would be sent: what they would get, and why."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from router.fleet.worker import ProbeState
from tests.support import OK, MakeRouter, MakeStub, Router, Stub, error_of, post, until

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
QUIET = {"interval": "30s"}
KEYS = {f"KEY_{name.upper()}": name * 40 for name in "abo"}
OPS = {"authorization": f"Bearer {KEYS['KEY_O']}"}


def explain(router: Router, body: dict[str, Any] = CHAT) -> dict[str, Any]:
    """The router's explanation."""
    answer = router.http.post("/explain", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def left_out(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """State and reason of each worker that is left out."""
    return {one["worker"]: (one["state"], one["reason"]) for one in found["left_out"]}


@contextmanager
def sent(router: Router, worker: Stub, count: int, *fields: bytes) -> Iterator[None]:
    """So many requests are with the router: one at its only worker, the others in the queue."""
    done: list[int] = []
    worker.script = [lambda: bool(done), *OK]
    clients = [post(router.port, PATH, json.dumps(CHAT).encode(), *fields) for _ in range(count)]
    try:
        until(lambda: worker.requests)
        until(lambda: router.metric("warmroute_queue_length") == count - 1)
        yield
    finally:
        done.append(1)
        for client in clients:
            client.close()


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys `a`, `b`, and `o` of an operator are in the environment."""
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)


@pytest.fixture
def empty(stub: MakeStub, route: MakeRouter) -> Router:
    """A router whose workers are down, draining, or of another model."""
    router = route(
        {"name": "a", "url": stub().url},
        {"name": "drains", "url": stub().url, "drain": True},
        {"name": "other", "url": stub(model="o").url},
        health=QUIET,
    )
    router.call(lambda: router.worker().become(ProbeState.DOWN, "it was unplugged"))
    return router


def test_without_any_worker_all_are_named_with_the_reason(empty: Router) -> None:
    """The explanation has the very error that the request gets, and says why nobody takes it."""
    found = explain(empty)
    refused = empty.http.post(PATH, json=CHAT)
    error = error_of(refused)
    assert found["refused"] == {
        "status": refused.status_code,
        "code": error["code"],
        "message": error["message"],
    }
    assert (found["reason"], found["pool"], found["workers"]) == ("refused", "default", [])
    assert found["tokens"] > 0
    assert left_out(found) == {
        "a": ("down", "it was unplugged"),
        "drains": ("draining", "the settings say `drain`"),
        "other": ("other", "it does not serve 'm'"),
    }


@pytest.mark.parametrize("overflow", [{}, {"status": 503, "body": "hyperpod"}])
def test_a_full_queue_refuses(stub: MakeStub, route: MakeRouter, overflow: dict[str, Any]) -> None:
    """If it would not even queue, the explanation has the error that the request gets."""
    worker = stub()
    limits = {"in_flight": 1, "queue": 1, "overflow": overflow}
    router = route(worker.url, limits=limits, health=QUIET)
    with sent(router, worker, 1):
        found = explain(router)
        assert (found["waits"], found["refused"]) == ("place", None)
    until(router.idle)
    worker.requests.clear()
    with sent(router, worker, 2):
        found = explain(router)
        answer = router.http.post(PATH, json=CHAT)
    status, code = 503 if overflow else 429, "queue_full"
    assert answer.status_code == status
    assert overflow or error_of(answer)["code"] == code  # HyperPod's body has no code
    said = answer.json()["error"] if overflow else error_of(answer)["message"]
    assert found["refused"] == {"status": status, "code": code, "message": said}
    assert (found["waits"], len(found["workers"])) == ("", 1)


@pytest.mark.usefixtures("keys")
def test_another_key_would_displace_a_request_in_a_full_queue(
    stub: MakeStub, route: MakeRouter
) -> None:
    """The key that has filled the queue is refused; one that has nothing there still queues."""
    worker = stub()
    keys = [{"name": name, "key": f"${{KEY_{name.upper()}}}"} for name in "abo"]
    router = route(
        worker.url,
        auth={"keys": keys[:2], "separate_caches": True},
        admin={"keys": keys[2:]},
        limits={"in_flight": 1, "queue": 2},
        health=QUIET,
    )

    def explained(key: str) -> dict[str, Any]:
        answer = router.http.post("/explain", params={"key": key}, json=CHAT, headers=OPS)
        found: dict[str, Any] = answer.json()
        return found

    with sent(router, worker, 3, f"authorization: Bearer {KEYS['KEY_A']}".encode()):
        assert explained("a")["refused"]["code"] == "queue_full"
        assert (explained("b")["refused"], explained("b")["waits"]) == (None, "place")


@pytest.mark.usefixtures("keys")
def test_an_operator_s_own_name_does_not_count_where_clients_have_no_keys(
    stub: MakeStub, route: MakeRouter
) -> None:
    """The request would come without a key, as those before it that have filled the queue."""
    worker = stub()
    router = route(
        worker.url,
        auth="none",
        admin={"keys": [{"name": "o", "key": "${KEY_O}"}]},
        limits={"in_flight": 1, "queue": 2},
        health=QUIET,
    )
    with sent(router, worker, 3):
        found = router.http.post("/explain", json=CHAT, headers=OPS).json()
        assert found["refused"]["code"] == "queue_full"
