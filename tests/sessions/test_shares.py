"""Sessions of several client keys: nobody can push out the sessions of others."""

import uuid

import httpx
import pytest

from tests.sessions.redis_server import RedisServer
from tests.support import MakeRouter, MakeStub, Router

KEYS = {"modest": "m" * 16, "greedy": "g" * 16}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def ask(router: Router, who: str, session: str, path: str = "/v1/chat/completions") -> str:
    """Send a request in a session; return what became of the session."""
    headers = {"authorization": f"Bearer {KEYS[who]}", "x-session-id": session}
    reply: httpx.Response = router.http.post(path, json=CHAT, headers=headers)
    assert reply.status_code == 200
    return reply.headers["x-warmroute-session"].partition(";")[0]


@pytest.fixture(params=["memory", "redis"])
def router(
    request: pytest.FixtureRequest,
    stub: MakeStub,
    route: MakeRouter,
    monkeypatch: pytest.MonkeyPatch,
) -> Router:
    """A router with two keys and room for four sessions."""
    for name, key in KEYS.items():
        monkeypatch.setenv(name.upper(), key)
    rules: dict[str, object] = {"most": 4}
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        rules["redis"] = {"url": server.url, "timeout": "5s"}
    return route(
        pools=[
            {"name": uuid.uuid4().hex, "models": ["m"], "strategy": "session"}
            | {"workers": [stub().url, stub().url]}
        ],
        session=rules,
        auth={"keys": [{"name": name, "key": f"${{{name.upper()}}}"} for name in KEYS]},
    )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/endpoints/e/invocations"])
def test_others_keep_theirs(router: Router, path: str) -> None:
    """However many sessions one key opens, the few of another stay, and so do its own latest."""
    assert [ask(router, "modest", name, path) for name in "ab"] == ["new", "new"]
    for number in range(20):
        assert ask(router, "greedy", f"g{number}", path) == "new"
    assert [ask(router, "modest", name, path) for name in "ab"] == ["kept", "kept"]
    assert [ask(router, "greedy", name, path) for name in ("g18", "g19")] == ["kept", "kept"]
    assert ask(router, "greedy", "g17", path) == "new"
