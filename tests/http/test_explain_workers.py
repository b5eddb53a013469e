"""Explanations: workers that are left out, refusals, and requests of sessions."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from router.fleet.worker import ProbeState
from strategies.api import Decision, Prompt, Strategy, WorkerView
from tests.commands import run
from tests.support import OK, Action, MakeRouter, MakeStub, Router, Stub, error_of, post, until

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
QUIET = {"interval": "30s"}
FAILS: list[Action] = [b"HTTP/1.1 500 Broken\r\ncontent-length: 2\r\n\r\n{}"]
KEYS = {f"KEY_{name.upper()}": name * 40 for name in "abo"}
OPS = {"authorization": f"Bearer {KEYS['KEY_O']}"}


def explain(router: Router, session: str | None = None) -> dict[str, Any]:
    """The router's explanation."""
    named = {"x-session-id": session} if session else {}
    answer = router.http.post("/explain", json=CHAT, headers=named)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def left_out(router: Router) -> dict[str, tuple[str, str]]:
    """State and reason of each worker that is left out."""
    return {one["worker"]: (one["state"], one["reason"]) for one in explain(router)["left_out"]}


@contextmanager
def busy(router: Router, worker: Stub, *fields: bytes, count: int = 1) -> Iterator[None]:
    """So many requests are with the router: one at this worker, the others in the queue."""
    done: list[int] = []
    worker.script = [lambda: bool(done), *OK]
    before = len(worker.requests)
    clients = [post(router.port, PATH, json.dumps(CHAT).encode(), *fields) for _ in range(count)]
    try:
        until(lambda: len(worker.requests) > before)
        until(lambda: router.metric("warmroute_queue_length") == count - 1)
        yield
    finally:
        done.append(1)
        for client in clients:
            client.close()
        worker.script = OK
        until(router.idle)


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
    assert left_out(empty) == {
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
    with busy(router, worker):
        found = explain(router)
        assert (found["waits"], found["refused"]) == ("place", None)
    with busy(router, worker, count=2):
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

    bearer = f"authorization: Bearer {KEYS['KEY_A']}".encode()
    with busy(router, worker, bearer, count=3):
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
    with busy(router, worker, count=3):
        found = router.http.post("/explain", json=CHAT, headers=OPS).json()
        assert found["refused"]["code"] == "queue_full"


def test_workers_that_are_left_out_are_named_with_the_reason(
    stub: MakeStub, route: MakeRouter
) -> None:
    """Workers that are down, drain or serve other models are no candidates, and it says why."""
    router = route(
        {"name": "a", "url": stub().url},
        {"name": "drains", "url": stub().url, "drain": True},
        {"name": "other", "url": stub(model="o").url},
        {"name": "gone", "url": "http://127.0.0.1:9"},
        health=QUIET,
    )
    assert [one["worker"] for one in explain(router)["workers"]] == ["a"]
    found = left_out(router)
    assert set(found) == {"drains", "other", "gone"}
    assert found["drains"] == ("draining", "the settings say `drain`")
    assert found["other"] == ("other", "it does not serve 'm'")
    assert found["gone"][0] == "down"
    assert "refused" in found["gone"][1]


def test_a_full_worker_is_left_out(stub: MakeStub, route: MakeRouter) -> None:
    """A worker with `limits.in_flight` requests is left out while another one has room."""
    workers = {name: stub() for name in "ab"}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    router = route(*listed, limits={"in_flight": 1}, health=QUIET)
    assert left_out(router) == {}
    first = explain(router)["workers"][0]["worker"]
    with busy(router, workers[first]):
        said = "it has 1 requests in flight; `limits.in_flight` is 1"
        assert left_out(router) == {first: ("full", said)}
        assert explain(router)["waits"] == ""


def test_an_ejected_worker_is_left_out(stub: MakeStub, route: MakeRouter) -> None:
    """An ejected worker is named with its failures."""
    workers = {name: stub(FAILS) for name in "ab"}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    health = {**QUIET, "ejection": {"failures": 1, "first": "1h", "longest": "2h"}}
    router = route(*listed, health=health)
    bad = router.http.post(PATH, json=CHAT).headers["x-warmroute-worker"]
    until(lambda: bad in left_out(router))
    state, reason = left_out(router)[bad]
    assert state == "ejected"
    assert "5xx" in reason


def test_a_reason_of_several_lines_is_one_header(stub: MakeStub, route: MakeRouter) -> None:
    """A strategy of others may give any text; the client gets no header that it made up."""
    router = route(stub().url, health=QUIET)
    strategy = router.door.fleet.pools[0].strategy
    router.door.fleet.pools[0].strategy = Loud(strategy)  # type: ignore[assignment]
    reply = router.http.post(PATH, json=CHAT)
    assert reply.status_code == 200
    assert "x-more" not in reply.headers
    assert reply.headers["x-warmroute-decision"].startswith(r"'load\r\nx-more: 1'")


class Loud:
    """A strategy whose reason has a line end."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Rank as the strategy does."""
        return replace(self._strategy.rank(prompt, workers, now), reason="load\r\nx-more: 1")

    def __getattr__(self, name: str) -> object:
        return getattr(self._strategy, name)


@pytest.fixture
def pair(stub: MakeStub) -> dict[str, Stub]:
    """Two workers, by name."""
    return {name: stub() for name in "ab"}


def in_sessions(route: MakeRouter, pair: dict[str, Stub], **session: object) -> Router:
    """A router with sessions in front of both workers."""
    listed = [{"name": name, "url": worker.url} for name, worker in pair.items()]
    return route(
        *listed, strategy="session", session=session, limits={"in_flight": 1}, health=QUIET
    )


def test_a_session_s_request_is_explained_as_such(route: MakeRouter, pair: dict[str, Stub]) -> None:
    """A request that names a session would go to its worker, or wait for it; nothing else would."""
    router = in_sessions(route, pair)
    named = {"x-session-id": "s"}
    home = router.http.post(PATH, json=CHAT, headers=named).headers["x-warmroute-worker"]
    until(router.idle)
    found = explain(router, "s")
    assert (found["reason"], found["workers"][0]["worker"]) == ("session", home)
    assert explain(router, "t")["reason"] == "bind"
    assert explain(router)["reason"] == "cold"
    with busy(router, pair[home], b"x-session-id: s"):
        assert explain(router, "s")["waits"] == "place"
        assert explain(router, "t")["waits"] == ""


def test_explaining_does_not_use_the_session(route: MakeRouter, pair: dict[str, Stub]) -> None:
    """An explanation neither starts a session nor extends one."""
    router = in_sessions(route, pair, sliding=True, ttl="2s")
    router.http.post(PATH, json=CHAT, headers={"x-session-id": "s"})
    until(router.idle)
    assert [session["id"] for session in router.http.get("/sessions").json()] == ["s"]
    explain(router, "t")
    assert [session["id"] for session in router.http.get("/sessions").json()] == ["s"]
    until(lambda: explain(router, "s")["reason"] == "bind")


def test_a_session_that_may_not_move_is_refused_as_the_request_would_be(
    route: MakeRouter, pair: dict[str, Stub]
) -> None:
    """With `on_worker_lost: error` a lost worker is a 410; the session stays open all the same."""
    router = in_sessions(route, pair, on_worker_lost="error")
    named = {"x-session-id": "s"}
    home = router.http.post(PATH, json=CHAT, headers=named).headers["x-warmroute-worker"]
    until(router.idle)
    worker = router.door.fleet.pools[0].named[home]
    router.call(lambda: worker.become(ProbeState.DOWN, "gone"))
    for _ in range(2):
        refused = router.http.post("/explain", json=CHAT, headers=named)
        assert (refused.status_code, error_of(refused)["code"]) == (410, "session_lost")
    assert explain(router, "t")["reason"] == "bind"
    assert len(router.http.get("/sessions").json()) == 1
    assert router.http.post(PATH, json=CHAT, headers=named).status_code == 410


def test_without_sessions_their_names_are_said_to_be_ignored(
    route: MakeRouter, pair: dict[str, Stub]
) -> None:
    """Where the strategy keeps no sessions, the request is served as if it named none."""
    router = route(*(worker.url for worker in pair.values()), health=QUIET)
    for named in ({"x-session-id": "a b"}, {"x-amzn-sagemaker-session-id": "s"}):
        served = router.http.post(PATH, json=CHAT, headers=named)
        assert (served.status_code, "x-warmroute-session" in served.headers) == (200, False)
        found = router.http.post("/explain", json=CHAT, headers=named).json()
        assert "is ignored" in found["words"]
    assert "is ignored" not in explain(router)["words"]


@pytest.mark.long
@pytest.mark.timeout(180)
def test_the_command(route: MakeRouter, pair: dict[str, Stub], tmp_path: Path) -> None:
    """`--session` asks about a session's request; the workers left out follow the table."""
    router = in_sessions(route, pair)
    file, body = tmp_path / "c.yaml", tmp_path / "body.json"
    file.write_text("workers: [{url: 'http://127.0.0.1:9'}]\nsession: {header: x-session-id}\n")
    body.write_text(json.dumps(CHAT))
    for key in (b"s", "a é".encode()):
        home = router.http.post(PATH, json=CHAT, headers={b"x-session-id": key})
        worker = home.headers["x-warmroute-worker"]
        until(router.idle)
        asked = ("explain", file, "--request", body, "--session", key.decode())
        done = run(*asked, "--url", router.url)
        assert f"session: The session is bound to {worker}." in done.stdout
    offline = run(*asked)
    assert (offline.returncode, "add --url" in offline.stderr) == (2, True)
    empty = run(*asked[:-1], " ", "--url", router.url)
    assert (empty.returncode, "--session: an empty id" in empty.stderr) == (2, True)
    with busy(router, pair[worker], b"x-session-id: " + key):
        full = run(*asked[:-2], "--url", router.url)
    assert " is left out, full: it has 1 requests" in full.stdout
    file.write_text(file.read_text() + "auth: {keys: [{name: chat, key: '${NOT_SET_HERE}'}]}\n")
    done = run(*asked, "--url", router.url)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--session: only its header is taken from {file}" in done.stderr


@pytest.mark.long
def test_offline_draining_workers_are_left_out(tmp_path: Path) -> None:
    """The file alone says which workers drain or have other models, also if none is left."""
    file, body = tmp_path / "c.yaml", tmp_path / "body.json"
    drains = {"name": "x", "url": "http://127.0.0.1:9", "drain": True}
    listed = [{"name": "y", "url": "http://127.0.0.1:8", "models": ["m"]}, drains]
    listed.append({"name": "z", "url": "http://127.0.0.1:7", "models": ["n"]})
    file.write_text(json.dumps({"workers": listed}))
    body.write_text(json.dumps(CHAT))
    found = json.loads(run("explain", file, "--request", body, "--json").stdout)
    assert [one["worker"] for one in found["workers"]] == ["y"]
    left = [(one["worker"], one["state"]) for one in found["left_out"]]
    assert left == [("x", "draining"), ("z", "other")]
    file.write_text(json.dumps({"workers": [drains]}))
    none = run("explain", file, "--request", body)
    assert none.returncode == 0, none.stderr
    assert "refused: It would get 503 (no_worker)" in none.stdout
    pools = [
        {"name": "a", "workers": [{"url": "http://127.0.0.1:9", "models": ["m"]}]},
        {"name": "b", "models": ["b"], "workers": ["http://127.0.0.1:8"]},
    ]
    file.write_text(json.dumps({"pools": pools}))
    for model, why in (("x", "'x' does not exist"), (None, "`model` is missing")):
        body.write_text(json.dumps({**CHAT, "model": model}))
        refused = run("explain", file, "--request", body)
        assert (refused.returncode, why in refused.stderr) == (2, True), refused.stderr
