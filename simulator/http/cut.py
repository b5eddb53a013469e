"""An answer that breaks off: the faults `reset` and `stall`."""

import asyncio

from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope

from simulator.http.errors import DisconnectedError
from simulator.http.exchange import Exchange
from simulator.http.faults import Fault

#: Seconds for the kernel to send what was written before the connection is reset.
_FLUSH_S = 0.005


class CutExchange(Exchange):
    """An exchange whose answer stops after the fault's `after_bytes` bytes of body.

    With `after_bytes` None it stops before the status line. A `reset` fault then resets the
    connection; a `stall` fault keeps it open and silent until the client leaves or the fault is
    over, and resets it in the latter case.
    """

    def __init__(
        self,
        scope: HTTPScope,
        receive: ASGIReceiveCallable,
        send: ASGISendCallable,
        fault: Fault,
    ) -> None:
        super().__init__(scope, receive, send)
        self._fault = fault
        self._left = fault.after_bytes or 0
        self._stopped = False

    async def reply(
        self, body: bytes = b"", content_type: bytes | None = None, status: int = 200
    ) -> None:
        """Answer with as much of the body as the fault allows."""
        if self._fault.after_bytes is not None and len(body) < self._left:
            await super().reply(body, content_type, status)
            return
        await self._start(status, content_type, len(body) + 1)
        await self._send(
            {"type": "http.response.body", "body": body[: self._left], "more_body": True}
        )
        self._stop()
        await self._hold()

    def write(self, events: bytes) -> None:
        """Send as much of this piece of the stream as the fault allows."""
        if self._stopped:
            return
        part = events[: self._left]
        self._left -= len(part)
        if part:
            super().write(part)
        if not self._left:
            self._stop()

    async def end_stream(self) -> None:
        """End the stream, or wait for the end of the fault that cut it."""
        if self._stopped:
            await self._hold()
        await super().end_stream()

    async def _start(
        self, status: int, content_type: bytes | None, length: int | None = None
    ) -> None:
        if self._fault.after_bytes is None:
            self._stop()
            await self._hold()
        await super()._start(status, content_type, length)
        if length is None and not self._left:
            self._stop()

    def _stop(self) -> None:
        self._stopped = True
        if self._fault.kind == "reset":
            asyncio.get_running_loop().call_later(_FLUSH_S, self.connection.reset)

    async def _hold(self) -> None:
        """Wait until the client is gone; reset the connection if the fault ends first."""
        over = asyncio.ensure_future(self._fault.over.wait())
        await asyncio.wait((over, self.connection.gone), return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not self.connection.gone.done():
            self.connection.reset()
            await self.connection.gone
        raise DisconnectedError
