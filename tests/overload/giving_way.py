"""Long prompts that give way to shorter ones."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx

from tests.overload.busy import PATH, QUIET, ask, asked
from tests.support import OK, Action, MakeRouter, Router, Stub, until

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


def long(
    router: Router, crowd: ThreadPoolExecutor, worker: Stub, words: str = "long"
) -> Future[httpx.Response]:
    """Send a long prompt that the worker never answers; whatever it is sent next, it does."""
    before = len(worker.requests)
    first = ask(router, crowd, words, LONG)
    until(lambda: len(worker.requests) == before + 1)
    worker.script = OK
    return first


def short(router: Router) -> httpx.Response:
    """Send a short prompt and wait for its answer."""
    body = asked("short", SHORT) | {"max_tokens": 2}
    return httpx.post(router.url + PATH, json=body, timeout=30)


def preempted(reply: Future[httpx.Response]) -> int:
    """Wait for an answer; return how often its request gave way."""
    assert reply.result().status_code == 200
    return int(reply.result().headers.get("x-warmroute-preempted", 0))


def sizes(worker: Stub) -> list[str]:
    """What the worker was sent, in that order."""
    return ["long" if len(request) > 2 * LONG else "short" for request in worker.requests]
