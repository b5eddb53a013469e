"""Requests that wait for a worker with room: bounded, fair, and never longer than they may.

A line is what one tenant has waiting for one pool: first come, first served. A pool's lines are
served in turn, so a tenant with a thousand requests delays another's first by one, not by a
thousand. The bound holds for all lines together; when it is reached, the longest line gives up
its newest ticket to one that is shorter by more than the newcomer, so neither a tenant nor a pool
that is stuck can shut the others out.

Every ticket leaves in exactly one way: served by `next`, taken back with `leave`, displaced by
another, or handed out by `expired`.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeVar

W = TypeVar("W")

#: Deadlines of tickets that have left are kept until they come up, or are this many.
_SLACK = 64


class Ticket(Generic[W]):
    """A place in a line."""

    def __init__(
        self,
        waiter: W,
        pool: Hashable,
        tenant: str,
        entered: float,
        deadline: float,
        *,
        displaced: "Ticket[W] | None",
    ) -> None:
        self.waiter = waiter
        """Whatever the caller wants back with it."""
        self.pool = pool
        self.tenant = tenant
        self.entered = entered
        self.deadline = deadline
        self.waiting = True
        self.displaced = displaced
        """Who had to leave for it, and is to be told so: look at once, it is not kept for long."""


class Queue(Generic[W]):
    """Tickets in fair order. Every time is the caller's clock, in seconds."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.refused = 0
        """Tickets that found no room, or lost it to another."""
        # Of each pool, of each tenant, oldest first. An OrderedDict gives up its first, its last
        # or any other item at once.
        self._pools: dict[Hashable, OrderedDict[str, OrderedDict[Ticket[W], None]]] = {}
        self._waiting = 0
        self._late: list[Ticket[W]] = []
        self._deadlines: list[tuple[float, int, Ticket[W]]] = []
        self._numbers = count()

    def enter(
        self, waiter: W, now: float, deadline: float, *, tenant: str = "", pool: Hashable = ""
    ) -> Ticket[W] | None:
        """Wait for `pool` until `deadline`; None if there is no room.

        There is none either for those that `expired` was not asked for: they are not answered.
        """
        self._expire(now)
        displaced = None
        if self._waiting + len(self._late) >= self.limit:
            self.refused += 1
            displaced = self._to_displace(pool, tenant)
            if displaced is None:
                return None
            self._remove(displaced)
        ticket = Ticket(waiter, pool, tenant, now, deadline, displaced=displaced)
        lines = self._pools.setdefault(pool, OrderedDict())
        lines.setdefault(tenant, OrderedDict())[ticket] = None
        self._waiting += 1
        heappush(self._deadlines, (deadline, next(self._numbers), ticket))
        return ticket

    def leave(self, ticket: Ticket[W]) -> None:
        """Its client has gone. Doing it twice, or after it was served, changes nothing."""
        if ticket.waiting:
            self._remove(ticket)

    def next(self, now: float, pool: Hashable = "") -> Ticket[W] | None:
        """Serve the next of those waiting for `pool`; None if nobody is."""
        self._expire(now)
        lines = self._pools.get(pool)
        if not lines:
            return None
        tenant, line = next(iter(lines.items()))
        lines.move_to_end(tenant)
        ticket = next(iter(line))
        self._remove(ticket)
        return ticket

    def expired(self, now: float) -> list[Ticket[W]]:
        """Hand out, once, those whose deadline has come."""
        self._expire(now)
        late, self._late = self._late, []
        return late

    def holds(self, pool: Hashable) -> bool:
        """Whether somebody waits for `pool`."""
        return pool in self._pools

    # For timers and metrics.

    def __len__(self) -> int:
        return self._waiting

    def oldest_wait(self, now: float) -> float:
        """Seconds that the one who came first has waited; 0 if nobody waits."""
        return max((now - next(iter(line)).entered for line in self._lines()), default=0.0)

    @property
    def deadline(self) -> float | None:
        """When `expired` should be asked next."""
        self._forget_those_who_left()
        return self._deadlines[0][0] if self._deadlines else None

    # Inside.

    def _lines(self) -> Iterator[OrderedDict[Ticket[W], None]]:
        return (line for lines in self._pools.values() for line in lines.values())

    def _to_displace(self, pool: Hashable, tenant: str) -> Ticket[W] | None:
        """Find the newest of the longest line, if the newcomer's stays shorter than that one."""
        longest = max(self._lines(), key=len, default=None)
        lines = self._pools.get(pool)
        own = lines.get(tenant) if lines else None
        if longest is None or len(own or ()) + 1 >= len(longest):
            return None
        return next(reversed(longest))

    def _remove(self, ticket: Ticket[W]) -> None:
        """Take it out of its line, and out of sight lines and pools that are empty."""
        ticket.waiting = False
        ticket.displaced = None  # or who was displaced would be kept by who is, and so on
        self._waiting -= 1
        lines = self._pools[ticket.pool]
        line = lines[ticket.tenant]
        del line[ticket]
        if not line:
            del lines[ticket.tenant]
        if not lines:
            del self._pools[ticket.pool]
        if len(self._deadlines) > 2 * self._waiting + _SLACK:
            self._deadlines = [entry for entry in self._deadlines if entry[2].waiting]
            heapify(self._deadlines)

    def _expire(self, now: float) -> None:
        self._forget_those_who_left()
        while self._deadlines and self._deadlines[0][0] <= now:
            ticket = heappop(self._deadlines)[2]
            self._late.append(ticket)
            self._remove(ticket)
            self._forget_those_who_left()

    def _forget_those_who_left(self) -> None:
        while self._deadlines and not self._deadlines[0][2].waiting:
            heappop(self._deadlines)
