"""Sockets over which the processes of one router write to each other.

Each process has one socket pair of datagrams (unix(7)): it reads one end, the others write to the
other end. Datagrams arrive whole and in order, and nobody else can reach the sockets.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

from msgspec import Struct

#: Most bytes of a letter (one datagram).
MAX_DATAGRAM_BYTES = 128 << 10
#: Most bytes that wait for a process that does not read. Beyond that they are dropped, and it is
#: told everything again when it reads.
MAX_WAITING_BYTES = 16 << 20


class Wires(Struct, frozen=True):
    """The descriptors of one process, which inherits them under the same numbers."""

    inbox: int
    outboxes: tuple[int, ...]
    """One for each process, including this one."""

    @property
    def all(self) -> tuple[int, ...]:
        """Every descriptor."""
        return (self.inbox, *self.outboxes)


class Wiring:
    """The sockets of all processes, kept by the parent process."""

    def __init__(self, count: int) -> None:
        self._pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]
        for pair in self._pairs:
            for end in pair:
                end.setblocking(False)

    def wires(self, place: int) -> Wires:
        """Return the descriptors for the process at `place`, counted from 0."""
        return Wires(self._pairs[place][1].fileno(), tuple(out.fileno() for out, _ in self._pairs))

    def close(self) -> None:
        """Give back every descriptor."""
        for pair in self._pairs:
            for end in pair:
                end.close()


class Inbox:
    """Reads what other processes have written to this one."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, hear: Callable[[], None]) -> None:
        """Have `hear` called whenever there is something to read."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._end.fileno(), hear)

    def clear(self) -> None:
        """Drop everything that waits to be read."""
        while self.read():
            pass

    def read(self) -> bytes:
        """Return one letter, or nothing if there is none."""
        try:
            return self._end.recv(MAX_DATAGRAM_BYTES)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Give back the descriptor."""
        if self._loop is not None:
            self._loop.remove_reader(self._end.fileno())
            self._loop = None
        self._end.close()


class Line(Enum):
    """The state of the connection to one other process."""

    ABSENT = "absent"
    """It has not written yet, or has ended: it is told nothing."""
    OPEN = "open"
    LOST = "lost"
    """It has not read for so long that it must be told everything again."""


class Outbox:
    """Writes to one other process, and keeps what it cannot take yet."""

    def __init__(self, end: socket.socket, max_waiting_bytes: int = MAX_WAITING_BYTES) -> None:
        self._end = end
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self.line = Line.ABSENT

    @property
    def behind(self) -> bool:
        """Whether something is to be written as soon as the process reads."""
        return bool(self._waiting) or self.line is Line.LOST

    def write(self, data: bytes) -> None:
        """Write `data`, or keep it until it can be written."""
        self._waiting.append(data)
        self._bytes += len(data)
        self.push()
        if self._bytes > self._max_waiting_bytes:
            self.drop(Line.LOST)

    def reads(self, data: bytes) -> bool:
        """Whether the process reads again: try to write `data` to it directly."""
        try:
            self._end.send(data)
        except OSError:
            return False
        return True

    def begin(self, letters: Sequence[bytes]) -> None:
        """Open the line: write these letters first, however many, then whatever follows."""
        self.drop(Line.OPEN)
        self._waiting.extend(letters)
        self.push()
        self._bytes = 0  # the bound applies only to what follows these letters

    def push(self) -> None:
        """Write as much of what waits as the socket takes."""
        while self._waiting:
            try:
                self._end.send(self._waiting[0])
            except OSError:  # it does not read, or the system has no memory for it now
                return
            self._bytes = max(0, self._bytes - len(self._waiting.popleft()))

    def drop(self, line: Line) -> None:
        """Discard everything that waits, and set the state."""
        self._waiting.clear()
        self._bytes = 0
        self.line = line

    def close(self) -> None:
        """Give back the descriptor."""
        self.drop(Line.ABSENT)
        self._end.close()
