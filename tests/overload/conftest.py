"""Fixtures of the tests of waiting, preemption and rescue."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from router.dispatch import preemption, scheduler
from strategies.hold import stuck
from tests.overload.hanging import Hurry
from tests.support import MakeStub, Stub


@pytest.fixture
def crowd(stack: ExitStack) -> ThreadPoolExecutor:
    """Threads for 32 clients."""
    return stack.enter_context(ThreadPoolExecutor(32))


@pytest.fixture
def worker(stub: MakeStub) -> Stub:
    """A worker that never answers what it has been sent, until it is given another script."""
    return stub([lambda: False])


@pytest.fixture
def no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is looked at only when something has ended."""
    monkeypatch.setattr(scheduler, "TICK_S", 3600.0)


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> Hurry:
    """From the call on, a worker is found stuck within a fraction of a second."""
    monkeypatch.setattr(stuck, "STUCK_S", 3600.0)
    monkeypatch.setattr(preemption, "TICK_S", 0.02)

    def now() -> None:
        monkeypatch.setattr(stuck, "STUCK_S", 0.1)

    return now
