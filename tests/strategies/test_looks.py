"""A look at the held requests finds those that can go, whoever else is held."""

import pytest

from strategies.base import Decision, Prompt
from strategies.held import LONGEST_S, LOOK_S
from strategies.latebinding import COMPARED, DECIDED_ANEW, LOOKED_AT
from tests.strategies.desk import MANY, Desk, Stand


def test_an_idle_worker_is_seen_whoever_waits_for_another() -> None:
    """Of two models in a pool, one has its worker free; a later request for the other model must
    not hide that."""
    desk = Desk(Stand("a", 1.0), Stand("b", 60.0))
    assert desk.come("first", 2, model="a")
    assert desk.come("last", 2, model="b")
    desk.now = 1.0
    assert desk.released() == ["first"]


def test_a_worker_that_joins_is_seen() -> None:
    """A held request goes to a worker that joined after the decision for it."""
    desk = Desk(Stand("a", 60.0))
    assert desk.come("r", 2)
    desk.workers = (*desk.workers, Stand("b"))
    desk.now = LOOK_S
    assert desk.released() == ["r"]


def test_the_shortest_is_seen_behind_many_that_came_before_it() -> None:
    """Of one tenant and model, those with least need are looked at, not those that came first."""
    desk = Desk(Stand("a", 10.0))
    for number in range(2 * LOOKED_AT):
        assert desk.come(f"r{number}", 8)
    assert desk.come("short", 2)
    desk.now = 10.0
    assert desk.released() == ["short"]


def test_one_held_too_long_is_seen_behind_many_shorter_ones() -> None:
    """It is sent, whoever needs less."""
    desk = Desk(Stand("a", 1000.0))
    assert desk.come("long", 8)
    desk.now = LONGEST_S - 1.0
    for number in range(2 * LOOKED_AT):
        assert desk.come(f"r{number}", 2)
    assert desk.released() == []
    desk.now = LONGEST_S
    assert desk.released() == ["long"]


@pytest.mark.parametrize("uncached", [MANY, 10 * MANY])
def test_one_held_too_long_is_sent_at_once(uncached: int) -> None:
    """Whether or not a worker is ready, and although it was looked at a moment ago."""
    desk = Desk(Stand("a", 1000.0))
    assert desk.come("long", 8)
    desk.now = LONGEST_S - LOOK_S / 2
    assert desk.released() == []
    desk.now, desk.workers[0].load.uncached = LONGEST_S, uncached
    assert desk.released() == ["long"]


def test_what_was_looked_at_stays_promised_when_another_leaves() -> None:
    """As do those that came since; not those that were not looked at."""
    desk = Desk(Stand("a", 1000.0))
    load = desk.workers[0].load
    for number in range(2 * LOOKED_AT):
        assert desk.come(f"r{number}", 8 if number < LOOKED_AT else 4)
    desk.now = 1.0
    assert desk.released() == []
    assert load.promised_s == 4.0 * LOOKED_AT
    assert desk.come("new", 8)
    first, *_, last = desk.binding
    desk.binding.leave(first, desk.now)
    assert load.promised_s == 4.0 * LOOKED_AT + 8.0
    desk.binding.leave(last, desk.now)
    assert load.promised_s == 4.0 * LOOKED_AT


def test_tenants_take_turns_at_being_looked_at() -> None:
    """A tenant with hundreds of held requests does not hide another tenant's first."""
    desk = Desk(Stand("a", 10.0))
    for number in range(2 * LOOKED_AT):
        assert desk.come(f"one{number}", 8, tenant="one")
    assert desk.come("other", 2, tenant="other")
    desk.now = 10.0
    assert desk.released()[0] == "other"


def test_who_waits_for_one_model_hides_nobody_who_waits_for_another() -> None:
    """However many requests a tenant has held for a worker that stays busy, its requests for other
    models are seen."""
    desk = Desk(Stand("a", 1000.0), Stand("b", 10.0))
    for number in range(2 * LOOKED_AT):
        assert desk.come(f"r{number}", 8, model="a")
    assert desk.come("last", 2, model="b")
    desk.now = 10.0
    assert desk.released() == ["last"]


def test_so_many_tenants_that_not_each_can_be_looked_at_at_once() -> None:
    """Tenants that are left out of one look come first in the next."""
    desk = Desk(Stand("a", 1000.0), Stand("b", 10.0))
    for number in range(LOOKED_AT):
        assert desk.come(f"r{number}", 8, model="a", tenant=f"t{number}")
    assert desk.come("last", 2, model="b", tenant="last")
    desk.now = 10.0
    assert desk.released() == []
    assert desk.released() == ["last"]


def test_tenants_whose_clients_leave_have_their_turns() -> None:
    """Whoever leaves between two looks: only a release puts the tenant behind the others."""
    desk = Desk(Stand("a", 1000.0), Stand("b", 10.0))
    for number in range(2 * LOOKED_AT):
        assert desk.come(f"r{number}", 8, model="a", tenant=f"t{number}")
    assert desk.come("stays", 2, model="b", tenant="theirs")
    also = Prompt("b", 3)
    decision = desk.rank(also)
    desk.now = 10.0
    for _ in range(2):
        leaving = desk.binding.enter("leaves", also, decision, desk.now, "theirs")
        desk.binding.leave(leaving, desk.now)
        assert desk.released() == []
    assert desk.released() == ["stays"]


def test_a_tenant_that_had_one_released_comes_after_the_others() -> None:
    """However many it has: they take turns."""
    desk = Desk(Stand("a", 10.0))
    for number in range(LOOKED_AT):
        assert desk.come(f"one{number}", 8, tenant="one")
    assert desk.come("other", 9, tenant="other")
    desk.now = 10.0
    loads = [worker.load for worker in desk.workers]
    released = desk.binding.release(desk.rank, desk.now, loads)
    assert released is not None
    assert released[0].line[0] == "one"
    assert next(iter(desk.binding)).item == "other"


def test_a_look_decides_on_a_few() -> None:
    """A look runs within one step of the router's event loop, so it decides on few requests; the
    following looks reach all of them."""
    desk = Desk(Stand("a", 1000.0), *(Stand(f"b{number}", 0.1) for number in range(COMPARED // 4)))
    for number in range(LOOKED_AT):
        assert desk.come(f"r{number}", 8, model="a")
    most = 0
    looked: set[int] = set()
    loads = [worker.load for worker in desk.workers]

    def rank(prompt: Prompt) -> Decision:
        looked.add(id(prompt))
        return desk.rank(prompt)

    desk.now = LOOK_S
    for _ in range(LOOKED_AT):
        before = desk.decided
        assert desk.binding.release(rank, desk.now, loads) is None
        most = max(most, desk.decided - before)
    assert most == 2 * DECIDED_ANEW
    assert len(looked) == LOOKED_AT
