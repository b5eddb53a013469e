"""Threads for what would block the event loop: whose turn it is, and what is left behind."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from router.runtime.threads import Crowded, Lane, aside


class Scene:
    """A lane of one thread, which is kept busy, and what its thread did afterwards."""

    def __init__(self, most: int | None = None) -> None:
        self.lane = Lane(1, "test", most=most)
        self.done: list[str] = []
        self._opened = threading.Event()
        self._busy = asyncio.ensure_future(self.lane.run(lambda: self._opened.wait(20), 0))

    async def asks(self, name: str, size: int, tenant: str = "") -> asyncio.Task[None]:
        """Begin to wait for the thread."""
        work = self.lane.run(lambda: self.done.append(name), size, tenant)
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        return task

    async def goes_on(self, *tasks: asyncio.Task[None]) -> list[str]:
        """Free the thread; return what it did, in order, when all these are over."""
        self._opened.set()
        await self._busy
        await asyncio.gather(*tasks, return_exceptions=True)
        return self.done

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Free the thread at the end, whatever happens."""
        try:
            yield
        finally:
            self._opened.set()
            self.lane.close()


def play(test: Callable[[Scene], Coroutine[Any, Any, None]], most: int | None = None) -> None:
    """Run a test in an event loop."""

    async def played() -> None:
        scene = Scene(most)
        with scene.closing():
            await asyncio.sleep(0)
            await test(scene)
            while scene.lane.pending:  # noqa: ASYNC110 - set from a thread
                await asyncio.sleep(0.001)

    asyncio.run(played())


def test_tenants_take_turns() -> None:
    """A tenant with many waits as long as one with few, whoever came first."""

    async def test(scene: Scene) -> None:
        tasks = [await scene.asks(f"a{number}", 1, "a") for number in range(3)]
        tasks += [await scene.asks(f"b{number}", 9, "b") for number in range(2)]
        assert await scene.goes_on(*tasks) == ["a0", "b0", "a1", "b1", "a2"]

    play(test)


def test_small_ones_go_first() -> None:
    """Of one tenant's work the smallest goes first; of equals, the one that came first."""

    async def test(scene: Scene) -> None:
        sizes = {"large": 9, "small": 1, "middle": 5, "later": 5}
        tasks = [await scene.asks(name, size) for name, size in sizes.items()]
        assert await scene.goes_on(*tasks) == ["small", "middle", "later", "large"]

    play(test)


def test_who_leaves_is_passed_over() -> None:
    """Work that has not begun is dropped with its caller, and nobody else waits for it."""

    async def test(scene: Scene) -> None:
        first, second, third = [await scene.asks(name, 1) for name in "abc"]
        first.cancel()
        await asyncio.sleep(0)
        assert scene.lane.pending == 3
        third.cancel()
        assert await scene.goes_on(first, second, third) == ["b"]

    play(test)


def test_who_has_most_makes_room() -> None:
    """Beyond the bound, the largest work of the tenant with most is refused for that of others."""

    async def test(scene: Scene) -> None:
        small, large, middle = [await scene.asks(str(size), size, "a") for size in (1, 9, 5)]
        theirs = await scene.asks("b", 99, "b")
        with pytest.raises(Crowded):
            await large
        with pytest.raises(Crowded):
            await (await scene.asks("again", 1, "a"))
        with pytest.raises(Crowded):
            await (await scene.asks("third", 1, "b"))  # then it would have as many
        assert await scene.goes_on(small, middle, theirs) == ["1", "b", "5"]

    play(test, most=4)


def test_what_it_raises_is_raised() -> None:
    """An error in the thread is the caller's, and the thread goes on to the next."""

    async def test(scene: Scene) -> None:
        def fails() -> None:
            raise ValueError("no")

        failing = asyncio.ensure_future(scene.lane.run(fails, 1))
        await asyncio.sleep(0)
        after = await scene.asks("after", 2)
        assert await scene.goes_on(after) == ["after"]
        with pytest.raises(ValueError, match="no"):
            await failing

    play(test)


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
