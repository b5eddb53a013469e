"""The queue, compared with the simplest one that keeps its promises."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from router.queue import Queue, Ticket


@dataclass
class Model:
    """What a queue should hold, kept in the simplest way."""

    queue: Queue[int]
    waiting: list[Ticket[int]] = field(default_factory=list)
    """In order of arrival."""
    late: list[Ticket[int]] = field(default_factory=list)
    passed_over: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """For each line: tenants of its pool served since it began to wait or was last served."""

    def line(self, pool: Hashable, tenant: str) -> list[Ticket[int]]:
        """Return a tenant's tickets for a pool."""
        return [each for each in self.waiting if (each.pool, each.tenant) == (pool, tenant)]

    def expire(self, now: float) -> None:
        """Move those past their deadline to `late`."""
        due = [each for each in self.waiting if each.deadline <= now]
        self.late += due
        self.waiting = [each for each in self.waiting if each not in due]

    def enter(self, number: int, now: float, deadline: float, pool: str, tenant: str) -> None:
        """Enter a ticket, and check whether it is let in and whom it displaces."""
        self.expire(now)
        full = len(self.waiting) + len(self.late) >= self.queue.limit
        own = len(self.line(pool, tenant))
        lengths = [len(self.line(each.pool, each.tenant)) for each in self.waiting]
        ticket = self.queue.enter(number, now, deadline, tenant=tenant, pool=pool)
        assert (ticket is None) is (full and own + 1 >= max(lengths, default=0))
        if ticket is None:
            return
        assert (ticket.displaced is not None) is full
        if ticket.displaced:
            line = self.line(ticket.displaced.pool, ticket.displaced.tenant)
            assert line[-1] is ticket.displaced
            assert len(line) == max(lengths)
            self.waiting.remove(ticket.displaced)
        if not own:
            self.passed_over[pool, tenant] = []
        self.waiting.append(ticket)

    def next(self, now: float, pool: str) -> None:
        """Serve one, and check that it heads its line and that no tenant passes another twice."""
        self.expire(now)
        ticket = self.queue.next(now, pool)
        assert (ticket is not None) is any(each.pool == pool for each in self.waiting)
        if ticket is None:
            return
        assert self.line(pool, ticket.tenant)[0] is ticket
        self.waiting.remove(ticket)
        for tenant in {each.tenant for each in self.waiting if each.pool == pool}:
            others = self.passed_over[pool, tenant]
            if tenant == ticket.tenant:
                others.clear()
            else:
                others.append(ticket.tenant)
                assert len(others) == len(set(others))

    def in_vain(self, number: int, now: float, pool: str) -> None:
        """Serve one that comes back at once: its tenant is next again."""
        self.expire(now)
        served = self.queue.next(now, pool)
        if served is None:
            return
        tenant, deadline = served.tenant, served.deadline
        self.waiting.remove(served)
        back = self.queue.come_back(number, served.entered, deadline, tenant=tenant, pool=pool)
        later = (each for each in self.line(pool, tenant) if each.entered > served.entered)
        after = next(later, None)
        place = len(self.waiting) if after is None else self.waiting.index(after)
        self.waiting.insert(place, back)
        tenants = list(self.queue._pools[pool])
        for other in tenants[: tenants.index(tenant)]:
            head = self.line(pool, other)[0]
            assert head.back
            assert head.entered <= back.entered

    def collect(self, now: float) -> None:
        """Check that all late tickets are returned, each once."""
        self.expire(now)
        assert {each.waiter for each in self.queue.expired(now)} == {w.waiter for w in self.late}
        self.late.clear()

    def check(self, now: float) -> None:
        """Check everything that can be seen from outside."""
        self.expire(now)
        self.queue._expire(now)
        assert len(self.waiting) + len(self.late) <= self.queue.limit
        assert len(self.queue) == len(self.waiting)
        waits = [now - each.entered for each in self.waiting]
        assert self.queue.oldest_wait(now) == max(waits, default=0)
        deadlines = [each.deadline for each in self.waiting]
        assert self.queue.deadline == min(deadlines, default=None)
        assert len(self.queue._deadlines) <= 2 * len(self.queue) + 64


@given(
    st.integers(0, 6),
    st.lists(
        st.tuples(
            st.sampled_from(
                ["enter", "enter", "enter", "next", "next", "in_vain", "leave", "collect"]
            ),
            st.sampled_from("xy"),
            st.sampled_from("abc"),
            st.floats(0, 20),
            st.integers(0, 9),
        ),
        max_size=80,
    ),
)
def test_whatever_happens(limit: int, actions: list[tuple[str, str, str, float, int]]) -> None:
    """The queue is bounded, fair and in order, serves nobody late, and is empty in the end."""
    queue = Queue[int](limit)
    model, now = Model(queue), 0.0
    for number, (what, pool, tenant, seconds, which) in enumerate(actions):
        now += seconds / 5
        if what == "enter":
            model.enter(number, now, now + seconds, pool, tenant)
        elif what == "next":
            model.next(now, pool)
        elif what == "in_vain":
            model.in_vain(number, now, pool)
        elif what == "collect":
            model.collect(now)
        elif which < len(model.waiting) and model.waiting[which].waiting:
            queue.leave(model.waiting.pop(which))
        model.check(now)
    model.collect(now)
    for pool in "xy":
        while any(each.pool == pool for each in model.waiting):
            model.next(now, pool)
    assert (len(queue), queue._pools, queue.expired(now + 100)) == (0, {}, [])
