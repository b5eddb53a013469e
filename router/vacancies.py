"""Where a request waits that is refused although it gave way to a shorter one, or others to it.

Workers may have limits of their own, below `limits.in_flight`. So one that says that it is full has
room as far as `admission.py` knows, and only the end of an answer may tell that it really has.
"""

import asyncio
from collections.abc import Collection
from typing import Final

from router.worker import Worker

#: Seconds after which a request tries again at the latest: requests that another router sent to the
#: worker end unseen.
AGAIN_S: Final = 1.0
#: For so many seconds after a request was refused, those that gave way to it come after it.
FIRST_S: Final = 3.0


class Crowded(Exception):
    """Every worker that was asked is full, and the request waits until one is not."""


class Vacancies:
    """The requests that wait for a worker to have room by its own count."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], tuple[str, float, bytes]] = {}
        self._first: dict[bytes, float] = {}
        """Until when none may take the place of the request with that id."""
        self.waited = 0
        """Number of requests that have waited so far."""

    def __len__(self) -> int:
        return len(self._waiting)

    def goes_first(self, identity: bytes) -> bool:
        """Whether the request with that id is refused, so that none may take its place.

        A request that gave way to it would otherwise be sent again as soon as it is refused, get
        the place, and have to give way again. That ends `FIRST_S` after it was last refused: it may
        have been accepted by then, but the head of an answer in one piece tells only at its end.
        """
        return self._first.get(identity, 0.0) > asyncio.get_running_loop().time()

    def refused(self, identity: bytes) -> None:
        """Note that the request with that id was refused, and waits until it is `settled`.

        Of one that another process serves, nothing more is heard.
        """
        now = asyncio.get_running_loop().time()
        self._first = {one: until for one, until in self._first.items() if until > now}
        self._first[identity] = now + FIRST_S

    def settled(self, identity: bytes) -> None:
        """Note that it was accepted or has ended, and wake those that wait behind it."""
        if self._first.pop(identity, None) is not None:
            for waiter, (_, _, behind) in self._waiting.items():
                if behind == identity:
                    _wake(waiter)

    async def turn(
        self, model: str, since: float, late: float, behind: bytes = b"", *, again: bool = False
    ) -> None:
        """Wait until a request that came at `since` should be tried again, at most until `late`.

        It comes after the one with the id `behind`. `again`: it was tried, and waits once more.
        """
        self.waited += not again
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting[waiter] = model, since, behind
        timer = loop.call_at(min(late, loop.time() + AGAIN_S), _wake, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # its turn had come in the same moment: the next one's has
                self._next((model,))
            raise
        finally:
            timer.cancel()
            del self._waiting[waiter]

    def freed(self, worker: Worker) -> None:
        """Wake the one that came first: a request that `worker` had accepted has ended."""
        self._next(worker.models)

    def _next(self, models: Collection[str]) -> None:
        """Wake the first that waits for one of these models, behind none."""
        able = [
            (since, waiter)
            for waiter, (model, since, behind) in self._waiting.items()
            if model in models and not (waiter.done() or self.goes_first(behind))
        ]
        if able:
            _wake(min(able, key=lambda one: one[0])[1])


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
