"""How much waiting counts, by how much waits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.aging import USUAL, aging
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


def test_it_is_told_to_the_workers_that_are_waited_for() -> None:
    """What they are promised goes by it; where nothing is promised, waiting counts in full."""
    busy, idle = Stand("a", 50.0), Stand("b", 50.0)
    desk = Desk(busy, idle)
    desk.now = 20.0
    for number in range(6):
        desk.come(str(number), 6, model="a")
    assert busy.load.aging == AGING
    assert {need for need, _ in busy.load.promises} == {6.0 + AGING * 20.0}
    assert desk.released() == []
    fewer = AGING * 2 / 6
    assert busy.load.aging == pytest.approx(fewer)
    assert idle.load.aging == AGING
    needs = [need for need, _ in busy.load.promises]
    assert needs == pytest.approx([6.0 + fewer * 20.0] * 6)
    for held in list(desk.binding):
        desk.binding.leave(held, 20.0)
    assert busy.load.aging == AGING


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
        assert {load.aging for load in loads if not load.promises} <= {AGING}
        assert len({load.aging for load in loads if load.promises}) <= 1
        assert sum(len(load.promises) for load in loads) <= len(desk.binding)
