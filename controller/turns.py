"""Time on the loop, shared out among all who take in what engines say.

Blocks are applied on the loop that serves requests. A fleet that replays brings minutes of it at
once; so one of them at a time has some milliseconds, and then everybody else is served.
"""

import asyncio
from time import monotonic
from types import TracebackType

#: Seconds of one turn, but for what a single message takes.
TURN_S = 0.002


class Turns:
    """One at a time, first come first: `async with turns:` and go on while `left()`."""

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
        """Let others have theirs, whoever they are."""
        try:
            if error is None:
                await asyncio.sleep(0)
        finally:
            self._lock.release()

    def left(self) -> bool:
        """There is some of it left."""
        return monotonic() < self._until
