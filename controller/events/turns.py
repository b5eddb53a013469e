"""Shares time on the event loop between the tasks that apply KV events and everything else.

Events are applied on the loop that serves requests. When a whole fleet replays, that is minutes of
work at once. So only one task at a time applies events, for a few milliseconds; then all others
get to run.
"""

import asyncio
from time import monotonic
from types import TracebackType

#: Length of a turn in seconds; it may be exceeded by one message.
TURN_S = 0.002


class Turns:
    """Turns in order of arrival: use `async with turns:`, and continue while `left()`."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._until = 0.0

    async def __aenter__(self) -> None:
        """Wait for a turn."""
        await self._lock.acquire()
        self._until = monotonic() + TURN_S

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """End the turn; let all other tasks run first."""
        try:
            if error is None:
                await asyncio.sleep(0)
        finally:
            self._lock.release()

    def left(self) -> bool:
        """Whether there is time left in this turn."""
        return monotonic() < self._until
