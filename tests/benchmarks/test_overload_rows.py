"""How the results at one level of overload are summarised."""

import pytest

from benchmarks.overload.load import Row, Visit, kept, peak, quantile, row


def made(load: float, goodput: float) -> Row:
    """Return a level for which only the goodput matters."""
    visits = [Visit(9.0, 0.1, 200)] * int(goodput * 8)
    return row(load, visits, seconds=10.0, deadline=1.0)


def test_everybody_is_counted_once() -> None:
    """In time, late, refused or failed; requests during the warm-up are left out."""
    visits = [
        *[Visit(1.9, 0.1, 500)] * 50,
        *[Visit(2.0, 0.4, 200)] * 8,
        *[Visit(5.0, 1.2, 200)] * 2,
        *[Visit(5.0, 0.01, 429)] * 4,
        *[Visit(5.0, 0.02, 503)] * 3,
        *[Visit(9.9, 0.1, 502)] * 2,
        Visit(9.9, 0.1, 0),
    ]
    one = row(2.0, visits, seconds=10.0, deadline=1.0)
    assert one.offered == pytest.approx(20 / 8)
    assert one.goodput == pytest.approx(1.0)
    shares = (one.late, one.refused_429, one.refused_503, one.failed)
    assert shares == pytest.approx((0.1, 0.2, 0.15, 0.15))
    assert (one.p50, one.p99, one.refusal_p99) == (0.4, 1.2, 0.02)


def test_nobody_came() -> None:
    """Without requests, nothing is divided by zero."""
    assert row(1.0, [], 10.0, 1.0).goodput == 0
    assert kept([row(1.0, [], 10.0, 1.0)]) == 0
    assert quantile([], 0.5) == 0


def test_what_is_left_of_the_peak() -> None:
    """The goodput at the highest load over the best one, in any order of rows."""
    rows = [made(4, 9), made(1, 8), made(2, 10)]
    assert peak(rows) == pytest.approx(10)
    assert kept(rows) == pytest.approx(0.9)
