"""Learning how fast a worker is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.pace import Pace


@given(st.floats(0.1, 10.0))
def test_it_finds_the_true_speed(truth: float) -> None:
    """From steady answers the factor comes within a few percent, whatever the guess was."""
    pace = Pace()
    for _ in range(40):
        pace.observe(1.0, truth)
    assert pace.prefill(1000, 0) == pytest.approx(truth * pace.guess(1000, 0), rel=0.05)


def test_one_odd_answer_changes_little() -> None:
    """A single stall of a minute does not make a fast worker look slow."""
    pace = Pace()
    for _ in range(20):
        pace.observe(1.0, 1.0)
    pace.observe(1.0, 60.0)
    assert pace.factor < 1.3


def test_short_prompts_teach_nothing() -> None:
    """Fixed overheads would be taken for slow prefill."""
    pace = Pace()
    pace.observe(0.01, 1.0)
    assert pace.factor == 1.0


def test_context_makes_tokens_dearer() -> None:
    """The same uncached tokens cost more behind a long cached prefix, and in one long prompt."""
    pace = Pace()
    assert pace.prefill(1000, 50_000) > 2 * pace.prefill(1000, 0)
    assert pace.prefill(40_000, 0) > 40 * pace.prefill(1000, 0)


def test_slower_is_believed_sooner_than_faster() -> None:
    """Believing a worker too fast costs dearly, too slow next to nothing."""
    slower, faster = Pace(), Pace()
    for pace in (slower, faster):
        for _ in range(50):
            pace.observe(1.0, 1.0)
    slower.observe(1.0, 2.0)
    faster.observe(1.0, 0.5)
    assert slower.factor - 1 > 2 * (1 - faster.factor) > 0
