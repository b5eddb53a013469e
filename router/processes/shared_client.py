"""A client connection when several processes share one port."""

import asyncio
from typing import TYPE_CHECKING, cast

from router.http.connection import ConnectionOwner, HttpConnection

if TYPE_CHECKING:
    from router.processes.balance import Passing


class Shared(HttpConnection):
    """A connection counted in shared memory, which may be passed on while it is new."""

    def __init__(
        self,
        house: ConnectionOwner,
        loop: asyncio.AbstractEventLoop,
        passing: "Passing",
        *,
        passable: bool,
    ) -> None:
        super().__init__(house, loop)
        self._passing = passing
        self._passable = passable
        self._gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the connection on to another process, or keep and count it."""
        connection = transport.get_extra_info("socket")
        if self._passable and self._passing.passes(connection.fileno()):
            self._gone = True
            cast("asyncio.Transport", transport).abort()
            return
        self._passing.shares.opened()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a connection that has ended, unless it was passed on."""
        if not self._gone:
            self._passing.shares.opened(-1)
            super().connection_lost(exc)
