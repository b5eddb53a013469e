"""Work in a separate thread."""

import asyncio
import threading
import time

import pytest

from router.runtime.threads import aside


def test_results_and_errors() -> None:
    """They are passed on as if the work had been done in the caller."""

    def fail() -> None:
        raise KeyError("x")

    async def run() -> None:
        assert await aside(lambda: threading.current_thread().name, 5) == "aside"
        with pytest.raises(KeyError):
            await aside(fail, 5)

    asyncio.run(run())


def test_it_is_given_up() -> None:
    """On a timeout or when cancelled; the thread ends by itself."""
    going_on = threading.Event()
    done: list[bool] = []

    def work() -> None:
        done.append(going_on.wait(10))

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await aside(work, 0.01)
        task = asyncio.ensure_future(aside(work, 10))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.01)

    asyncio.run(run())  # this does not wait for the threads
    going_on.set()
    deadline = time.monotonic() + 10
    while len(done) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.005)
