"""Notices a client that leaves, and cancels what is being done for it."""

import asyncio
from types import TracebackType

from router.exchange import ClientLeft, Receive


class Presence:
    """While the block runs, a disconnect cancels the task that runs it.

    The cancellation comes out of the block as `ClientLeft`; one from elsewhere stays what it is.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - always called from a task
        self._task = task
        self._watch = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._watch.cancel()
        if self._left and kind is asyncio.CancelledError:
            self._task.uncancel()
            raise ClientLeft(asked_worker=True) from None
