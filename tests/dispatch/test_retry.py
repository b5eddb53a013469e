"""How many retries may be under way at once, and whether a request is decided again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.dispatch.retry import Attempts, RetryBudget
from router.upstream.errors import Refused
from tests.fleet.fleets import fleet


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
    budget = RetryBudget(share)
    taken = [budget.take(in_flight) for _ in range(allowed + 5)]
    assert taken == [True] * allowed + [False] * 5
    assert budget.used == allowed


def test_nothing_is_given_back_that_was_not_taken() -> None:
    """Else a fault elsewhere would make the budget grow unnoticed."""
    budget = RetryBudget(0.2)
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
    budget, under_way = RetryBudget(share, least), 0
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


@pytest.mark.parametrize("lacks", [True, False])
def test_one_that_the_router_cannot_send_is_not_decided_again_and_again(lacks: bool) -> None:
    """If the router itself lacks descriptors or ports, it would at once lack them again."""
    worker = fleet(workers=1).pools[0].workers[0]
    attempts = Attempts(2, others=True)
    assert attempts.reached_none
    attempts.failed(Refused("could not be reached", ours=lacks), worker)
    assert attempts.reached_none is not lacks
    assert attempts.take_error().status == 503
