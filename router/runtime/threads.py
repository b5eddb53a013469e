"""Threads for what would block the event loop, in fair order; work in slices, and with a deadline.

Tenants take turns. Of one tenant's work the smallest goes first, so that a few large requests do
not delay the others for long.

Only one thread at a time can hold the GIL, and a call into C may hold it until it ends. A large
body takes many such calls. In a row they would stop the event loop, and so everybody else's
streams, for as long as all of them together. So a thread that handles a large body lets go of the
interpreter after each slice.

Work with a deadline never keeps the process from exiting.
"""

import asyncio
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from heapq import heapify, heappop, heappush
from threading import local
from time import monotonic, sleep, thread_time
from typing import TypeVar

T = TypeVar("T")

#: Bytes, and elements of a list, that are handled in one slice: about a millisecond each.
BYTES, ELEMENTS = 1 << 20, 1024
#: A rest is so many times as long as the work before it, and at most so many seconds.
REST_RATIO, MAX_REST_S = 2.0, 0.05


class _Thread(local):
    """What is remembered of a thread."""

    working = False
    since = 0.0
    """Its CPU time at the end of the last rest."""
    until = 0.0
    """When the rest after its last work ends."""


_thread = _Thread()


def begin() -> None:
    """Begin work in this thread, after the rest that follows the last one."""
    sleep(max(0.0, _thread.until - monotonic()))
    _thread.working, _thread.since = True, thread_time()


def end() -> None:
    """End the work. Its rest comes before the next one, not before its result."""
    _thread.working = False
    _thread.until = monotonic() + _due()


def sliced(work: Callable[[], T]) -> T:
    """Do work in this thread, with a rest wherever it calls `rest`. Raises what that raises."""
    begin()
    try:
        return work()
    finally:
        end()


def rest() -> None:
    """Let the others go on. Without effect in a thread that did not `begin`, such as the loop's."""
    if _thread.working:
        sleep(_due())
        _thread.since = thread_time()


def count(data: bytes, mark: bytes) -> int:
    """Count a byte in slices."""
    total = 0
    for start in range(0, len(data), BYTES):
        total += data.count(mark, start, start + BYTES)
        rest()
    return total


def _due() -> float:
    return min(MAX_REST_S, REST_RATIO * (thread_time() - _thread.since))


_Turn = asyncio.Future[None]
_Line = list[tuple[int, int, _Turn]]


class Crowded(Exception):
    """There is no room to wait in."""


class Lane:
    """A few threads, and those who wait for one. Used by one event loop."""

    def __init__(
        self, threads: int, name: str, *, most: int | None = None, sliced: bool = False
    ) -> None:
        """`most`: how many may be in threads or wait for one; None: any number. `sliced`: the work
        is done in slices."""
        self._sliced = sliced
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._idle = threads
        self._most = most
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        """Those who wait, by tenant; the tenant whose turn it is comes first."""
        self._numbers = itertools.count()
        self.pending = 0
        """Work in threads or waiting for one, including that which nobody waits for any more."""

    async def run(self, work: Callable[[], T], size: int, tenant: str = "") -> T:
        """Run `work` in a thread. Raises Crowded, and whatever it raises.

        If the caller is cancelled, work that has begun goes on to its end.
        """
        if self._most is not None and self.pending >= self._most:
            self._displace(tenant)
        self.pending += 1
        try:
            await self._turn(size, tenant)
        except BaseException:
            self.pending -= 1
            raise
        loop = asyncio.get_running_loop()
        try:
            future = (
                self._threads.submit(sliced, work) if self._sliced else self._threads.submit(work)
            )
        except RuntimeError:  # closed
            self._ended()
            raise
        future.add_done_callback(lambda _: _tell(loop, self._ended))
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        finally:
            del future  # breaks the reference cycle: error, traceback, this frame, future

    async def _turn(self, size: int, tenant: str) -> None:
        """Wait for a thread."""
        if self._idle:
            self._idle -= 1
            return
        turn: _Turn = asyncio.get_running_loop().create_future()
        heappush(self._lines.setdefault(tenant, []), (size, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._pass_on()
            else:
                self._leave(tenant, turn)
            raise

    def _leave(self, tenant: str, turn: _Turn) -> None:
        line = [waiter for waiter in self._lines.get(tenant, ()) if waiter[2] is not turn]
        if line:
            heapify(line)
            self._lines[tenant] = line
        else:
            self._lines.pop(tenant, None)

    def _ended(self) -> None:
        self.pending -= 1
        self._pass_on()

    def _pass_on(self) -> None:
        """Give a thread to the next who waits."""
        while self._lines:
            tenant, line = next(iter(self._lines.items()))
            turn = heappop(line)[2]
            if line:
                self._lines.move_to_end(tenant)
            else:
                del self._lines[tenant]
            if not turn.done():
                turn.set_result(None)
                return
        self._idle += 1

    def _displace(self, tenant: str) -> None:
        """Make room at the expense of the tenant with the longest line. Raises Crowded.

        That is never one whose line is no longer than the newcomer's would be.
        """
        longest = max(self._lines, key=lambda other: len(self._lines[other]), default=None)
        if longest is None or len(self._lines[longest]) <= len(self._lines.get(tenant, ())) + 1:
            raise Crowded
        turn = max(self._lines[longest])[2]
        self._leave(longest, turn)
        if not turn.done():
            turn.set_exception(Crowded())

    def close(self) -> None:
        """Start no more work."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop was closed before the thread ended
        loop.call_soon_threadsafe(what)


async def aside(work: Callable[[], T], patience: float) -> T:
    """Run `work` in its own thread and return its result, or raise what it raises.

    Raises TimeoutError after `patience` seconds. The thread then continues with nobody waiting for
    it, because a download cannot be stopped from outside. It is a daemon thread: Python would wait
    for a pool's threads at exit.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return  # timed out or cancelled
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # there is one, if only None

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001 - the waiter gets it
            error = raised
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="aside", daemon=True).start()
    async with asyncio.timeout(patience):
        return await done
