"""Other settings for a router that runs: what stays, what goes, and that nobody notices."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import httpx
import pytest

from router import rebuild
from router.fleet import Worker
from router.rebuild import CannotBuild
from router.settings import Settings
from tests.support import Action, MakeRouter, MakeStub, Router, Stub, error_of, post, read_all, until

CHAT = "/v1/chat/completions"
TEXT = "word " * 500
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"9\r\ndata: 1\n\n\r\n"
END = b"0\r\n\r\n"
#: No probe of its own ends or begins anything within a test.
QUIET = {"interval": "1h"}


def chat(text: str = "hi", *, model: str = "m", stream: bool = False) -> dict[str, Any]:
    """A chat of one message."""
    return {"model": model, "messages": [{"role": "user", "content": text}], "stream": stream}


def change(router: Router, *workers: str | dict[str, Any], **settings: Any) -> list[Worker]:
    """Put other settings into effect; return the workers that have left."""
    if workers:
        settings["workers"] = list(workers)
    parsed = Settings.model_validate({"health": QUIET, **settings})
    loop = router._server._loop
    assert loop is not None
    return asyncio.run_coroutine_threadsafe(router.door.change(parsed), loop).result(20)


def answered_by(reply: httpx.Response) -> str:
    """The name of the worker."""
    assert reply.status_code == 200, reply.text
    return reply.headers["x-warmroute-worker"]


@contextmanager
def load(router: Router, threads: int = 4) -> Iterator[list[int | str]]:
    """Clients that ask without a pause, half of them for streams; yields what became of it."""
    outcomes: list[int | str] = []
    over = threading.Event()

    def ask(stream: bool) -> None:
        with httpx.Client(base_url=router.url, timeout=20) as client:
            for turn in cycle(range(50)):
                if over.is_set():
                    return
                try:
                    reply = client.post(CHAT, json=chat(f"{turn} {TEXT}", stream=stream))
                except httpx.HTTPError as error:
                    outcomes.append(repr(error))
                else:
                    outcomes.append(reply.status_code)

    clients = [threading.Thread(target=ask, args=(n % 2 == 0,)) for n in range(threads)]
    for client in clients:
        client.start()
    try:
        yield outcomes
    finally:
        over.set()
        for client in clients:
            client.join(30)
            assert not client.is_alive()


def test_nobody_notices(stub: MakeStub, route: MakeRouter) -> None:
    """Workers come, go and change, and so does the strategy: no request fails."""
    script: list[Action] = [SSE + CHUNK, 0.005, CHUNK + END]
    urls = [stub(script).url for _ in range(4)]
    router = route(*urls[:2], health=QUIET)
    kept = {"url": urls[1], "api_key": None, "timeouts": {}}
    sets: list[dict[str, Any]] = [
        {"workers": urls},
        {"workers": urls[2:]},
        {"workers": urls[1:3], "strategy": "leastload"},
        {"workers": [{"url": urls[0], "name": "a"}, {"url": urls[1], "name": "b"}]},
        {"workers": [{"url": urls[1], "name": "a"}, {"url": urls[0], "name": "b"}]},
        {"workers": urls[:1], "strategy": "roundrobin", "timeouts": {"idle": "3m"}},
        {"pools": [{"name": "p", "models": ["m"], "workers": urls[1:]}]},
        {"pools": [{"name": "p", "models": ["x*"], "workers": urls[1:2]},
                   {"name": "q", "workers": [urls[0], urls[3]]}]},
        {"workers": urls[:2]},
    ]
    del kept
    with load(router) as outcomes:
        for settings in sets * 3:
            before = len(outcomes)
            change(router, **settings)
            until(lambda before=before: len(outcomes) > before + 8)
    assert set(outcomes) == {200}
    until(router.idle)
