"""Fixtures of the tests of queueing, holding and preemption."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.support import MakeStub, Stub


@pytest.fixture
def crowd(stack: ExitStack) -> ThreadPoolExecutor:
    """Threads for 32 clients."""
    return stack.enter_context(ThreadPoolExecutor(32))


@pytest.fixture
def worker(stub: MakeStub) -> Stub:
    """A worker that never answers what it has been sent, until it is given another script."""
    return stub([lambda: False])
