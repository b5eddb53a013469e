"""A worker that writes as fast as it can, and a client that reads as slowly as it likes."""

import asyncio
import http.client
import socket
from dataclasses import dataclass
from typing import Literal, Self

from tests.chaos.looped import Looped
from tests.support import head

PATH = "/v1/chat/completions"
BODY = b'{"model":"%b","stream":true,"messages":[{"role":"user","content":"hi"}]}'
#: Bytes of one event, including the empty line that ends it.
EVENT = 32 << 10


Shape = Literal["stream", "endless event", "whole"]
"""What the answer is: a chunked stream of events, a stream of one event that never ends, or a
whole body with a Content-Length."""


def event(number: int) -> bytes:
    """A numbered event, so that a lost, repeated or misplaced one is noticed."""
    start = b"data: %010d " % number
    return start + b"x" * (EVENT - len(start) - 2) + b"\n\n"


@dataclass(eq=False)
class Pour:
    """One answer in progress."""

    transport: asyncio.WriteTransport
    given: int = 0
    over: bool = False

    @property
    def written(self) -> int:
        """Bytes that the kernel has accepted."""
        return self.given - self.transport.get_write_buffer_size()


class Fountain(Looped):
    """A worker that answers each request with that many events."""

    def __init__(self, events: int, shape: Shape = "stream") -> None:
        self.pours: list[Pour] = []
        """Every answer, in the order of the requests."""
        self._events = events
        self._shape = shape
        super().__init__()

    @property
    def open(self) -> int:
        """The number of answers in progress."""
        return sum(not pour.over for pour in self.pours)

    def body(self) -> bytes:
        """The complete body that each client must have read at the end."""
        return b"".join(map(self._piece, range(self._events)))

    def _piece(self, number: int) -> bytes:
        piece = event(number)
        return piece.strip() if self._shape == "endless event" else piece

    def _head(self) -> bytes:
        kind, framing = b"text/event-stream", b"transfer-encoding: chunked"
        if self._shape == "whole":
            kind, framing = b"application/json", b"content-length: %d" % (self._events * EVENT)
        return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n\r\n" % (kind, framing)

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests in order."""
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        while True:
            start = (await reader.readuntil(b"\r\n\r\n")).lower()
            if start.startswith(b"get"):
                models = b'{"data":[{"id":"m"}]}' if b"/v1/models" in start else b""
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(models), models)
                )
                continue
            length = int(start.partition(b"content-length:")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            await self._pour(writer)

    async def _pour(self, writer: asyncio.StreamWriter) -> None:
        pour = Pour(writer.transport)
        self.pours.append(pour)
        try:
            await self._give(pour, writer, self._head())
            for number in range(self._events):
                await self._give(pour, writer, self._framed(self._piece(number)))
            if self._shape != "whole":
                await self._give(pour, writer, b"0\r\n\r\n")
        finally:
            pour.over = True

    def _framed(self, data: bytes) -> bytes:
        return data if self._shape == "whole" else b"%x\r\n%b\r\n" % (len(data), data)

    @staticmethod
    async def _give(pour: Pour, writer: asyncio.StreamWriter, data: bytes) -> None:
        pour.given += len(data)
        writer.write(data)
        await writer.drain()


class Reader:
    """A client with a very small receive buffer."""

    def __init__(self, port: int, model: str = "m") -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)  # before connecting
        self.socket.settimeout(30)
        self.socket.connect(("127.0.0.1", port))
        body = BODY % model.encode()
        self.socket.sendall(head(PATH, len(body)) + body)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def answer(self) -> http.client.HTTPResponse:
        """Return the answer with its head read and its body still to be read."""
        answer = http.client.HTTPResponse(self.socket)
        answer.begin()
        return answer
