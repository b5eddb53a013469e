"""The queue of requests that wait for a worker with room: bounded, fair, and with deadlines.

A line holds the tickets of one tenant for one pool: first come, first served. A pool's lines take
turns, so a tenant with a thousand requests delays another tenant's first one by one request, not by
a thousand. One bound holds for all lines together. When it is reached, a newcomer displaces the
newest ticket of the longest line, provided that its own line stays shorter than that one; so
neither a tenant nor a stuck pool can lock the others out. A waiter that was served in vain, as
another took what it waited for, comes back to the place that it had, beyond the bound if need be.

Every ticket leaves in exactly one way: served by `next`, taken back with `leave`, displaced by
another, or handed out by `expired`.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count, takewhile
from typing import Generic, TypeVar

W = TypeVar("W")

#: The heap may keep this many deadlines of tickets that have left before it is rebuilt.
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
        back: bool = False,
    ) -> None:
        self.waiter = waiter
        """Whatever the caller wants to get back with the ticket."""
        self.pool = pool
        self.tenant = tenant
        self.entered = entered
        self.deadline = deadline
        self.waiting = True
        self.back = back
        """Whether its waiter was served in vain before."""
        self.displaced = displaced
        """The ticket that this one displaced. The caller of `enter` must tell its waiter at once:
        the reference is dropped when this ticket leaves."""


class Queue(Generic[W]):
    """Tickets in fair order. All times are in seconds of the caller's clock."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.refused = 0
        """Tickets that found no room or were displaced."""
        # pool -> tenant -> tickets, oldest first. An OrderedDict removes its first, its last or any
        # other item in constant time.
        self._pools: dict[Hashable, OrderedDict[str, OrderedDict[Ticket[W], None]]] = {}
        self._waiting = 0
        self._late: list[Ticket[W]] = []
        self._deadlines: list[tuple[float, int, Ticket[W]]] = []
        self._numbers = count()

    def enter(
        self, waiter: W, now: float, deadline: float, *, tenant: str = "", pool: Hashable = ""
    ) -> Ticket[W] | None:
        """Wait for `pool` until `deadline`; None if there is no room.

        Expired tickets that `expired` has not handed out yet still take up room.
        """
        self._expire(now)
        displaced = None
        if self._full():
            self.refused += 1
            displaced = self._to_displace(pool, tenant)
            if displaced is None:
                return None
            self._remove(displaced)
        ticket = Ticket(waiter, pool, tenant, now, deadline, displaced=displaced)
        self._add(ticket)
        return ticket

    def come_back(
        self, waiter: W, entered: float, deadline: float, *, tenant: str = "", pool: Hashable = ""
    ) -> Ticket[W]:
        """Wait again, in order of arrival; of the tenants, those that come back are next.

        Not refused: there are at most as many as were served and have not come back yet.
        """
        ticket = Ticket(waiter, pool, tenant, entered, deadline, displaced=None, back=True)
        _put_in_order(self._add(ticket), ticket)
        lines = self._pools[pool]
        ahead = list(takewhile(lambda one: _came_back_before(lines[one], ticket), lines))
        lines.move_to_end(tenant, last=False)
        for one in reversed(ahead):
            lines.move_to_end(one, last=False)
        return ticket

    def leave(self, ticket: Ticket[W]) -> None:
        """Take back a ticket whose client has gone; no effect if it has already left."""
        if ticket.waiting:
            self._remove(ticket)

    def next(self, now: float, pool: Hashable = "") -> Ticket[W] | None:
        """Serve the next ticket that waits for `pool`; None if there is none."""
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
        """Return the tickets whose deadline has passed, each of them once."""
        self._expire(now)
        late, self._late = self._late, []
        return late

    def takes(self, *, tenant: str = "", pool: Hashable = "") -> bool:
        """Whether `enter` would have room for a newcomer."""
        return not self._full() or self._to_displace(pool, tenant) is not None

    def holds(self, pool: Hashable) -> bool:
        """Whether any ticket waits for `pool`."""
        return pool in self._pools

    # For timers and metrics.

    def __len__(self) -> int:
        return self._waiting

    def oldest_wait(self, now: float) -> float:
        """Seconds that the oldest ticket has waited; 0 if none waits."""
        return max((now - next(iter(line)).entered for line in self._lines()), default=0.0)

    @property
    def deadline(self) -> float | None:
        """When `expired` should be called next."""
        self._forget_those_who_left()
        return self._deadlines[0][0] if self._deadlines else None

    # Internal.

    def _lines(self) -> Iterator[OrderedDict[Ticket[W], None]]:
        return (line for lines in self._pools.values() for line in lines.values())

    def _add(self, ticket: Ticket[W]) -> OrderedDict[Ticket[W], None]:
        """Put a ticket at the end of its line, which is returned."""
        lines = self._pools.setdefault(ticket.pool, OrderedDict())
        line = lines.setdefault(ticket.tenant, OrderedDict())
        line[ticket] = None
        self._waiting += 1
        heappush(self._deadlines, (ticket.deadline, next(self._numbers), ticket))
        return line

    def _full(self) -> bool:
        return self._waiting + len(self._late) >= self.limit

    def _to_displace(self, pool: Hashable, tenant: str) -> Ticket[W] | None:
        """Return the newest ticket of the longest line, if the newcomer's line stays shorter.

        None for one that has come back: it had its turn before.
        """
        longest = max(self._lines(), key=len, default=None)
        lines = self._pools.get(pool)
        own = lines.get(tenant) if lines else None
        if longest is None or len(own or ()) + 1 >= len(longest):
            return None
        newest = next(reversed(longest))
        return None if newest.back else newest

    def _remove(self, ticket: Ticket[W]) -> None:
        """Take a ticket out of its line; drop lines and pools that become empty."""
        ticket.waiting = False
        ticket.displaced = None  # otherwise displaced tickets would form an ever longer chain
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


def _put_in_order(line: OrderedDict[Ticket[W], None], ticket: Ticket[W]) -> None:
    """Move a ticket from the end of its line to where its arrival puts it.

    Its place is near one of the ends: ahead of those that were never served, or, if a whole line
    moved to another pool, behind all but the few that are new there. So look from both.
    """
    early: list[Ticket[W]] = []
    late: list[Ticket[W]] = []
    others = reversed(line)
    next(others)  # the ticket itself
    for first, last in zip(line, others, strict=False):
        if last.entered <= ticket.entered:
            break
        late.append(last)
        if first.entered > ticket.entered:
            for one in (ticket, *reversed(early)):
                line.move_to_end(one, last=False)
            return
        early.append(first)
    for one in reversed(late):
        line.move_to_end(one)


def _came_back_before(line: OrderedDict[Ticket[W], None], ticket: Ticket[W]) -> bool:
    """Whether the first of a line came back too, and arrived earlier than `ticket`."""
    first = next(iter(line))
    return first.back and first is not ticket and first.entered <= ticket.entered
