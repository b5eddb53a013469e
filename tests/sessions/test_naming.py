"""By which name a session begins and goes on, on OpenAI's paths and on SageMaker's."""

import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.sessions.asking import CHAT, HEADER, NEW, PATH, ask, homes, invoke, state
from tests.support import MakeRouter, MakeStub, Router, error_of

PATHS = pytest.mark.parametrize("path", [PATH, "/invocations"])
IDS = ["Anna Müller", "org 5 / team 7", "a" * 257, "日本" * 200, "a\x7f", "\u2028", "{}"]


@pytest.fixture
def router(stub: MakeStub, route: MakeRouter) -> Router:
    """A router in front of three workers whose sessions are named by `user` too."""
    workers = [stub().url for _ in range(3)]
    return route(*workers, strategy="session", session={"field": "user"})


def worker_of(reply: httpx.Response) -> str:
    """Who answered, in a session."""
    assert state(reply) in {"new", "kept"}
    return reply.headers["x-warmroute-worker"]


@PATHS
@pytest.mark.parametrize("name", IDS)
def test_a_name(router: Router, path: str, name: str) -> None:
    """The same name is the same session, in the field and in the header; it can be closed by it."""
    bodies = [json.dumps({**CHAT, "user": name}, ensure_ascii=plain) for plain in (True, False)]
    workers = {worker_of(router.http.post(path, content=body.encode())) for body in bodies}
    assert state(router.http.post(path, json={**CHAT, "user": name + "x"})) == "new"
    if "\x7f" not in name:
        fields = {b"x-session-id": name.encode()}
        workers.add(worker_of(router.http.post(path, json=CHAT, headers=fields)))
    assert len(workers) == 1
    assert len(homes(router)) == 2
    assert all(key.isascii() and len(key) < 257 for key in homes(router))
    statuses = [router.http.delete(f"/sessions/{quote(name, safe='')}").status_code for _ in "12"]
    assert (statuses, len(homes(router))) == ([204, 404], 1)


@pytest.mark.parametrize(
    "value", [rb'"x\ud83d"', rb'"\ude00"', b'"\xed\xa0\xbd"', b'[1],"user":"x y"', b"-7"]
)
@PATHS
def test_a_name_that_is_hard_to_read(router: Router, path: str, value: bytes) -> None:
    """Half an emoji, the last of several fields, a number: each names one session."""
    body = json.dumps(CHAT).encode()[:-1] + b',"user":%b}' % value
    assert len({worker_of(router.http.post(path, content=body)) for _ in range(3)}) == 1
    assert len(homes(router)) == 1


@PATHS
def test_no_name(router: Router, path: str) -> None:
    """An empty name is none; where the header's is empty, the field's counts."""
    for fields, user in (({"x-session-id": ""}, ""), ({}, ""), ({"x-session-id": ""}, None)):
        assert state(router.http.post(path, json={**CHAT, "user": user}, headers=fields)) == ""
    reply = router.http.post(path, json={**CHAT, "user": "a b"}, headers={"x-session-id": ""})
    assert worker_of(reply)
    assert len(homes(router)) == 1


def test_what_is_no_name(router: Router) -> None:
    """What is neither text nor number is refused, and so are two headers that differ, and a body
    that is no object."""
    assert router.http.post(PATH, json=[1]).status_code == 400
    wrong: list[object] = [[], {"a": "b"}, True, 1.5]
    for user in wrong:
        reply = router.http.post(PATH, json={**CHAT, "user": user})
        assert (reply.status_code, error_of(reply)["param"]) == (400, "user")
    for second, status in ((b"a b", 200), (b"a c", 400)):
        fields = [(b"x-session-id", b"a b"), (b"x-session-id", second)]
        assert router.http.post(PATH, json=CHAT, headers=fields).status_code == status


def test_an_id_that_nobody_knows(stub: MakeStub, route: MakeRouter) -> None:
    """It begins a session; with `create: false` it is a 404. Requests without an id are served."""
    worker = stub()
    for create in (True, False):
        router = route(worker.url, strategy="session", session={"create": create})
        reply = ask(router, "a")
        if create:
            assert state(reply) == "new"
        else:
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "session_not_found")
        assert list(homes(router)) == ["a"] * create
        assert ask(router).status_code == 200


@pytest.mark.parametrize("path", [PATH, "/invocations", "/endpoints/x/invocations"])
def test_where_the_id_is_looked_for(stub: MakeStub, route: MakeRouter, path: str) -> None:
    """The id is in AWS's header, or else the configured header, or else the field of the body.

    That header is not passed on to workers; the body is, as it was.
    """
    worker = stub()
    names = {"header": "X-User-Id", "field": "user"}
    router = route(worker.url, strategy="session", session=names)
    ann: dict[str, Any] = {**CHAT, "user": "ann@x"}
    for body, fields, key in (
        (ann, {}, "ann@x"),
        (ann, {"x-user-id": "b_2"}, "b_2"),
        (CHAT, {"x-user-id": "b_2", HEADER: "c-3"}, "c-3" if path == PATH else ""),
        (CHAT, {"x-session-id": "d"}, ""),
    ):
        before = len(homes(router))
        reply = router.http.post(path, json=body, headers=fields)
        if HEADER in fields and not key:  # what SageMaker's header names must be open there
            assert reply.status_code == 400
            continue
        assert (state(reply) in {"new", "kept"}) == bool(key)
        assert key in {*homes(router), ""}
        assert len(homes(router)) == before + (state(reply) == "new")
        head, _, passed = worker.requests[-1].partition(b"\r\n\r\n")
        assert b"x-user-id" not in head.lower()
        assert json.loads(passed) == body


def test_of_all_names_sagemaker_s_counts_first(stub: MakeStub, route: MakeRouter) -> None:
    """SageMaker's header comes first, `extSessionID` last; what they name must be open."""
    router = route(stub().url, strategy="session")
    named, body = {"x-session-id": "q"}, {**CHAT, "extSessionID": "nobody"}
    for fields, status in (({**named, HEADER: "nobody"}, 400), (named, 200), ({}, 400)):
        assert router.http.post("/invocations", json=body, headers=fields).status_code == status


def test_names_mean_nothing_to_a_pool_without_sessions(stub: MakeStub, route: MakeRouter) -> None:
    """The prompt is answered as on OpenAI's paths."""
    router = route(stub().url, session={"field": "user"})
    assert state(invoke(router, {**CHAT, "user": "ann"})) == ""


def test_new_sessions_of_openai_clients(stub: MakeStub, route: MakeRouter) -> None:
    """NEW_SESSION in AWS's header begins a session with an id made by the router."""
    router = route(stub().url, strategy="session")
    reply = router.http.post(PATH, json=CHAT, headers={HEADER: "NEW_SESSION"})
    assert state(reply) == "new"
    assert state(ask(router, reply.headers[NEW].partition(";")[0])) == "kept"


def test_a_new_session_s_id_is_told_in_a_stream(stub: MakeStub, route: MakeRouter) -> None:
    """Comments wait until its worker is known, or the header with its id would be too late."""
    stream = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 14\r\n\r\n"
    worker = stub([0.2, stream + b"data: [DONE]\n\n"])
    router = route(worker.url, strategy="session", timeouts={"comment": "20ms"})
    body = {**CHAT, "stream": True}
    reply = router.http.post(PATH, json=body, headers={HEADER: "NEW_SESSION"})
    key = reply.headers[NEW].partition(";")[0]
    assert list(homes(router)) == [key]
    more = router.http.post(PATH, json=body, headers={"x-session-id": key})
    assert more.content.startswith(b":")
