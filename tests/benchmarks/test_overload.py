"""How the results of one level of overload are summarised."""

import pytest

from benchmarks.overload.load import Visit, kept, row


def test_every_request_is_counted_once() -> None:
    """In time, late, refused or failed; requests of the warm-up are left out."""
    visits = [
        *[Visit(1.9, 0.1, 500)] * 50,
        *[Visit(2.0, 0.4, 200)] * 8,
        *[Visit(5.0, 1.2, 200)] * 2,
        *[Visit(5.0, 0.01, 429)] * 4,
        *[Visit(5.0, 0.02, 503)] * 3,
        *[Visit(9.9, 0.1, 502)] * 2,
        Visit(9.9, 0.1, 0),
    ]
    level = row(2.0, visits, seconds=10.0, deadline=1.0)
    shares = (level.late, level.refused_429, level.refused_503, level.failed)
    assert (level.offered, level.goodput, *shares) == pytest.approx(
        (2.5, 1.0, 0.1, 0.2, 0.15, 0.15)
    )
    assert (level.p50, level.p99, level.refusal_p99) == (0.4, 1.2, 0.02)


def test_what_is_left_of_the_peak() -> None:
    """The goodput at the highest load over the best one; none without requests."""
    answered = {4: 72, 1: 64, 2: 80}
    levels = [
        row(load, [Visit(9.0, 0.1, 200)] * number, seconds=10.0, deadline=1.0)
        for load, number in answered.items()
    ]
    assert kept(levels) == pytest.approx(0.9)
    assert kept([row(1.0, [], 10.0, 1.0)]) == 0
