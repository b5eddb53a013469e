"""How much waiting counts, by how much waits."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.aging import SMOOTHED_S, USUAL, Crowd, aging
from strategies.load import AGING, Load
from tests.strategies.desk import Desk, Stand


@pytest.mark.parametrize(
    ("held", "workers", "share"), [(0, 2, 1.0), (2, 2, 1.0), (8, 2, 0.25), (1000, 500, 0.5)]
)
def test_it_counts_less_the_more_is_held_for_each_worker(
    held: int, workers: int, share: float
) -> None:
    """Up to one request for each worker, it counts in full."""
    loads = [Load() for _ in range(workers)]
    assert aging(held, loads) == pytest.approx(AGING * share * USUAL)


def test_others_hold_as_much_as_they_send() -> None:
    """What other processes hold is not known here, but what they have in flight is."""
    loads = [Load(), Load()]
    loads[0].book(0.0, 1.0)
    loads[1].book(0.0, 1.0, elsewhere=True)
    assert aging(1, loads) == pytest.approx(AGING)
    assert aging(4, loads) == pytest.approx(AGING / 4)
    loads[1].book(0.0, 1.0, elsewhere=True)
    loads[0].book(0.0, 1.0, elsewhere=True)
    assert aging(4, loads) == pytest.approx(AGING / 8)


def test_a_small_share_is_not_taken_for_a_crowd() -> None:
    """Hardly anything is held, however much more others have in flight."""
    loads = [Load(), Load()]
    for number in range(10):
        loads[0].book(0.0, 1.0, elsewhere=number > 0)
    assert aging(0.1, loads) == pytest.approx(AGING)
    assert aging(0.4, loads) == pytest.approx(AGING / 2)


def test_one_that_sends_nothing_goes_by_what_it_holds() -> None:
    """So its share of what is in flight is not known."""
    load = Load()
    load.book(0.0, 1.0, elsewhere=True)
    assert aging(2, [load]) == pytest.approx(AGING / 2)


@pytest.mark.parametrize(("others", "first"), [(0, "long"), (6, "short")])
def test_the_shortest_goes_first_although_much_waits(others: int, first: str) -> None:
    """By waiting alone they would go in order of arrival, as each has waited for the others."""
    desk = Desk(*(Stand(name, 10.0) for name in ("a", "b")))
    desk.come("long", 4)
    for number in range(others):
        desk.come(str(number), 6)
    desk.now = 9.5
    desk.come("short", 2)
    assert [worker.load.aging for worker in desk.workers] == [AGING, AGING]
    desk.now = 10.0
    loads = [worker.load for worker in desk.workers]
    released = desk.binding.release(desk.rank, desk.now, loads)
    assert released is not None
    assert released[0].item == first


def test_it_is_told_to_all_workers() -> None:
    """What they are promised goes by it, until nobody waits."""
    busy, idle = Stand("a", 50.0), Stand("b", 50.0)
    desk = Desk(busy, idle)
    for number in range(6):
        desk.come(str(number), 6, model="a")
    assert busy.load.aging == AGING
    assert {need for need, _ in busy.load.promises} == {6.0}
    desk.now = 20.0
    assert desk.released() == []
    held = 6 * (1.0 - exp(-20.0 / SMOOTHED_S))
    fewer = pytest.approx(AGING * 2 / held)
    assert [busy.load.aging, idle.load.aging] == [fewer] * 2
    desk.come("last", 6, model="a")
    needs = [need for need, _ in busy.load.promises]
    assert needs == pytest.approx([6.0] * 6 + [6.0 + busy.load.aging * 20.0])
    first, *others = desk.binding
    desk.binding.leave(first, 20.0)
    assert [busy.load.aging, idle.load.aging] == [fewer] * 2
    for one in others:
        desk.binding.leave(one, 20.0)
    assert [busy.load.aging, idle.load.aging] == [AGING] * 2
    desk.come("later", 6, model="a")
    assert busy.load.aging == AGING


def test_a_burst_does_not_count_at_once() -> None:
    """It is over in a moment. Nor does what was held before a quiet while."""
    crowd = Crowd()
    crowd.note(0, 1000.0)
    crowd.note(100, 1001.0)
    assert crowd.held == pytest.approx(100 * (1.0 - exp(-1.0 / SMOOTHED_S)))
    crowd.note(100, 1100.0)
    assert crowd.held == pytest.approx(100.0, rel=0.01)
    crowd.note(0, 1090.0)
    assert crowd.held == pytest.approx(100.0, rel=0.01)
    crowd.note(0, 1101.0)
    assert crowd.held == pytest.approx(100.0 * exp(-1.0 / SMOOTHED_S), rel=0.01)
    crowd.note(0, 1200.0)
    assert crowd.held < 0.1


def test_what_came_or_left_just_now_was_not_held_before() -> None:
    """Each counts from when it came to when it left, whenever the held requests are looked at."""
    desk = Desk(Stand("a", 1000.0))
    desk.come("first", 6)
    desk.now = 10.0
    for number in range(30):
        desk.come(str(number), 6)
    desk.released()
    one = 1.0 - exp(-10.0 / SMOOTHED_S)
    assert desk.binding._crowd.held == pytest.approx(one)
    desk.now = 20.0
    for held in list(desk.binding)[1:]:
        desk.binding.leave(held, desk.now)
    desk.released()
    expected = one * exp(-10.0 / SMOOTHED_S) + 31 * (1.0 - exp(-10.0 / SMOOTHED_S))
    assert desk.binding._crowd.held == pytest.approx(expected)


def test_a_quiet_while_counts() -> None:
    """As long as nobody is held, nobody asks how much waiting counts."""
    desk = Desk(Stand("a", 1000.0))
    desk.come("first", 6)
    desk.now = 25.0
    desk.released()
    before = desk.binding._crowd.held
    desk.binding.leave(next(iter(desk.binding)), desk.now)
    desk.now = 75.0
    desk.come("second", 6)
    assert desk.binding._crowd.held == pytest.approx(before * exp(-50.0 / SMOOTHED_S))


@given(
    st.lists(
        st.tuples(st.sampled_from(("come", "come", "leave", "release", "down")), st.integers(0, 9)),
        min_size=10,
    )
)
def test_nothing_is_told_where_nobody_waits(steps: list[tuple[str, int]]) -> None:
    """Whatever comes, leaves and goes down: what is told ends with what is promised."""
    desk = Desk(Stand("a", 9.0), Stand("b", 9.0), Stand("idle"))
    number = 0
    for what, which in steps:
        desk.now += 0.1
        if what == "come":
            number += 1
            desk.come(str(number), 1 + which, model="ab"[which % 2])
        elif what == "leave" and len(desk.binding):
            held = list(desk.binding)
            desk.binding.leave(held[which % len(held)], desk.now)
        elif what in {"release", "down"}:
            left = [one.load for one in desk.workers if what == "release" or one.name != "a"]
            released = desk.binding.release(desk.rank, desk.now + 9.0 * (which > 7), left)
            if released is not None:
                desk.binding.leave(released[0], desk.now)
        loads = [worker.load for worker in desk.workers]
        assert {load.aging for load in loads if load.promises} <= {desk.binding._aging}
        told = {load.aging for load in loads if load.aging < AGING}
        assert told <= ({desk.binding._aging} if len(desk.binding) else set())
        assert sum(len(load.promises) for load in loads) <= len(desk.binding)
