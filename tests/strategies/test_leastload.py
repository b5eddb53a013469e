"""`leastload` chooses the worker that has the least to do."""

from collections import Counter

import pytest

from tests.strategies.placing import Run, fleet, prompt


def test_without_reuse_prefixaware_is_leastload() -> None:
    """Prompts that share nothing are placed exactly as `leastload` places them."""
    texts = [f"{number} " * (number * 37 % 900) for number in range(100)]
    aware, plain = Run("prefixaware", fleet(4)), Run("leastload", fleet(4))
    assert [aware.place(prompt(t)).name for t in texts] == [
        plain.place(prompt(t)).name for t in texts
    ]


def test_ties_go_round() -> None:
    """An idle fleet is used evenly, not in the order of the list."""
    run = Run("leastload", fleet(4))
    counts = Counter(run.place(prompt(""), book=False).name for _ in range(40))
    assert set(counts.values()) == {10}


def test_a_slow_worker_gets_less() -> None:
    """Cost is in seconds, so a worker four times slower takes a quarter of the work."""
    run = Run("leastload", fleet(2))
    run.workers[1].pace.slower *= 4.0
    counts = Counter(run.place(prompt(f"{n} " * 4000)).name for n in range(100))
    assert counts["w0"] == pytest.approx(80, abs=3)


def test_answers_are_slower_among_many() -> None:
    """With all else equal, the worker that decodes fewer requests is chosen."""
    run = Run("leastload", fleet(2))
    for _ in range(10):
        load = run.workers[0].load
        load.first_byte(load.book(0.0, 0.0, 4000), 0.0)
    run.workers[1].load.turn = 9
    assert run.place(prompt("x" * 4000)).name == "w1"
