"""A session that was to begin with a prompt and has not: what is undone, and what is not."""

import asyncio
import threading
from typing import Any

import httpx

from router.sessions.away import Away
from router.sessions.store import MemoryStore
from router.sessions.table import Binding, Lease, Session
from tests.support import OK, MakeRouter, MakeStub, Router, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
OPENS = {**CHAT, "requestType": "NEW_SESSION", "extSessionID": "mine"}
HEADER = "X-Amzn-SageMaker-Session-Id"


def invoke(router: Router, body: dict[str, Any], key: str = "NEW_SESSION") -> httpx.Response:
    """What boto3 would send."""
    return router.http.post("/invocations", json=body, headers={HEADER: key})


def test_somebody_else_s_session_of_the_same_id_stays(stub: MakeStub, route: MakeRouter) -> None:
    """Closed while its first prompt was asked, and begun by another: that one goes on."""
    done: list[int] = []
    broken = b"HTTP/1.1 500 Broken\r\ncontent-length: 2\r\n\r\n{}"
    worker = stub([lambda: bool(done), broken])
    router = route(worker.url, strategy="session")
    replies: list[httpx.Response] = []
    first = threading.Thread(target=lambda: replies.append(invoke(router, OPENS)))
    first.start()
    until(lambda: worker.requests)
    assert invoke(router, {"requestType": "CLOSE"}, "mine").status_code == 200
    anew = {"requestType": "NEW_SESSION", "extSessionID": "mine"}
    assert invoke(router, anew).status_code == 200
    done.append(1)
    first.join(20)
    assert replies[0].headers["x-amzn-errortype"] == "ModelError"
    worker.script = OK
    assert invoke(router, CHAT, "mine").status_code == 200


def test_the_same_is_told_to_a_store_that_was_away() -> None:
    """What has ended is only what began then."""
    now = [1.0]

    async def told() -> Session | None:
        store = MemoryStore(Lease(), lambda: now[0])
        await store.bind("a", Binding("w"), None)
        away = Away(9)
        assert away.close("a", begun=1.0)
        await store.close("a")
        now[0] = 2.0
        await store.bind("a", Binding("v"), None)
        await away.tell(store)
        return await store.use("a")

    assert asyncio.run(told()) is not None


def test_what_was_begun_again_while_it_was_away_stays() -> None:
    """By the same id."""
    away = Away(9)
    away.begin("a", Session("w", 1.0, 9.0, 1.0))
    away.close("a")
    away.begin("a", Session("w", 2.0, 9.0, 2.0))
    assert not away.close("a", begun=1.0)
    assert away.find("a") is not None
    assert away.close("a", begun=2.0)
