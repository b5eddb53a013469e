"""Blocking work off the event loop, with a deadline, that never keeps the process from exiting."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


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
