"""Fixtures for all tests."""

import gc
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest
from hypothesis import settings

from router.fleet import breaker
from tests.support import Action, MakeRouter, MakeStub, Router, Stub

#: Set before `huggingface_hub` is imported: no test downloads anything, whatever model it names.
os.environ["HF_HUB_OFFLINE"] = "1"
#: No Hypothesis deadline: on a busy machine a slow example is not a failure.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
#: After this many test modules, one full garbage collection also covers all frozen objects.
WALKED_EVERY = 20
_modules = count(1)


def pytest_collection_finish() -> None:
    """Freeze the collected test items, of which there are thousands."""
    set_aside()


@pytest.fixture(scope="module", autouse=True)
def leave_little() -> Iterator[None]:
    """Freeze what a module has left behind, such as workloads that its tests share.

    Every `WALKED_EVERY` modules, unfreeze first, so that dead objects are freed.
    """
    yield
    if next(_modules) % WALKED_EVERY == 0:
        gc.unfreeze()
    set_aside()


def set_aside() -> None:
    """Exempt all live objects from garbage collection.

    A full collection stops all threads, including the router's and the workers'. Late in the suite
    it would take more than a second, which is longer than some tests wait.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """An exit stack that closes what a test has opened, in reverse order."""
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def stub(stack: ExitStack) -> MakeStub:
    """Make workers that answer by a script."""

    def make(script: list[Action] | None = None, model: str = "m") -> Stub:
        made = Stub(script, model)
        stack.callback(made.stop)
        return made

    return make


@pytest.fixture
def route(stack: ExitStack) -> MakeRouter:
    """Start a router in front of workers, or with complete settings."""

    def make(*workers: str | dict[str, Any], **settings: Any) -> Router:
        if workers:
            settings["workers"] = list(workers)
        made = Router(settings)
        stack.callback(made.stop)
        return made

    return make


@pytest.fixture
def dead_url() -> Iterator[str]:
    """A URL on which nothing listens; nothing else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def backs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has refused a request is not asked again during the test."""
    monkeypatch.setattr(breaker, "MIN_BACKOFF_S", 3600.0)
