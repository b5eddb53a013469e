"""A long prompt gives way to a shorter one."""

import json
import socket
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx

from tests.overload.busy import PATH, QUIET, Gate, ask, asked, waits
from tests.support import OK, Action, MakeRouter, Router, Stub, post, until

LONG, SHORT = 60_000, 500
#: Long enough that a longer one is held behind it, instead of being sent at once.
MIDDLE = 9_000


def answer(cached: int, prompt: int = LONG) -> list[Action]:
    """An answer in which the worker reports cached tokens."""
    usage = (
        b'{"prompt_tokens":%d,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%d}}'
    )
    body = b'{"id":"x","choices":[],"usage":' + usage % (prompt, cached) + b"}"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return [head % len(body) + body]


def routed(route: MakeRouter, worker: Stub, **settings: Any) -> Router:
    """A router that knows that the worker's prefix cache is on, and trusts its clients."""
    router = route({"url": worker.url, "engine_fields": True}, health=QUIET, **settings)
    router.worker().reuses = True
    return router


def long(router: Router, crowd: ThreadPoolExecutor, worker: Stub) -> Future[httpx.Response]:
    """Send a long prompt that the worker never answers; whatever it is sent next, it does."""
    first = ask(router, crowd, "long", LONG)
    until(lambda: len(worker.requests) == 1)
    worker.script = OK
    return first


def by_hand(router: Router) -> socket.socket:
    """Send a long prompt; return the connection, so that its client can leave."""
    body = json.dumps(asked("long", LONG)).encode()
    return post(router.port, PATH, body, b"content-type: application/json")


def short(router: Router) -> httpx.Response:
    """Send a short prompt and wait for its answer."""
    body = asked("short", SHORT) | {"max_tokens": 2}
    return httpx.post(router.url + PATH, json=body, timeout=30)


def sizes(worker: Stub) -> list[str]:
    """What the worker was sent, in that order."""
    return ["long" if len(request) > 2 * LONG else "short" for request in worker.requests]


def overtaken(
    router: Router, crowd: ThreadPoolExecutor, worker: Stub
) -> tuple[socket.socket, Gate, Future[httpx.Response]]:
    """Let a shorter prompt overtake one; return the latter's connection, the gate that holds the
    worker's answer back, and the reply to the former."""
    leaving = by_hand(router)
    until(lambda: len(worker.requests) == 1)
    gate = Gate()
    worker.script = gate.script()
    reply = ask(router, crowd, "short", MIDDLE)
    until(lambda: len(worker.requests) == 2)
    until(waits(router, 1))
    return leaving, gate, reply


def given_way(
    router: Router, crowd: ThreadPoolExecutor, worker: Stub
) -> tuple[Gate, list[Future[httpx.Response]]]:
    """A long prompt is held again until the one to which it gave way passes the gate."""
    gate = Gate()
    first = ask(router, crowd, "long", LONG)
    until(lambda: len(worker.requests) == 1)
    worker.script = gate.script()
    second = ask(router, crowd, "short", MIDDLE)
    until(lambda: len(worker.requests) == 2)
    until(waits(router, 1))
    worker.script = OK
    return gate, [first, second]
