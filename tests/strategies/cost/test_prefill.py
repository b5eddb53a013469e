"""Learning how fast workers are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.cost.prefill import Curve, Pace


def taught(truth: float, growth: float, times: int = 200) -> Pace:
    """Return the pace learned from prompts of several lengths that took their true seconds."""
    pace = Pace()
    for number in range(times):
        uncached = (1000, 4000, 20_000, 60_000)[number % 4]
        pace.observe(uncached, 0, seconds(truth, growth, uncached))
    return pace


def seconds(truth: float, growth: float, uncached: float) -> float:
    """Return the prefill time of a worker whose rate and growth are these multiples of the
    guesses."""
    curve = Curve()
    curve.factor, curve.growth = truth, growth
    return curve.seconds(uncached, 0)


@given(st.floats(0.1, 10.0), st.floats(0.3, 3.0))
def test_it_finds_rate_and_growth(truth: float, ratio: float) -> None:
    """From steady answers both are learned to within 35%, whatever the true values are."""
    growth = truth * ratio
    pace = taught(truth, growth)
    for uncached in (1000, 60_000):
        true = seconds(truth, growth, uncached)
        assert pace.prefill(uncached, 0) == pytest.approx(true, rel=0.35)


def test_short_prompts_teach_nothing() -> None:
    """Fixed overheads would be mistaken for slow prefill."""
    pace = Pace()
    pace.observe(100, 0, 1.0)
    assert (pace.curve.seen, pace.factor) == (0, 1.0)


def test_context_makes_tokens_dearer() -> None:
    """The same uncached tokens take longer behind a long cached prefix, and so do those at the end
    of a long prompt."""
    pace = Pace()
    assert pace.prefill(1000, 50_000) > 2 * pace.prefill(1000, 0)
    assert pace.prefill(40_000, 0) > 40 * pace.prefill(1000, 0)


def test_a_newcomer_knows_what_its_pool_knows() -> None:
    """What was learned from one worker is assumed of one that has not answered yet."""
    curve = Curve()
    seen, newcomer = Pace(curve), Pace(curve)
    for _ in range(100):
        seen.observe(4000, 0, 2.0)
    assert newcomer.prefill(4000, 0) == pytest.approx(2.0, rel=0.2)


def test_a_slow_worker_among_fast_ones_is_found() -> None:
    """A worker that is slower than its pool is recognised by its own answers alone."""
    curve = Curve()
    paces = [Pace(curve) for _ in range(8)]
    for _ in range(40):
        for pace in paces:
            pace.observe(4000, 0, 2.0 if pace is paces[0] else 0.5)
    assert paces[0].prefill(4000, 0) > 2.4 * paces[1].prefill(4000, 0)


def test_an_early_answer_tells_however_short_it_was() -> None:
    """Overheads make answers late, never early: a worker a hundred times as fast as guessed is
    recognised from short prompts too, and is not thought to have a queue where it has none."""
    pace = Pace()
    for _ in range(200):
        pace.observe(1000, 0, 0.001)
    assert pace.prefill(1000, 0) < 0.01
    for _ in range(200):
        pace.observe(100, 0, 0.008)  # late because of an overhead: teaches nothing
    assert pace.prefill(1000, 0) < 0.01


def test_a_bound_teaches_only_that_a_worker_is_faster() -> None:
    """The time includes the answer, so a long one says nothing about prefill."""
    pace = Pace()
    before = pace.prefill(1000, 0)
    pace.bound(1000, 0, 0.06)
    pace.bound(1000, 0, 60.0)
    pace.bound(1000, 0, 0.0)
    assert pace.prefill(1000, 0) == before
    for _ in range(200):
        pace.bound(1000, 0, 0.001)
    assert pace.prefill(1000, 0) < 0.01


@given(
    st.floats(0.1, 10.0),
    st.floats(0.01, 10.0),
    st.floats(1.0, 1e6),
    st.floats(0.0, 1e6),
)
def test_tokens_are_those_of_the_seconds(
    factor: float, growth: float, uncached: float, cached: float
) -> None:
    """As many are computed in a time as take that time."""
    curve = Curve()
    curve.factor, curve.growth = factor, growth
    assert curve.tokens(curve.seconds(uncached, cached), cached) == pytest.approx(uncached)
    assert curve.tokens(0.0, cached) == 0.0
