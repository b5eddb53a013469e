"""The queue: who is served next, and who is refused, displaced or late."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.queue import Queue, Ticket


def enter(queue: Queue[str], names: str, pool: str = "") -> list[Ticket[str] | None]:
    """Enter one ticket for each name, whose first letter is the tenant."""
    return [queue.enter(name, 0, 100, tenant=name[0], pool=pool) for name in names.split()]


def serve(queue: Queue[str], pool: str = "", now: float = 1) -> str:
    """Serve all that are left; return their names in order."""
    served = []
    while ticket := queue.next(now, pool):
        served.append(ticket.waiter)
    return " ".join(served)


def test_tenants_take_turns() -> None:
    """First come, first served within a tenant; tenants take turns."""
    queue = Queue[str](100)
    enter(queue, "a1 a2 a3 a4 b1 b2 c1")
    assert len(queue) == 7
    assert serve(queue) == "a1 b1 c1 a2 b2 a3 a4"
    assert len(queue) == 0


def test_a_newcomer_waits_one_turn() -> None:
    """A new tenant joins at the end of the turn, and so does one that comes back."""
    queue = Queue[str](100)
    enter(queue, "a1 a2 a3 b1")
    assert queue.next(1) is not None
    enter(queue, "c1")
    assert [ticket.waiter for ticket in (queue.next(1), queue.next(1)) if ticket] == ["b1", "a2"]
    enter(queue, "b2")
    assert serve(queue) == "c1 a3 b2"


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_who_was_served_in_vain_comes_back_to_its_place(order: tuple[int, ...]) -> None:
    """In whatever order they come back, even into a full queue, they are served as they came."""
    queue = Queue[str](6)
    for moment, name in enumerate(("a1", "b1", "c1", "a2", "b2", "a3")):
        assert queue.enter(name, moment, 100 - moment, tenant=name[0]) is not None
    out = [ticket for _ in order if (ticket := queue.next(6))]
    assert [ticket.waiter for ticket in out] == ["a1", "b1", "c1", "a2"]
    for moment, name in enumerate(("d1", "e1", "f1", "g1"), 6):
        assert queue.enter(name, moment, 100, tenant=name[0]) is not None
    for each in (out[place] for place in order):
        queue.come_back(each.waiter, each.entered, each.deadline, tenant=each.tenant)
    assert len(queue) == 10
    assert queue.enter("a4", 10, 100, tenant="a") is None
    assert serve(queue, now=10) == "a1 b1 c1 d1 e1 f1 g1 a2 b2 a3"


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 3), st.randoms())
def test_a_line_is_in_order_again(first: int, served: int, later: int, chance: Random) -> None:
    """Whoever of a line comes back, and in whatever order: it is served in order of arrival."""
    queue = Queue[int](100)
    for moment in range(first):
        queue.enter(moment, moment, 100)
    out = [ticket for _ in range(served) if (ticket := queue.next(50))]
    for moment in range(later):
        queue.enter(first + moment, first + moment, 100)
    chance.shuffle(out)
    for ticket in out:
        queue.come_back(ticket.waiter, ticket.entered, ticket.deadline)
    names = [ticket.waiter for _ in range(first + later) if (ticket := queue.next(60))]
    assert names == list(range(first + later))


def test_pools_do_not_wait_for_each_other() -> None:
    """A ticket is served only by its own pool."""
    queue = Queue[str](100)
    enter(queue, "a1 a2 b1", "x")
    enter(queue, "a3", "y")
    assert queue.next(1, "z") is None
    assert serve(queue, "y") == "a3"
    assert serve(queue, "x") == "a1 b1 a2"


def test_a_full_queue_refuses() -> None:
    """A full queue refuses a newcomer whose line would be as long as the longest one."""
    queue = Queue[str](3)
    enter(queue, "a1 b1 c1")
    assert enter(queue, "a2 b2 c2 d1") == [None] * 4
    assert (len(queue), queue.refused) == (3, 4)


def test_a_queue_without_places() -> None:
    """With a limit of 0 nobody waits."""
    queue = Queue[str](0)
    assert enter(queue, "a1") == [None]
    assert (len(queue), queue.next(1), queue.refused) == (0, None, 1)


def test_the_longest_line_makes_room() -> None:
    """The newest of the longest line is displaced by a tenant with a shorter one."""
    queue = Queue[str](4)
    enter(queue, "a1 a2 a3 a4")
    first, second, third = enter(queue, "b1 b2 b3")
    assert first is not None
    assert second is not None
    assert [each.displaced and each.displaced.waiter for each in (first, second)] == ["a4", "a3"]
    assert third is None
    assert queue.refused == 3
    assert serve(queue) == "a1 b1 a2 b2"


def test_a_stuck_pool_does_not_shut_out_the_others() -> None:
    """The lines of one tenant are counted by pool."""
    queue = Queue[str](4)
    enter(queue, "a1 a2 a3 a4", "stuck")
    (other,) = enter(queue, "a5", "free")
    assert other is not None
    assert serve(queue, "free") == "a5"


def test_who_has_come_back_is_not_displaced() -> None:
    """It had its turn before, and is not refused for lack of room; the newcomer is."""
    queue = Queue[str](2)
    for entered, name in enumerate(("a1", "a2")):
        queue.come_back(name, entered, 100, tenant="a")
    assert not queue.takes(tenant="b")
    assert enter(queue, "b1") == [None]
    assert serve(queue) == "a1 a2"


def test_who_was_displaced_has_left() -> None:
    """A displaced ticket is not served, and neither leaves again nor expires."""
    queue = Queue[str](2)
    tickets = enter(queue, "a1 a2 b1")
    gone = tickets[1]
    assert gone is not None
    queue.leave(gone)
    assert len(queue) == 2
    assert [ticket.waiter for ticket in queue.expired(100)] == ["a1", "b1"]


def test_the_displaced_are_not_kept() -> None:
    """Else each would keep the one it displaced in memory, in a growing chain."""
    queue = Queue[str](2)
    first = enter(queue, "a1 a2 b1")[2]
    assert first is not None
    assert first.displaced is not None
    assert queue.next(1) is not None
    assert queue.next(1) is first
    assert first.displaced is None


def test_who_leaves_is_not_served() -> None:
    """A ticket may leave once, twice, or after it was served."""
    queue = Queue[str](10)
    first, second, third = enter(queue, "a1 a2 b1")
    assert first is not None
    assert second is not None
    queue.leave(first)
    queue.leave(first)
    assert queue.next(1) is second
    queue.leave(second)
    assert queue.next(1) is third
    assert len(queue) == 0


def test_deadlines() -> None:
    """A ticket past its deadline is not served, but returned once by `expired`."""
    queue = Queue[str](10)
    queue.enter("soon", 0, 5)
    queue.enter("later", 0, 6)
    queue.enter("gone", 0, 4)
    assert queue.deadline == 4
    assert queue.expired(3.9) == []
    late = queue.expired(5)
    assert [ticket.waiter for ticket in late] == ["gone", "soon"]
    assert queue.expired(5) == []
    assert (queue.deadline, len(queue)) == (6, 1)
    assert queue.next(6) is None
    assert [ticket.waiter for ticket in queue.expired(6)] == ["later"]
    assert queue.deadline is None


def test_the_late_do_not_cost_a_tenant_its_turn() -> None:
    """The tenant's next ticket is served in place of a late one."""
    queue = Queue[str](10)
    queue.enter("a1", 0, 5, tenant="a")
    enter(queue, "b1 a2")
    assert serve(queue, now=6) == "a2 b1"


def test_the_late_take_up_room_until_they_are_told() -> None:
    """Their clients are still connected, waiting for an answer."""
    queue = Queue[str](1)
    queue.enter("late", 0, 5)
    assert queue.enter("next", 6, 10) is None
    assert len(queue.expired(6)) == 1
    assert queue.enter("next", 6, 10) is not None


def test_the_late_are_not_displaced() -> None:
    """They get their own answer, and do not count in the length of their line."""
    queue = Queue[str](2)
    queue.enter("a1", 0, 100)
    queue.enter("a2", 0, 5)
    assert queue.enter("b1", 6, 100, tenant="b") is None
    assert [ticket.waiter for ticket in queue.expired(6)] == ["a2"]


def test_the_oldest_wait() -> None:
    """It covers every line of every pool."""
    queue = Queue[str](10)
    assert queue.oldest_wait(7) == 0
    first = queue.enter("a", 1, 100, tenant="a", pool="x")
    queue.enter("b", 2, 100, tenant="b", pool="x")
    queue.enter("c", 3, 100, tenant="a", pool="y")
    assert queue.oldest_wait(7) == 6
    assert queue.next(7, "x") is first
    assert queue.oldest_wait(7) == 5


def test_those_who_left_are_forgotten() -> None:
    """Tickets that left do not pile up before the first deadline."""
    queue = Queue[str](10)
    queue.enter("stays", 0, 50)
    for _ in range(5000):
        (ticket,) = enter(queue, "a1")
        assert ticket is not None
        queue.leave(ticket)
    assert len(queue._deadlines) < 100
    assert len(queue._pools) == 1
    assert queue.deadline == 50


@given(st.lists(st.floats(1, 100), min_size=100, max_size=150), st.randoms())
def test_deadlines_come_in_order_after_many_have_left(
    deadlines: list[float], random: Random
) -> None:
    """Deadlines stay in order whatever happens to the heap when tickets leave."""
    queue = Queue[float](200)
    tickets = [queue.enter(deadline, 0, deadline) for deadline in deadlines]
    random.shuffle(tickets)
    for ticket in tickets[20:]:
        assert ticket is not None
        queue.leave(ticket)
    came = []
    while (deadline := queue.deadline) is not None:
        came += [ticket.waiter for ticket in queue.expired(deadline)]
    assert came == sorted(ticket.waiter for ticket in tickets[:20] if ticket)


def test_who_left_has_no_deadline() -> None:
    """The next ticket's deadline counts."""
    queue = Queue[str](10)
    first = queue.enter("first", 0, 5)
    queue.enter("second", 0, 6)
    assert first is not None
    queue.leave(first)
    assert queue.deadline == 6


@given(st.integers(1, 50), st.integers(0, 20))
def test_a_flood_costs_the_others_one_turn(flood: int, quiet: int) -> None:
    """A tenant with one request is served second at the latest, however many another has."""
    queue = Queue[str](20)
    enter(queue, " ".join(f"a{number}" for number in range(flood)))
    for _ in range(quiet):
        assert queue.enter("b1", 0, 100, tenant="b") is not None
        served = [ticket.waiter for ticket in (queue.next(1), queue.next(1)) if ticket]
        assert "b1" in served
        enter(queue, "a a")


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_the_bound_is_exact(limit: int) -> None:
    """As many as allowed wait, and not one more."""
    queue = Queue[str](limit)
    got = enter(queue, " ".join(f"a{number}" for number in range(limit + 3)))
    assert [ticket is not None for ticket in got] == [True] * limit + [False] * 3
