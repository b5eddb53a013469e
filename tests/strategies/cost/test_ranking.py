"""Candidates come in order of cost, in whatever order they are accessed."""

from hypothesis import given
from hypothesis import strategies as st

from strategies.api import NO_LOADING
from strategies.cost.cost import Ranking, Row
from tests.strategies.workers import untold


def _row(place: int, cost: float) -> Row:
    worker = untold(f"w{place}")
    return cost, 0.0, 0, place, worker, cost, 0.0, 0.0, 0.0, 0.0, 0, NO_LOADING, 0


@given(
    costs=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    looks=st.lists(st.integers(-8, 7), max_size=4),
)
def test_the_order_is_that_of_the_costs(costs: list[int], looks: list[int]) -> None:
    ranking = Ranking([_row(place, float(cost)) for place, cost in enumerate(costs)])
    places = sorted(range(len(costs)), key=lambda place: (costs[place], place))
    names = [f"w{place}" for place in places]
    for look in looks:
        if -len(names) <= look < len(names):
            assert ranking[look].worker.name == names[look]
    assert ranking[0].worker.name == names[0]
    for worker in names:
        led = ranking.led_by(worker)
        rest = [name for name in names if name != worker]
        assert [one.worker.name for one in led] == [worker, *rest]
        assert [one.worker.name for one in led[1:]] == rest
    assert [one.worker.name for one in ranking] == names
