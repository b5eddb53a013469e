"""`chbl` hashes a prompt's prefix to a worker, within a bound on its load."""

import pytest

from strategies.policies.chbl import Chbl, ChblOptions
from tests.strategies.placing import LONG, fleet, prompt


def test_a_hashed_prefix_has_one_worker_whoever_asks() -> None:
    """Two routers agree on the worker of a prefix; what follows the prefix does not matter."""
    texts = [f"{n} " * 3000 for n in range(40)]
    homes = []
    for question in ("one", "two"):
        strategy = Chbl(ChblOptions())
        found = [strategy.rank(prompt(t + question), fleet(8), 0.0).candidates[0] for t in texts]
        homes.append([candidate.worker.name for candidate in found])
    assert homes[0] == homes[1]
    assert len(set(homes[0])) > 4


def test_a_worker_that_joins_moves_only_what_it_takes() -> None:
    """Prefixes move to the new worker only, never between the old ones."""
    texts = [f"{n} " * 3000 for n in range(200)]
    strategy = Chbl(ChblOptions())
    seven, eight = (
        [strategy.rank(prompt(t), fleet(count), 0.0).candidates[0].worker.name for t in texts]
        for count in (7, 8)
    )
    moved = [after for before, after in zip(seven, eight, strict=True) if before != after]
    assert set(moved) == {"w7"}
    assert len(moved) < 200 * (1 / 8 + 0.05)


def test_a_hashed_prefix_spills_beyond_the_bound() -> None:
    """If all send the same prompt, no worker gets more than its bounded share."""
    workers = fleet(4)
    strategy = Chbl(ChblOptions())
    for _ in range(100):
        choice = strategy.rank(prompt(LONG), workers, 0.0).candidates[0]
        next(w for w in workers if w is choice.worker).load.book(0.0, 0.1)
    assert max(worker.load.in_flight for worker in workers) <= 1.25 * 101 / 4 + 1


def test_a_prefix_of_no_tokens_is_refused() -> None:
    """All prompts would hash to the same worker."""
    with pytest.raises(ValueError, match="at least 1"):
        ChblOptions(prefix=0)
