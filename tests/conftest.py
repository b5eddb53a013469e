"""Fixtures every test may use."""

import gc
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest
from hypothesis import settings

from tests.support import Action, MakeRouter, MakeStub, Router, Stub

#: Read when its library is imported: no test fetches anything, whatever its workers are called.
os.environ["HF_HUB_OFFLINE"] = "1"
#: A busy machine says nothing about what is tested: no example has to be quick.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
#: Modules after which all there is is walked once, while nothing is served.
WALKED_EVERY = 20
_modules = count(1)


def pytest_collection_finish() -> None:
    """Set aside what thousands of tests are made of."""
    set_aside()


@pytest.fixture(scope="module", autouse=True)
def leave_little() -> Iterator[None]:
    """Set aside what a module has left behind, such as workloads that its tests have in common.

    What was set aside and has died since is let go of now and then.
    """
    yield
    if next(_modules) % WALKED_EVERY == 0:
        gc.unfreeze()
    set_aside()


def set_aside() -> None:
    """What is alive is not walked any more: a full collection stops all threads, routers and
    workers alike, and takes a second and more of a suite, longer than a test waits for either."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test opened, the last first."""
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def stub(stack: ExitStack) -> MakeStub:
    """Make a worker that answers by a script."""

    def make(script: list[Action] | None = None, model: str = "m") -> Stub:
        made = Stub(script, model)
        stack.callback(made.stop)
        return made

    return make


@pytest.fixture
def route(stack: ExitStack) -> MakeRouter:
    """Start a router in front of workers or with whole settings."""

    def make(*workers: str | dict[str, Any], **settings: Any) -> Router:
        if workers:
            settings["workers"] = list(workers)
        made = Router(settings)
        stack.callback(made.stop)
        return made

    return make


@pytest.fixture
def dead_url() -> str:
    """A URL on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"
