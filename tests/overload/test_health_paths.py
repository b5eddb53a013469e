"""Health paths answer however busy the router is (row C3 in docs/hyperpod.md)."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from router.prompt.executor import MAX_THREADS
from tests.cancel.test_cancel_tokenizing import Gate as Tokenizer
from tests.cancel.test_cancel_tokenizing import know, long_chat
from tests.overload.busy import Gate, ask, waits
from tests.support import MakeRouter, MakeStub, Router, until

#: The paths that load balancers and Kubernetes ask.
PATHS = ["/health", "/ping", "/health/live", "/health/ready"]


@pytest.fixture
def tokenizer() -> Iterator[Tokenizer]:
    """A gate that is opened at the end of the test, so that no thread stays blocked."""
    made = Tokenizer()
    yield made
    made.opened.set()


def alive(router: Router) -> bool:
    """Whether a GET of each path answers 200."""
    return all(router.http.get(path).status_code == 200 for path in PATHS)


def test_they_say_the_same(stub: MakeStub, route: MakeRouter) -> None:
    """All but the liveness check, whoever asks: nothing is said of what is not used."""
    router = route(stub().url)
    until(lambda: alive(router))
    told = {"status": "ready", "pools": {"default": 1}}
    assert [router.http.get(path).json() for path in PATHS if "live" not in path] == [told] * 3


def test_while_the_door_is_full(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """While the queue is full and requests are refused, health paths are answered."""
    gate = Gate()
    limits = {"in_flight": 1, "queue": 2}
    router = route(stub(gate.script()).url, limits=limits, health={"interval": "30s"})
    waiting = [ask(router, crowd, f"words{number}", 10) for number in range(3)]
    until(waits(router, 2))
    assert ask(router, crowd, "refused", 10).result().status_code == 429
    assert alive(router)
    assert waits(router, 2)(), "all the while"
    gate.opened.set()
    assert [one.result().status_code for one in waiting] == [200] * 3


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/explain"])
def test_while_long_prompts_are_tokenized(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, tokenizer: Tokenizer, path: str
) -> None:
    """While all threads tokenize and more prompts wait for one, health paths are answered. One that
    is explained is counted nowhere."""
    router = route(stub().url)
    know(router, tokenizer)
    chat = {"content": long_chat(stream=False), "timeout": 30}
    asked = [
        crowd.submit(router.http.post, path, **chat)  # type: ignore[arg-type]
        for _ in range(MAX_THREADS + 2)
    ]
    until(lambda: len(tokenizer.begun) == MAX_THREADS)
    assert alive(router)
    tokenizer.opened.set()
    assert [one.result().status_code for one in asked] == [200] * (MAX_THREADS + 2)
    if path == "/explain":
        assert not router.door.fleet.pools[0].prompts.by_reason
