"""A TCP proxy that stands before a worker and breaks what passes through it."""

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
    """What happens to the answers of one worker; probes pass unharmed."""

    end: End | None = None
    """How an answer ends that is not to end well: with the connection, or never."""
    at: int = 0
    """After how many of its bytes, counted from the first of its status line."""
    garbage: bytes = b""
    """Comes in place of the rest."""
    pieces: int = 0
    """The answer comes in pieces of so many bytes, one by one."""
    length: int = 0
    """Added to the length that the answer tells of itself."""
    hang_up: bool = False
    """The connection is reset when a request comes, which does not reach the worker."""
    once: bool = False
    """It happens to the next request alone."""


class Chaos(Looped):
    """Passes everything on, unless `fault` says otherwise."""

    def __init__(self, worker: Looped) -> None:
        self.fault: Fault | None = None
        """Looked at when a request comes."""
        self.connections = 0
        """Those that brought requests."""
        self._worker = worker
        self._lines: set[_Line] = set()
        self._bound: socket.socket | None = None
        """Keeps the port while nobody listens there."""
        self._stuck: list[socket.socket] = []
        super().__init__()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on."""
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
        """What will happen to the request that has come."""
        fault = self.fault
        if fault is not None and fault.once:
            self.fault = None
        return fault

    def drop(self, end: End, garbage: bytes = b"") -> None:
        """End all connections that brought requests, after some last words."""

        async def end_all() -> None:
            for line in [line for line in self._lines if not line.probe]:
                line.client.write(garbage)
                line.end(end)

        self.do(end_all())

    def die(self) -> None:
        """Reset all connections and accept no more; the port stays taken."""

        async def die() -> None:
            await self.close()
            self._bound = socket.socket()
            self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._bound.bind(("127.0.0.1", self.port))
            for line in self._lines:
                line.end("reset")

        self.do(die())

    def vanish(self) -> None:
        """Reset all connections, and do not even refuse new ones: nothing answers any more."""
        self.die()
        assert self._bound
        self._bound.listen(0)
        for _ in range(4):  # the kernel takes one or two, and leaves the others without an answer
            self._stuck.append(socket.socket())
            self._stuck[-1].setblocking(False)
            self._stuck[-1].connect_ex(("127.0.0.1", self.port))

    def listen(self) -> None:
        """Accept connections again."""

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
    """One connection from the router and the one to the worker that it is passed on to."""

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
        """Bytes of the present answer."""

    async def requests(self, data: bytes, reader: asyncio.StreamReader) -> None:
        """From the router to the worker."""
        while data:
            self._fault, self._passed = None if self.probe else self._chaos.take_fault(), 0
            if self._fault and self._fault.hang_up:
                self.end("reset")
                return
            self._worker.write(data)
            await self._worker.drain()
            data = await reader.read(65536)

    async def answers(self, reader: asyncio.StreamReader) -> None:
        """From the worker to the router."""
        while data := await reader.read(65536):
            fault = self._fault
            if fault and fault.length and not self._passed:
                data = _with_length(data, fault.length)
            if fault and fault.end and self._passed + len(data) >= fault.at:
                await self._write(data[: fault.at - self._passed] + fault.garbage, fault)
                self.end(fault.end)
                await asyncio.Event().wait()
            await self._write(data, fault)
            self._passed += len(data)

    async def _write(self, data: bytes, fault: Fault | None) -> None:
        size = fault.pieces if fault and fault.pieces else max(1, len(data))
        for start in range(0, len(data), size):
            self.client.write(data[start : start + size])
            await self.client.drain()
            if fault and fault.pieces:
                await asyncio.sleep(0.0005)  # or they would be one piece on the way

    def end(self, how: End) -> None:
        """Close or reset the router's side; a stall is left as it is."""
        if self.client.is_closing():
            return
        if how == "reset":
            raw = self.client.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.client.transport.abort()
        elif how == "close":
            self.client.close()


def _with_length(data: bytes, more: int) -> bytes:
    return re.sub(
        rb"content-length: (\d+)",
        lambda found: b"content-length: %d" % (int(found[1]) + more),
        data,
    )
