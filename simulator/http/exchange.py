"""One HTTP request and its answer, on top of ASGI.

Whole answers go through ASGI's `send`. The events of a stream are written straight to the
transport as HTTP chunks: there is one per token and request, so this process spends most of its
time on them, and `send` costs several times as much as the write itself.
"""

import asyncio
from collections.abc import Callable

import msgspec
from uvicorn._types import ASGIReceiveCallable, ASGISendCallable, HTTPScope

from simulator.http.errors import DisconnectedError
from simulator.http.faults import ActiveFault
from simulator.http.listener import UvicornConnection

Header = tuple[bytes, bytes]

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"
_encode = msgspec.json.Encoder().encode


class AsgiExchange:
    """One request, and the means to answer it."""

    def __init__(
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.connection: UvicornConnection = scope["state"]["connection"]
        self._body: bytes | None = None
        self._receive = receive
        self._send = send

    @property
    def request_id(self) -> str | None:
        """Return the id the client chose (`X-Request-Id`), echoed in the answer."""
        value = self.headers.get(b"x-request-id")
        return None if value is None else value.decode("latin-1")

    async def body(self) -> bytes:
        """Return the whole request body; raise DisconnectedError if the client leaves first."""
        if self._body is None:
            parts: list[bytes] = []
            more = True
            while more:
                message = await self._receive()
                if message["type"] != "http.request":
                    raise DisconnectedError
                parts.append(message["body"])
                more = message["more_body"]
            self._body = b"".join(parts)
        return self._body

    async def json(self, answer: object, status: int = 200) -> None:
        """Answer with JSON."""
        await self.reply(_encode(answer), JSON, status)

    async def reply(
        self, body: bytes = b"", content_type: bytes | None = None, status: int = 200
    ) -> None:
        """Answer with a whole body."""
        await self._start(status, content_type, len(body))
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def start_stream(self) -> None:
        """Begin an answer of server-sent events."""
        await self._start(200, EVENT_STREAM)

    def write(self, events: bytes) -> None:
        """Send a piece of the stream now."""
        self.connection.write(b"%x\r\n%b\r\n" % (len(events), events))

    async def end_stream(self) -> None:
        """End the stream."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def when_lost(self, callback: Callable[[], None] | None) -> None:
        """Set the callback for when the client disconnects; None removes it."""
        self.connection.on_lost = callback
        if callback is not None and self.connection.gone.done():
            callback()

    async def _start(
        self, status: int, content_type: bytes | None, length: int | None = None
    ) -> None:
        headers: list[Header] = []
        if length is not None:
            headers.append((b"content-length", b"%d" % length))
        if content_type is not None:
            headers.append((b"content-type", content_type))
        chosen = self.headers.get(b"x-request-id")
        if chosen is not None:
            headers.append((b"x-request-id", chosen))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


#: Seconds for the kernel to send what was written before the connection is reset.
_FLUSH_S = 0.005


class CutExchange(AsgiExchange):
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
        fault: ActiveFault,
    ) -> None:
        super().__init__(scope, receive, send)
        self._fault = fault
        self._left = fault.order.after_bytes or 0
        self._stopped = False

    async def reply(
        self, body: bytes = b"", content_type: bytes | None = None, status: int = 200
    ) -> None:
        """Answer with as much of the body as the fault allows."""
        if self._fault.order.after_bytes is not None and len(body) < self._left:
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
        if self._fault.order.after_bytes is None:
            self._stop()
            await self._hold()
        await super()._start(status, content_type, length)
        if length is None and not self._left:
            self._stop()

    def _stop(self) -> None:
        self._stopped = True
        if self._fault.order.kind == "reset":
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
