"""A TCP proxy in front of a worker that injects faults."""

import asyncio
import re
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from tests.chaos.looped import Looped

End = Literal["close", "reset", "stall"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the answers of one worker; probes are not affected."""

    end: End | None = None
    """How an answer is cut: the connection is closed or reset, or the rest never comes."""
    at: int = 0
    """After how many bytes it is cut, counted from the start of the status line."""
    garbage: bytes = b""
    """Bytes sent in place of the rest."""
    pieces: int = 0
    """If not 0, the answer is sent in pieces of this many bytes."""
    first: int = 0
    """If not 0, the answer is sent in two pieces, and this many bytes are in the first."""
    length: int = 0
    """Added to the answer's Content-Length."""
    hang_up: bool = False
    """Whether the connection is reset when a request comes, before the worker sees it."""
    once: bool = False
    """Whether only the next request is affected."""


class Chaos(Looped):
    """A proxy that passes everything on, except for what `fault` changes."""

    def __init__(self, worker: Looped) -> None:
        self.fault: Fault | None = None
        """Read when a request comes."""
        self.connections = 0
        """The number of connections that carried requests, not probes."""
        self._worker = worker
        self._lines: set[_Line] = set()
        self._bound: socket.socket | None = None
        """Keeps the port reserved while nothing listens there."""
        self._stuck: list[socket.socket] = []
        super().__init__()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Proxy one connection."""
        first = await reader.read(65536)
        there, back = await asyncio.open_connection("127.0.0.1", self._worker.port)
        line = _Line(self, writer, back, probe=first.startswith(b"GET"))
        self._lines.add(line)
        self.connections += not line.probe
        tasks = [
            asyncio.create_task(line.requests(first, reader)),
            asyncio.create_task(line.answers(there)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._lines.discard(line)
            back.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(ConnectionError):
                await back.wait_closed()

    def take_fault(self) -> Fault | None:
        """Return the fault that applies to the request that has come."""
        fault = self.fault
        if fault is not None and fault.once:
            self.fault = None
        return fault

    def drop(self, end: End, garbage: bytes = b"") -> None:
        """End all connections that carried requests, after writing `garbage`."""

        async def end_all() -> None:
            for line in [line for line in self._lines if not line.probe]:
                line.client.write(garbage)
                line.end(end)

        self.do(end_all())

    def die(self) -> None:
        """Reset all connections and refuse new ones; the port stays reserved."""

        async def die() -> None:
            await self.close()
            self._bound = socket.socket()
            self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._bound.bind(("127.0.0.1", self.port))
            for line in self._lines:
                line.end("reset")

        self.do(die())

    def vanish(self) -> None:
        """Reset all connections and leave new ones unanswered, without even refusing them."""
        self.die()
        assert self._bound
        self._bound.listen(0)
        for _ in range(4):  # the kernel accepts one or two and leaves the others unanswered
            self._stuck.append(socket.socket())
            self._stuck[-1].setblocking(False)
            self._stuck[-1].connect_ex(("127.0.0.1", self.port))

    def listen(self) -> None:
        """Accept connections again after `die` or `vanish`."""

        async def listen() -> None:
            assert self._bound, "it was not dead"
            self._server = await asyncio.start_server(self._accept, sock=self._bound)

        self.do(listen())

    def stop(self) -> None:
        """Close everything."""
        super().stop()
        for each in (self._bound, *self._stuck):
            if each:
                each.close()


class _Line:
    """A connection from the router and the matching one to the worker."""

    def __init__(
        self,
        chaos: Chaos,
        client: asyncio.StreamWriter,
        worker: asyncio.StreamWriter,
        *,
        probe: bool,
    ) -> None:
        self.client = client
        self.probe = probe
        self._chaos = chaos
        self._worker = worker
        self._fault: Fault | None = None
        self._passed = 0
        """Bytes of the current answer passed on so far."""

    async def requests(self, data: bytes, reader: asyncio.StreamReader) -> None:
        """Forward bytes from the router to the worker."""
        while data:
            self._fault, self._passed = None if self.probe else self._chaos.take_fault(), 0
            if self._fault and self._fault.hang_up:
                self.end("reset")
                return
            self._worker.write(data)
            await self._worker.drain()
            data = await reader.read(65536)

    async def answers(self, reader: asyncio.StreamReader) -> None:
        """Forward bytes from the worker to the router, with the fault if there is one."""
        while data := await reader.read(65536):
            fault, passed = self._fault, self._passed
            if fault and fault.length and not passed:
                data = _with_length(data, fault.length)
            self._passed += len(data)  # before the client can send the next request
            if fault and fault.end and passed + len(data) >= fault.at:
                await self._write(_pieces(data[: fault.at - passed] + fault.garbage, fault.pieces))
                self.end(fault.end)
                await asyncio.Event().wait()
            if fault and fault.first > passed:
                await self._write([data[: fault.first - passed], data[fault.first - passed :]])
            else:
                await self._write(_pieces(data, fault.pieces if fault else 0))

    async def _write(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.client.write(piece)
            await self.client.drain()
            if len(pieces) > 1:
                await asyncio.sleep(0.0005)  # otherwise they would be merged on the way

    def end(self, how: End) -> None:
        """Close or reset the router's side; do nothing for a stall."""
        if self.client.is_closing():
            return
        if how == "reset":
            raw = self.client.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.client.transport.abort()
        elif how == "close":
            self.client.close()


def _pieces(data: bytes, size: int) -> list[bytes]:
    """Return `data` in pieces of `size` bytes; in one if `size` is 0."""
    size = size or max(1, len(data))
    return [data[start : start + size] for start in range(0, len(data), size)]


def _with_length(data: bytes, more: int) -> bytes:
    return re.sub(
        rb"content-length: (\d+)",
        lambda found: b"content-length: %d" % (int(found[1]) + more),
        data,
    )
