"""Long prompts that keep a worker busy, and what waits meanwhile."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic

import httpx

from strategies.cost.load import Load
from tests.support import OK, Action, Router, Stub, until

PATH = "/v1/chat/completions"
QUIET = {"interval": "30s"}
ANSWER = b"".join(part for part in OK if isinstance(part, bytes))


class Gate:
    """Holds a worker's answers back until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def script(self) -> list[Action]:
        """An answer that waits for the gate, which the stub polls every few milliseconds."""
        return [self.opened.is_set, *OK]


def asked(words: str, tokens: int, model: str = "m") -> dict[str, object]:
    """A streamed chat of about `tokens` tokens; its first byte marks the end of its prefill."""
    text = (words + " ") * (4 * tokens // (len(words) + 1))
    return {"model": model, "stream": True, "messages": [{"role": "user", "content": text}]}


def ask(
    router: Router, crowd: ThreadPoolExecutor, words: str, tokens: int, model: str = "m"
) -> Future[httpx.Response]:
    """Send such a prompt on a connection of its own."""
    return crowd.submit(httpx.post, router.url + PATH, json=asked(words, tokens, model), timeout=30)


def busied(router: Router, crowd: ThreadPoolExecutor, worker: Stub) -> Future[httpx.Response]:
    """Send a long prompt to a worker that has had none, and wait until it is there."""
    first = ask(router, crowd, "long", 60_000)
    until(lambda: len(worker.requests) == 1)
    return first


def waits(router: Router, count: int) -> Callable[[], bool]:
    """A condition: that many requests wait in the router."""
    return lambda: router.metric("warmroute_queue_length") == count


def since(load: Load) -> float:
    """For how many seconds the oldest prompt there has been computed."""
    return monotonic() - load.head_since
