"""Passes new connections to other processes, so that all processes have equally many.

The kernel spreads connections by a hash of their addresses. With few connections, it may give most
of them to one process, which is then busy while another idles, for hours if clients keep their
connections. So a process that accepts a connection and has more than others passes it on before it
reads anything from it (SCM_RIGHTS, unix(7)); Envoy calls this exact balance.

With TLS nothing is passed: the handshake begins in the process that accepts.

Counts the connections of each process in shared memory.

Pure arithmetic over that memory. Each cell is written by one process only, so no lock is needed. A
value read may be slightly old; at worst a connection is passed on, or kept, without need. The
parent process may shut a cell too, but never opens one.
"""

import asyncio
import os
import socket
import tempfile
from collections.abc import Callable
from mmap import mmap

from msgspec import Struct

from router.http.connection import ConnectionOwner
from router.processes.shared_client import Shared

#: Bytes of a cell.
CELL = 8
#: The count shown by a process that takes no connections.
SHUT = 1 << 62
#: A process keeps a connection unless its count exceeds the lowest one by more than 1/SLACK.
SLACK = 8


def cells(count: int) -> int:
    """Return how many bytes of memory `count` processes need."""
    return CELL * count * (count + 2)


class Shares:
    """One process's view of the memory. `place` is counted from 0."""

    __slots__ = ("_cells", "_count", "_open", "_place")

    def __init__(self, memory: mmap, place: int, count: int) -> None:
        # Layout: open connections per process, connections taken over per process, then a matrix of
        # connections passed, by sender and receiver.
        self._cells = memoryview(memory).cast("Q")
        self._place, self._count = place, count
        self._open = 0

    def begin(self) -> None:
        """Take connections from now on."""
        self._cells[self._place] = self._open

    def shut(self) -> None:
        """Take no connections any more."""
        self._cells[self._place] = SHUT

    def opened(self, number: int = 1) -> None:
        """Count `number` more connections open here; fewer if it is negative."""
        self._open += number
        if self._cells[self._place] < SHUT:
            self._cells[self._place] = self._open

    def took(self) -> None:
        """Count a connection taken over from another process."""
        self._cells[self._count + self._place] += 1

    def passed(self, to: int, number: int = 1) -> None:
        """Count `number` more connections passed to process `to`."""
        self._cells[self._count * (2 + self._place) + to] += number

    def freest(self) -> int | None:
        """Return the process that should get the next connection, or None to keep it here."""
        loads = [self._load(place) for place in range(self._count)]
        least = min(loads)
        mine = self._open
        return None if mine <= least + least // SLACK else loads.index(least)

    def _load(self, place: int) -> int:
        count = self._count
        sent = sum(self._cells[2 * count + place :: count])
        return self._cells[place] + sent - self._cells[count + place]

    def close(self) -> None:
        """Release the memory."""
        self._cells.release()


#: The byte sent along with a descriptor, which cannot be sent alone.
_NOTE = b"."


class Posts(Struct, frozen=True):
    """The descriptors a process needs to take part; it inherits them under the same numbers."""

    memory: int
    inbox: int
    """Connections from other processes arrive here."""
    outboxes: tuple[int, ...]
    """One for each process, including this one."""

    @property
    def count(self) -> int:
        """The number of processes."""
        return len(self.outboxes)

    @property
    def all(self) -> tuple[int, ...]:
        """Every descriptor."""
        return (self.memory, self.inbox, *self.outboxes)


class Commons:
    """The memory and sockets that all processes share, kept by the parent process."""

    def __init__(self, count: int) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(cells(count)))
            file.flush()
            self._memory = os.dup(file.fileno())
        self._cells = mmap(self._memory, cells(count))
        self._pairs = [socket.socketpair() for _ in range(count)]
        for pair in self._pairs:
            for end in pair:
                end.setblocking(False)
        self._count = count
        for place in range(count):
            self.shut(place)

    def posts(self, place: int) -> Posts:
        """Return the descriptors for the process at `place`, counted from 0."""
        outboxes = tuple(out.fileno() for out, _ in self._pairs)
        return Posts(self._memory, self._pairs[place][1].fileno(), outboxes)

    def shut(self, place: int) -> None:
        """Stop the others from passing connections to a process that is absent or hangs."""
        Shares(self._cells, place, self._count).shut()

    def close(self) -> None:
        """Give back every descriptor."""
        self._cells.close()
        os.close(self._memory)
        for pair in self._pairs:
            for end in pair:
                end.close()


class Passing:
    """One process's side: it keeps connections, passes them on, and takes them over."""

    def __init__(self, posts: Posts, place: int) -> None:
        """`place` is counted from 0."""
        self._memory = mmap(posts.memory, cells(posts.count))
        self.shares = Shares(self._memory, place, posts.count)
        self._inbox = socket.socket(fileno=posts.inbox)
        self._outboxes = [socket.socket(fileno=one) for one in posts.outboxes]
        self._taking: Taking | None = None

    def begin(
        self, house: ConnectionOwner, loop: asyncio.AbstractEventLoop
    ) -> Callable[[], asyncio.Protocol]:
        """Start to take over connections; return the factory for those accepted here."""
        self._taking = Taking(self, self._inbox, house, loop)
        self.shares.begin()
        return lambda: Shared(house, loop, self, passable=True)

    def passes(self, descriptor: int) -> bool:
        """Pass a connection on if another process has fewer; return whether it was passed."""
        to = self.shares.freest()
        if to is None:
            return False
        self.shares.passed(to)  # before it is sent: the receiver must not count it earlier
        try:
            socket.send_fds(self._outboxes[to], [_NOTE], [descriptor])
        except OSError:  # the other process does not take it, so it stays here
            self.shares.passed(to, -1)
            return False
        return True

    def again(self) -> None:
        """Take connections again after the parent process had shut this one; no effect after
        `end`."""
        if self._taking is not None:
            self.shares.begin()

    async def end(self) -> None:
        """Stop taking connections, except for those already on their way."""
        self.shares.shut()
        taking, self._taking = self._taking, None
        if taking is not None:
            await taking.end()

    def close(self) -> None:
        """Give back every descriptor."""
        self.shares.close()
        self._memory.close()
        for one in (self._inbox, *self._outboxes):
            one.close()


class Taking:
    """Takes over connections that other processes pass on."""

    def __init__(
        self,
        passing: Passing,
        inbox: socket.socket,
        house: ConnectionOwner,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._passing, self._inbox = passing, inbox
        self._house, self._loop = house, loop
        self._tasks: set[asyncio.Task[None]] = set()
        loop.add_reader(inbox.fileno(), self._take)

    def _take(self) -> None:
        while True:
            try:
                _, descriptors, _, _ = socket.recv_fds(self._inbox, 1, 1)
            except BlockingIOError:
                return
            self._passing.shares.took()  # also if there was no room for its descriptor
            for descriptor in descriptors:
                task = self._loop.create_task(self._serve(socket.socket(fileno=descriptor)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        client = Shared(self._house, self._loop, self._passing, passable=False)
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(lambda: client, connection)
        except OSError:  # the client left before it was taken over
            connection.close()

    async def end(self) -> None:
        """Take over the connections already on their way, then no more."""
        self._take()
        self._loop.remove_reader(self._inbox.fileno())
        await asyncio.gather(*self._tasks)
