"""OpenAI clients may name a session as they like."""

import json
from urllib.parse import quote

import httpx
import pytest

from tests.support import MakeRouter, MakeStub, Router, error_of

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
PATHS = ["/v1/chat/completions", "/invocations"]
IDS = ["Anna Müller", "org 5 / team 7", "a" * 257, "日本" * 200, "a\x7f", "\u2028", "{}"]


@pytest.fixture
def router(stub: MakeStub, route: MakeRouter) -> Router:
    """A router in front of three workers whose sessions are named by `user` too."""
    workers = [stub().url for _ in range(3)]
    return route(*workers, strategy="session", session={"field": "user"})


def worker_of(reply: httpx.Response) -> str:
    """Who answered, in a session."""
    assert reply.status_code == 200
    assert reply.headers["x-warmroute-session"].partition(";")[0] in {"new", "kept"}
    return reply.headers["x-warmroute-worker"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", IDS)
def test_a_name(router: Router, path: str, name: str) -> None:
    """The same name is the same session, in the field and in the header; it can be closed by it."""
    bodies = [json.dumps({**CHAT, "user": name}, ensure_ascii=plain) for plain in (True, False)]
    found = {worker_of(router.http.post(path, content=body.encode())) for body in bodies}
    other = router.http.post(path, json={**CHAT, "user": name + "x"})
    assert other.headers["x-warmroute-session"].startswith("new")
    if "\x7f" not in name:
        fields = {b"x-session-id": name.encode()}
        found.add(worker_of(router.http.post(path, json=CHAT, headers=fields)))
    assert len(found) == 1
    listed = router.http.get("/sessions").json()
    assert len(listed) == 2
    assert all(one["id"].isascii() and len(one["id"]) < 257 for one in listed)
    assert router.http.delete(f"/sessions/{quote(name, safe='')}").status_code == 204
    assert router.http.delete(f"/sessions/{quote(name, safe='')}").status_code == 404
    assert len(router.http.get("/sessions").json()) == 1


@pytest.mark.parametrize(
    "value", [rb'"x\ud83d"', rb'"\ude00"', b'"\xed\xa0\xbd"', b'[1],"user":"x y"', b"-7"]
)
@pytest.mark.parametrize("path", PATHS)
def test_a_name_that_is_hard_to_read(router: Router, path: str, value: bytes) -> None:
    """Half an emoji, the last of several fields, a number: each names one session."""
    body = json.dumps(CHAT).encode()[:-1] + b',"user":%b}' % value
    assert len({worker_of(router.http.post(path, content=body)) for _ in range(3)}) == 1
    assert len(router.http.get("/sessions").json()) == 1


@pytest.mark.parametrize("path", PATHS)
def test_no_name(router: Router, path: str) -> None:
    """An empty name is none; where the header's is empty, the field's counts."""
    for fields, user in (({"x-session-id": ""}, ""), ({}, ""), ({"x-session-id": ""}, None)):
        reply = router.http.post(path, json={**CHAT, "user": user}, headers=fields)
        assert (reply.status_code, "x-warmroute-session" in reply.headers) == (200, False)
    reply = router.http.post(path, json={**CHAT, "user": "a b"}, headers={"x-session-id": ""})
    assert worker_of(reply)
    assert len(router.http.get("/sessions").json()) == 1


def test_what_is_no_name(router: Router) -> None:
    """What is neither text nor number is refused, and so are two headers that differ."""
    wrong: list[object] = [[], {"a": "b"}, True, 1.5]
    for user in wrong:
        reply = router.http.post(PATHS[0], json={**CHAT, "user": user})
        assert (reply.status_code, error_of(reply)["param"]) == (400, "user")
    for second, status in ((b"a b", 200), (b"a c", 400)):
        fields = [(b"x-session-id", b"a b"), (b"x-session-id", second)]
        assert router.http.post(PATHS[0], json=CHAT, headers=fields).status_code == status
