"""The retry budget: keeps a fleet in trouble from being buried under second attempts.

`limits.attempts` bounds one request; this bounds all of them together. When much fails at once,
retries would multiply the load on the workers that are left, until those fail too. Requests that
find no room wait until another retry has ended, so that none is given up that could be saved.
"""

import asyncio
from collections import deque

#: Most requests that may wait for their retry; further ones fail at once.
MOST = 1024


class Budget:
    """Allows at most a share of the requests in flight to be retries at once.

    `least` retries are always allowed, because in a quiet fleet the share would round to none. A
    share of zero allows none at all.
    """

    def __init__(self, share: float, least: int = 3) -> None:
        self.used = 0
        """Retries under way."""
        self.denied = 0
        """Retries that found no room, or not in time."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._few = least
        self.change(share)

    def change(self, share: float) -> None:
        """Use another share for retries from now on."""
        self._share = share
        self._least = self._few if share > 0 else 0

    def take(self, in_flight: int) -> bool:
        """Ask before a retry; `in_flight` counts all requests, including retries.

        If it returns True, call `give_back` when the retry has ended, however it ends.
        """
        if self.used >= max(self._least, int(self._share * in_flight)):
            return False
        self.used += 1
        return True

    async def turn(self, in_flight: int, patience: float) -> bool:
        """Like `take`, but wait up to `patience` seconds for one that is given back."""
        if self.take(in_flight):
            return True
        if not self._least or len(self._waiting) >= MOST:
            self.denied += 1
            return False
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(patience):
                await waiter
        except TimeoutError:
            if waiter.done() and not waiter.cancelled():  # its turn came at the same moment
                return True
            self.denied += 1
            return False
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # its turn came, but its client has left
                self.give_back()
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        return True

    def give_back(self) -> None:
        """End a retry that was allowed; the next waiting request may start its own."""
        if self.used == 0:
            raise ValueError("more retries ended than were allowed")
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.used -= 1
