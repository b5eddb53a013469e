"""How many retries may be under way at once."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.retries import Budget


@pytest.mark.parametrize(
    ("share", "in_flight", "allowed"),
    [
        (0.2, 0, 3),
        (0.2, 1, 3),
        (0.2, 19, 3),
        (0.2, 20, 4),
        (0.2, 24, 4),
        (0.2, 1000, 200),
        (1.0, 10, 10),
        (0.0, 1000, 0),
    ],
)
def test_how_many(share: float, in_flight: int, allowed: int) -> None:
    """A share of the requests in flight, and at least three; none at all with a share of 0."""
    budget = Budget(share)
    taken = [budget.take(in_flight) for _ in range(allowed + 5)]
    assert taken == [True] * allowed + [False] * 5
    assert budget.used == allowed


def test_the_least_can_be_set() -> None:
    """The minimum of three can be lowered for quiet fleets."""
    budget = Budget(0.2, least=1)
    assert [budget.take(0), budget.take(0)] == [True, False]


def test_what_is_given_back_can_be_taken_again() -> None:
    """A retry that was given back can be taken again."""
    budget = Budget(0.2)
    for _ in range(3):
        budget.take(0)
    assert not budget.take(0)
    budget.give_back()
    assert budget.take(0)
    assert not budget.take(0)


def test_nothing_is_given_back_that_was_not_taken() -> None:
    """Else a fault elsewhere would make the budget grow unnoticed."""
    budget = Budget(0.2)
    with pytest.raises(ValueError, match="more retries"):
        budget.give_back()
    assert budget.used == 0


@given(
    st.floats(0, 1),
    st.integers(0, 5),
    st.lists(st.tuples(st.booleans(), st.integers(0, 200)), max_size=100),
)
def test_never_more_than_the_budget(
    share: float, least: int, actions: list[tuple[bool, int]]
) -> None:
    """The budget holds at every step, and a denied retry takes nothing from it."""
    budget, under_way = Budget(share, least), 0
    for retry, in_flight in actions:
        if retry and budget.take(in_flight):
            under_way += 1
            assert under_way <= max(least, share * in_flight)
        elif retry:
            assert under_way >= least or share == 0
            assert under_way + 1 > share * in_flight
        elif under_way:
            budget.give_back()
            under_way -= 1
        assert budget.used == under_way


def test_who_waits_is_next() -> None:
    """Waiters are served in order of arrival; one whose time is over is denied."""

    async def scene() -> None:
        budget = Budget(0.2, least=1)
        assert await budget.turn(0, 0.0)
        waiting = [asyncio.ensure_future(budget.turn(0, 20.0)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not await budget.turn(0, 0.01)
        assert budget.denied == 1
        budget.give_back()
        assert await waiting[0]
        assert not waiting[1].done()
        budget.give_back()
        assert await waiting[1]
        assert budget.used == 1
        budget.give_back()
        assert budget.used == 0

    asyncio.run(scene())


@pytest.mark.parametrize("when", ["waiting", "in its turn"])
def test_who_leaves_gives_it_back(when: str) -> None:
    """A cancelled waiter takes nothing, whether or not its turn had come."""

    async def scene() -> None:
        budget = Budget(0.2, least=1)
        assert await budget.turn(0, 0.0)
        leaving, staying = (asyncio.ensure_future(budget.turn(0, 20.0)) for _ in range(2))
        await asyncio.sleep(0)
        if when == "in its turn":
            budget.give_back()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        if when == "waiting":
            budget.give_back()
        assert await staying
        budget.give_back()
        assert budget.used == 0

    asyncio.run(scene())


def test_a_share_of_nothing_is_not_waited_for() -> None:
    """With a share of 0 there is never a turn to wait for."""
    budget = Budget(0.0)
    assert not asyncio.run(budget.turn(1000, 20.0))
    assert budget.denied == 1
