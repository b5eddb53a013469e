"""Helpers that change the settings of a running router and put load on it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import httpx

from router.fleet.worker import Worker
from router.settings.model import Settings
from tests.support import Action, Router

CHAT = "/v1/chat/completions"
TEXT = "word " * 500
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"9\r\ndata: 1\n\n\r\n"
END = b"0\r\n\r\n"
STREAM: list[Action] = [SSE + CHUNK, 0.005, CHUNK + END]
#: Only the first probe of each worker comes within a test.
QUIET = {"interval": "1h"}


def chat(text: str = "hi", *, model: str = "m", stream: bool = False) -> dict[str, Any]:
    """A chat request with one message."""
    return {"model": model, "messages": [{"role": "user", "content": text}], "stream": stream}


def change(router: Router, *workers: str | dict[str, Any], **settings: Any) -> list[Worker]:
    """Apply other settings; return the workers that were removed."""
    if workers:
        settings["workers"] = list(workers)
    parsed = Settings.model_validate({"health": QUIET, **settings})
    loop = router.server.loop
    assert loop is not None
    return asyncio.run_coroutine_threadsafe(router.door.change(parsed), loop).result(20)


def answered_by(reply: httpx.Response) -> str:
    """Return the name of the worker that answered; fail if the status is not 200."""
    assert reply.status_code == 200, reply.text
    return reply.headers["x-warmroute-worker"]


@contextmanager
def load(url: str, threads: int = 4) -> Iterator[list[int | str]]:
    """Send requests without a pause, half of them streamed; yield their statuses and errors."""
    outcomes: list[int | str] = []
    over = threading.Event()

    def ask(stream: bool) -> None:
        with httpx.Client(base_url=url, timeout=20) as client:
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
