"""Which requests wait for a worker that is about to be free, and which of them goes next."""

from math import nan

import pytest

from strategies.api import Candidate, Cost, Decision, Prompt
from strategies.hold.queue import Entry, Queue, line_of, to_displace
from tests.strategies.hold.desk import ANY, MANY, Desk, Stand

#: As many of a kind as one look at the queue never reaches.
CROWD = 200


def leaves(desk: Desk) -> list[str]:
    """Return the order in which all leave if a worker becomes free for one after the other."""
    order = []
    desk.free()
    while len(desk.queue):
        name = desk.release()
        assert name is not None
        order.append(name)
    return order


@pytest.mark.parametrize(
    ("cost", "uncached", "preempts", "waits"),
    [
        (Cost(), 0, 0, False),
        (Cost(wait=0.1), MANY, 0, False),
        (Cost(wait=60.0), MANY, 0, True),
        (Cost(wait=60.0), 500, 0, False),
        (Cost(wait=0.7), MANY, 1, False),
        (Cost(wait=0.7), MANY, 0, True),
        (Cost(wait=60.0), MANY, 1, True),
        (Cost(room=0.1), 0, 0, True),
    ],
    ids=[
        *("idle", "about to be free", "busy", "one step computes all", "step to be ended"),
        *("nothing to be ended", "more than a step", "no room"),
    ],
)
def test_a_worker_that_is_about_to_be_free_is_waited_for(
    cost: Cost, uncached: int, preempts: int, *, waits: bool
) -> None:
    """Or one with room in its KV cache. What one step computes is no queue; nor is the step that
    has to end before a longer prompt gives way."""
    worker = Stand("a")
    worker.load.book(0.0, cost.wait, uncached=uncached)
    choice = Candidate(worker, cost, preempts=preempts)
    assert Queue.must_hold(Decision([choice], "load"), 0.0) is waits


def test_the_shortest_goes_first() -> None:
    """Each is released when the one before it is about to be done."""
    desk = Desk(Stand("a", 10.0))
    assert [desk.come(name, tokens) for name, tokens in (("long", 8), ("short", 2))] == [True] * 2
    assert desk.released() == []
    for name in ("short", "long"):
        desk.free()
        assert desk.released() == [name]
        assert desk.released() == []
    assert len(desk.queue) == 0


def test_waiting_makes_up_for_length() -> None:
    """Sooner or later: otherwise a stream of short requests would starve a long one."""
    firsts = []
    for waited in (0.0, 10.0, 30.0, 100.0, 400.0):
        desk = Desk(Stand("a", 1000.0))
        desk.now = waited
        desk.enter("short", 2)
        desk.enter("long", 5, since=0.0)
        firsts.append(leaves(desk)[0])
    assert firsts == sorted(firsts, reverse=True)
    assert (firsts[0], firsts[-1]) == ("short", "long")


def test_who_comes_back_keeps_its_age() -> None:
    """A request that was preempted goes before younger ones of its length."""
    desk = Desk(Stand("a", 1000.0))
    desk.now = 10.0
    desk.enter("young", 4, since=9.0)
    desk.enter("back", 4, since=1.0)
    desk.enter("new", 4)
    assert leaves(desk) == ["back", "young", "new"]


def test_who_had_its_turn_in_vain_goes_first() -> None:
    """In order of arrival, however long it is, and however few are looked at."""
    desk = Desk(Stand("a", 1000.0))
    desk.now = 5.0
    for number in range(CROWD):
        desk.enter(f"r{number}", 2)
    for name, since in (("second", 2.0), ("first", 1.0)):
        desk.enter(name, 9, since=since, first=True)
    assert leaves(desk)[:2] == ["first", "second"]


def test_tenants_take_turns() -> None:
    """However many requests one has, and however short they are; each of its own goes by length."""
    desk = Desk(Stand("a", 1000.0))
    for number in range(CROWD):
        desk.enter(f"one{number}", 1 + number % 7, tenant="one")
    for name, tokens in (("other long", 9), ("other short", 8)):
        desk.enter(name, tokens, tenant="other")
    order = leaves(desk)
    assert sorted(order.index(name) for name in ("other short", "other long"))[1] <= 3
    assert order.index("other short") < order.index("other long")
    assert [name.startswith("one") for name in order[:2]] != [True, True]


@pytest.mark.parametrize("tenants", [1, CROWD])
def test_who_waits_for_a_busy_worker_hides_nobody(tenants: int) -> None:
    """Nor does who waits for one that accepts no more: others are seen within a few looks."""
    desk = Desk(Stand("a", 1000.0), Stand("b", 10.0))
    for number in range(CROWD):
        tenant = f"t{number % tenants}"
        desk.enter(f"r{number}", 2, "a", tenant)
        desk.enter(f"bound {number}", 2, tenant=tenant, only="a")
    desk.enter("last", 8, "b", "last")
    desk.free(desk.workers[1])
    looks = [desk.release() for _ in range(10)]
    assert "last" in looks


def test_nobody_waits_for_ever() -> None:
    """Well within half a minute, a request is sent to a worker that is still busy; the one that
    came first goes first, and one that only just came back waits anew."""
    desk = Desk(Stand("a", 1000.0))
    desk.enter("back", 1, since=-100.0)
    for number in range(CROWD):
        desk.now = 0.1 + number / 1000
        assert desk.come(f"r{number}", 2)
    desk.now = 0.05
    desk.enter("long", 90)
    gone: list[str] = []
    for second in range(1, 30):
        assert not gone or second > 20
        desk.now = float(second)
        gone += desk.released()
    assert gone[:3] == ["back", "long", "r0"]
    assert len(gone) == CROWD + 2


def test_nobody_is_let_go_without_a_worker_that_accepts_it() -> None:
    """However long a request has waited."""
    desk = Desk(Stand("a", 1.0))
    assert desk.come("r", 2)
    load = desk.workers[0].load
    desk.now = 3600.0
    assert desk.queue.release(lambda _: None, desk.now, [load]) is None
    assert desk.queue.release(desk.rank, desk.now, []) is None
    assert (len(desk.queue), load.promised_s) == (1, 2.0)
    assert desk.released() == ["r"]


def test_one_that_is_bound_waits_for_no_free_worker() -> None:
    """It goes as soon as the only worker that will do accepts it, however busy that is."""
    busy, other = Stand("a", 1000.0), Stand("b", 1000.0)
    desk = Desk(busy, other)
    desk.enter("bound", only="a", bound=True)
    desk.enter("ordinary")
    accepts: set[str] = set()

    def rank(entry: Entry[str]) -> Decision | None:
        return desk.rank(entry) if entry.only in accepts else None

    first = next(iter(desk.queue))
    assert desk.queue.release(rank, 0.0, [other.load]) is None
    accepts.add("a")
    released = desk.queue.release(rank, 0.0, [busy.load, other.load])
    assert released is not None
    assert released[0] is first
    assert desk.release() is None


def test_who_leaves_is_not_released() -> None:
    """A request whose client left is never released; leaving twice changes nothing."""
    desk = Desk(Stand("a", 10.0))
    entry = desk.enter("r", 5)
    for _ in range(2):
        desk.queue.leave(entry)
    assert desk.workers[0].load.promised_s == 0.0
    desk.now = 20.0
    assert desk.released() == []


def test_a_newcomer_displaces_the_newest_of_the_longest_line() -> None:
    """Of all queues, if its own stays shorter; never one that has had its turn.

    If the newest has had its turn, it is the newest of the others.
    """
    first, second = Desk(Stand("a", 1000.0)), Desk(Stand("b", 1000.0))
    for number, tokens in enumerate((9, 1, 5)):
        first.now = float(number)
        first.enter(f"r{number}", tokens, tenant="greedy")
    second.enter("other", tenant="other")
    queues = [first.queue, second.queue]
    displaced = [to_displace(queues, own) for own in (0, 1, 2, 3)]
    assert [one and one.item for one in displaced] == ["r2", "r2", None, None]
    line = line_of(next(iter(first.queue)).prompt, "greedy")
    assert (first.queue.length(line), second.queue.length(line)) == (3, 0)
    first.now = 3.0
    first.enter("back", tenant="greedy", first=True)
    older = to_displace(queues, 0)
    assert older is not None
    assert older.item == "r2"
    turned = Desk(Stand("c", 1000.0))
    for name in ("x", "y", "z"):
        turned.enter(name, first=True)
    assert to_displace([turned.queue], 0) is None
    assert to_displace([Queue[str]()], 0) is None


def test_a_worker_that_joins_is_seen() -> None:
    """A request goes to a worker that joined after the decision for it, within a second."""
    desk = Desk(Stand("a", 60.0))
    assert desk.come("r", 2)
    desk.workers = (*desk.workers, Stand("b"))
    desk.now = 1.0
    assert desk.released() == ["r"]


def test_a_look_decides_on_a_few() -> None:
    """It runs within one step of the router's event loop, so with hundreds of workers it decides on
    few requests; the following looks reach all of them."""
    desk = Desk(Stand("a", 1000.0), *(Stand(f"b{number}", 0.1) for number in range(CROWD)))
    for number in range(50):
        desk.enter(f"r{number}", 8, "a")
    desk.now, most, reached = 1.0, 0, 0
    while reached < 50:
        before = desk.decided
        assert desk.release() is None
        most = max(most, desk.decided - before)
        reached += desk.decided - before
        assert desk.decided > before
    assert most <= 10


def test_a_decision_without_a_time_is_an_error() -> None:
    """One that waits already keeps its place, and so do the others."""
    desk = Desk(Stand("a", 10.0))
    for name, tokens in (("long", 8), ("short", 3)):
        desk.enter(name, tokens)
    odd = Decision([Candidate(desk.workers[0], Cost(room=1.0, prefill=nan))], "odd")
    with pytest.raises(ValueError, match="nan s of prefill"):
        desk.queue.enter("odd", Prompt(ANY, 1), odd, 0.0)
    assert len(desk.queue) == 2
    desk.now = 20.0
    with pytest.raises(ValueError, match="nan s of prefill"):
        desk.queue.release(lambda _: odd, desk.now, [desk.workers[0].load])
    assert desk.released() == ["short"]
    desk.free()
    assert desk.released() == ["long"]
    assert len(desk.queue) == 0
