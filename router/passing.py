"""Connections that are passed on to another process, so that all of them have equally many.

The kernel spreads connections by a hash of their addresses, and of a few it may give most to one
process, which then is busy while another has nothing to do; a client that keeps its connections
would leave it so for hours. Here whoever accepts a connection and has more than others passes it on
before anything is read from it (SCM_RIGHTS, unix(7)); Envoy calls this an exact balance.

With TLS nothing is passed: the handshake has begun where the connection was accepted.
"""

import asyncio
import os
import socket
import tempfile
from collections.abc import Callable
from mmap import mmap

from msgspec import Struct

from router.protocol import House
from router.shared_client import Shared
from router.shares import Shares, cells

#: What is sent along with a descriptor, which cannot travel alone.
_NOTE = b"."


class Posts(Struct, frozen=True):
    """The descriptors by which a process takes part. They keep their numbers in it."""

    memory: int
    inbox: int
    """Others pass connections to this."""
    outboxes: tuple[int, ...]
    """One for each process, this one too."""

    @property
    def count(self) -> int:
        """How many processes there are."""
        return len(self.outboxes)

    @property
    def all(self) -> tuple[int, ...]:
        """Every descriptor."""
        return (self.memory, self.inbox, *self.outboxes)


class Commons:
    """What the processes have in common, kept by the one that minds them."""

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
        """Return the descriptors for the process at a place, from 0."""
        outboxes = tuple(out.fileno() for out, _ in self._pairs)
        return Posts(self._memory, self._pairs[place][1].fileno(), outboxes)

    def shut(self, place: int) -> None:
        """The process at a place is not there, or hangs: nobody is to pass it anything."""
        Shares(self._cells, place, self._count).shut()

    def close(self) -> None:
        """Give back every descriptor."""
        self._cells.close()
        os.close(self._memory)
        for pair in self._pairs:
            for end in pair:
                end.close()


class Passing:
    """What one process does with connections: keeps them, passes them on, takes them over."""

    def __init__(self, posts: Posts, place: int) -> None:
        """`place` is from 0."""
        self._memory = mmap(posts.memory, cells(posts.count))
        self.shares = Shares(self._memory, place, posts.count)
        self._inbox = socket.socket(fileno=posts.inbox)
        self._outboxes = [socket.socket(fileno=one) for one in posts.outboxes]
        self._taking: Taking | None = None

    def begin(
        self, house: House, loop: asyncio.AbstractEventLoop
    ) -> Callable[[], asyncio.Protocol]:
        """Take what others pass on from now on; return what serves who connects here."""
        self._taking = Taking(self, self._inbox, house, loop)
        self.shares.begin()
        return lambda: Shared(house, loop, self, passable=True)

    def passes(self, descriptor: int) -> bool:
        """Pass a connection on if another process has fewer; tell whether it has gone."""
        to = self.shares.freest()
        if to is None:
            return False
        self.shares.passed(to)  # first: whoever takes it must not count it before
        try:
            socket.send_fds(self._outboxes[to], [_NOTE], [descriptor])
        except OSError:  # nobody takes them there: so it stays
            self.shares.passed(to, -1)
            return False
        return True

    def again(self) -> None:
        """Take what others pass on again, having been shut by who minds us; not after the end."""
        if self._taking is not None:
            self.shares.begin()

    async def end(self) -> None:
        """Take none any more, but those that are on their way."""
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
    """Takes over what others pass on."""

    def __init__(
        self,
        passing: Passing,
        inbox: socket.socket,
        house: House,
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
            for descriptor in descriptors:
                self._passing.shares.took()
                task = self._loop.create_task(self._serve(socket.socket(fileno=descriptor)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        client = Shared(self._house, self._loop, self._passing, passable=False)
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(lambda: client, connection)
        except OSError:  # gone before it was taken over
            connection.close()

    async def end(self) -> None:
        """Take those that are on their way, and no other."""
        self._take()
        self._loop.remove_reader(self._inbox.fileno())
        await asyncio.gather(*self._tasks)
