"""Health paths answer however busy the router is (row C3 in docs/hyperpod.md)."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from router.prompt.executor import MAX_THREADS
from tests.cancel.test_cancel_tokenizing import Gate as Tokenizer
from tests.cancel.test_cancel_tokenizing import know, long_chat
from tests.overload.busy import Gate
from tests.overload.test_overload import ask, line_is
from tests.support import MakeRouter, MakeStub, Router, until

#: The paths that load balancers and Kubernetes ask.
PATHS = ["/health", "/ping", "/health/live", "/health/ready"]


@pytest.fixture
def tokenizer() -> Iterator[Tokenizer]:
    """A gate that is opened at the end of the test, so that no thread stays blocked."""
    made = Tokenizer()
    yield made
    made.opened.set()


def is_alive(router: Router, path: str) -> bool:
    """Whether a GET of this path answers 200."""
    return router.http.get(path).status_code == 200


def test_they_say_the_same(stub: MakeStub, route: MakeRouter) -> None:
    """All but the liveness check, whoever asks: nothing is said of what is not used."""
    router = route(stub().url)
    until(lambda: is_alive(router, "/health"))
    told = {"status": "ready", "pools": {"default": 1}}
    assert [router.http.get(path).json() for path in PATHS if "live" not in path] == [told] * 3


@pytest.mark.parametrize("path", PATHS)
def test_while_the_door_is_full(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, path: str
) -> None:
    """While the queue is full and requests are refused, health paths are answered."""
    gate = Gate()
    limits = {"in_flight": 1, "queue": 2}
    router = route(stub(gate.script()).url, limits=limits, health={"interval": "30s"})
    waiting = ask(router, crowd, 3)
    until(lambda: line_is(router, 2))
    (refused,) = ask(router, crowd)
    assert refused.result().status_code in {429, 503}
    assert is_alive(router, path)
    assert line_is(router, 2), "all the while"
    gate.opened.set()
    assert [one.result().status_code for one in waiting] == [200] * 3


@pytest.mark.parametrize("path", PATHS)
def test_while_long_prompts_are_tokenized(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, tokenizer: Tokenizer, path: str
) -> None:
    """While all threads tokenize and more prompts wait for one, health paths are answered."""
    router = route(stub().url)
    know(router, tokenizer)
    tokenizing = router.door._proxy._tokenizing
    chat = {"content": long_chat(stream=False), "timeout": 30}
    asked = [
        crowd.submit(router.http.post, "/v1/chat/completions", **chat)  # type: ignore[arg-type]
        for _ in range(MAX_THREADS + 2)
    ]
    until(lambda: len(tokenizer.begun) == MAX_THREADS and tokenizing.pending == MAX_THREADS + 2)
    assert is_alive(router, path)
    assert tokenizing.pending == MAX_THREADS + 2, "all the while"
    tokenizer.opened.set()
    assert [one.result().status_code for one in asked] == [200] * (MAX_THREADS + 2)


def test_while_a_long_prompt_is_explained(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor, tokenizer: Tokenizer
) -> None:
    """It is tokenized in a thread as if it were sent, and counted nowhere."""
    router = route(stub().url)
    know(router, tokenizer)
    chat = {"content": long_chat(stream=False), "timeout": 30}
    asked = crowd.submit(router.http.post, "/explain", **chat)  # type: ignore[arg-type]
    until(lambda: tokenizer.begun)
    assert is_alive(router, PATHS[0])
    tokenizer.opened.set()
    assert (asked.result().status_code, asked.result().json()["tokens"]) == (200, 1)
    assert not router.door.fleet.pools[0].prompts.by_reason
