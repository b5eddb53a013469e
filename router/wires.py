"""Sockets by which the processes of one router write to each other: one that each reads, one that
all others write to. Datagrams of a socket pair (unix(7)): whole, in order, and nobody else can
reach them.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

from msgspec import Struct

#: Bytes of a letter, at most.
LARGEST = 128 << 10
#: Bytes that wait for a process that does not read; beyond that it is told anew when it does.
MOST_WAITING = 16 << 20


class Wires(Struct, frozen=True):
    """The descriptors of one process. They keep their numbers in it."""

    inbox: int
    outboxes: tuple[int, ...]
    """One for each process, this one too."""

    @property
    def all(self) -> tuple[int, ...]:
        """Every descriptor."""
        return (self.inbox, *self.outboxes)


class Wiring:
    """The sockets of all processes, kept by the one that minds them."""

    def __init__(self, count: int) -> None:
        self._pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]
        for pair in self._pairs:
            for end in pair:
                end.setblocking(False)

    def wires(self, place: int) -> Wires:
        """Return the descriptors for the process at a place, from 0."""
        return Wires(self._pairs[place][1].fileno(), tuple(out.fileno() for out, _ in self._pairs))

    def close(self) -> None:
        """Give back every descriptor."""
        for pair in self._pairs:
            for end in pair:
                end.close()


class Inbox:
    """What others have written to this process."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, hear: Callable[[], None]) -> None:
        """Have `hear` called whenever there is something to be read."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._end.fileno(), hear)

    def clear(self) -> None:
        """Drop all that is there."""
        while self.read():
            pass

    def read(self) -> bytes:
        """Return one letter, or nothing if there is none."""
        try:
            return self._end.recv(LARGEST)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Give back the descriptor."""
        if self._loop is not None:
            self._loop.remove_reader(self._end.fileno())
            self._loop = None
        self._end.close()


class Line(Enum):
    """How it stands with one other process."""

    ABSENT = "absent"
    """It has not spoken yet, or has ended: it is told nothing."""
    OPEN = "open"
    LOST = "lost"
    """It has not read for so long that it has to be told anew."""


class Outbox:
    """What is on its way to one other process."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self.line = Line.ABSENT

    @property
    def behind(self) -> bool:
        """There is something to be written as soon as it reads."""
        return bool(self._waiting) or self.line is Line.LOST

    def write(self, data: bytes) -> None:
        """Write it, or keep it until it can be written."""
        self._waiting.append(data)
        self._bytes += len(data)
        self.push()
        if self._bytes > MOST_WAITING:
            self.drop(Line.LOST)

    def reads(self, data: bytes) -> bool:
        """Whether it reads again: this was written, and nothing waits."""
        try:
            self._end.send(data)
        except OSError:
            return False
        return True

    def begin(self, letters: Sequence[bytes]) -> None:
        """It is told these first, however many, and whatever comes from now on."""
        self.drop(Line.OPEN)
        self._waiting.extend(letters)
        self.push()
        self._bytes = 0  # only what comes after them is bounded

    def push(self) -> None:
        """Write what waits, as far as it goes."""
        while self._waiting:
            try:
                self._end.send(self._waiting[0])
            except OSError:  # it does not read, or there is no memory for it now
                return
            self._bytes = max(0, self._bytes - len(self._waiting.popleft()))

    def drop(self, line: Line) -> None:
        """Nothing that waits is written any more."""
        self._waiting.clear()
        self._bytes = 0
        self.line = line

    def close(self) -> None:
        """Give back the descriptor."""
        self.drop(Line.ABSENT)
        self._end.close()
