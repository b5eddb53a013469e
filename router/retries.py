"""The retry budget: a fleet in trouble is not buried under second attempts.

Counted attempts a request bound one request; this bounds all of them together. When much fails at
once, retries would multiply the load on what is left, and that fails too. Those for whom there is
no room wait until another second attempt has ended: nothing is lost that could be saved, and no
more of it happens at once.
"""

import asyncio
from collections import deque

#: Requests that may wait for their second attempt; more are told at once.
MOST = 1024


class Budget:
    """At most a share of the requests in flight may be retries at once.

    A few are always allowed: in a quiet fleet a share of hardly anything is nothing. A share of
    nothing is meant, though, and allows none.
    """

    def __init__(self, share: float, least: int = 3) -> None:
        self.used = 0
        """Retries under way."""
        self.denied = 0
        """Retries that there was no room for, or not in time."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._few = least
        self.change(share)

    def change(self, share: float) -> None:
        """Another share, for the retries to come."""
        self._share = share
        self._least = self._few if share > 0 else 0

    def take(self, in_flight: int) -> bool:
        """Ask before a retry; `in_flight` counts every request, retries too.

        If it is allowed, `give_back` must follow when the retry has ended, however it ends.
        """
        if self.used >= max(self._least, int(self._share * in_flight)):
            return False
        self.used += 1
        return True

    async def turn(self, in_flight: int, patience: float) -> bool:
        """Take, or wait so many seconds for one that is given back."""
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
            if waiter.done() and not waiter.cancelled():  # its turn came in that very moment
                return True
            self.denied += 1
            return False
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # it was its turn, and it has left
                self.give_back()
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        return True

    def give_back(self) -> None:
        """A retry that was allowed has ended: whoever waits for it is next."""
        if self.used == 0:
            raise ValueError("more retries ended than were allowed")
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.used -= 1
