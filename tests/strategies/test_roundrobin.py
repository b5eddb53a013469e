"""`roundrobin` is even, whoever joins and leaves."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.strategies.placing import Run, Stand, fleet, prompt


@given(st.lists(st.sets(st.integers(0, 5), min_size=1), max_size=60))
def test_round_robin_is_even_under_joins_and_leaves(present: list[set[int]]) -> None:
    """For workers that are always there, the counts never differ by more than one."""
    everyone = fleet(6)
    run = Run("roundrobin", everyone)
    steady = {0, 1}
    counts: Counter[str] = Counter()
    for here in present:
        run.workers = [everyone[number] for number in sorted(here | steady)]
        counts[run.place(prompt("x"), book=False).name] += 1
        assert abs(counts["w0"] - counts["w1"]) <= 1


def test_round_robin_gives_a_newcomer_one_turn_at_a_time() -> None:
    """A worker that joins late is not flooded with requests to make it catch up."""
    run = Run("roundrobin", fleet(2))
    for _ in range(10):
        run.place(prompt("x"), book=False)
    run.workers.append(Stand("late"))
    placed = [run.place(prompt("x"), book=False).name for _ in range(6)]
    assert Counter(placed) == {"w0": 2, "w1": 2, "late": 2}
