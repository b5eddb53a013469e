"""A client's connection where several processes share the door."""

import asyncio
from typing import TYPE_CHECKING, cast

from router.protocol import Client, House

if TYPE_CHECKING:
    from router.passing import Passing


class Shared(Client):
    """A connection that counts for all processes, and may be passed on when it is new."""

    def __init__(
        self, house: House, loop: asyncio.AbstractEventLoop, passing: "Passing", *, passable: bool
    ) -> None:
        super().__init__(house, loop)
        self._passing = passing
        self._passable = passable
        self._gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is here, or already elsewhere."""
        connection = transport.get_extra_info("socket")
        if self._passable and self._passing.passes(connection.fileno()):
            self._gone = True
            cast("asyncio.Transport", transport).abort()
            return
        self._passing.shares.opened()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended here, or never was."""
        if not self._gone:
            self._passing.shares.opened(-1)
            super().connection_lost(exc)
