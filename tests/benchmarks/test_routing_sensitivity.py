"""What each constant is worth: it is really changed, and the worst column is found."""

from pathlib import Path

import pytest

from benchmarks.routing.sensitivity import STRETCH, Change, main, numbers, table, times


def test_numbers_of_a_module_are_found() -> None:
    """Whole and real ones; no flags, words or functions."""
    found = numbers("benchmarks.routing.sensitivity")
    assert found == {"STRETCH": STRETCH}


@pytest.mark.parametrize(
    ("value", "factor", "result"), [(0.3, 0.5, 0.15), (5, 0.5, 2), (1, 0.5, 1)]
)
def test_whole_numbers_stay_whole(value: float, factor: float, result: float) -> None:
    """And at least one."""
    assert times(value, factor) == result
    assert type(times(value, factor)) is type(value)


def test_the_worst_column_is_shown() -> None:
    """Beside what is chance; what changes nothing at all is said to."""
    usual = {"agents": 1.0, "mixed": 2.0}
    wanted = [("benchmarks.routing.sensitivity", "STRETCH")]
    found = {
        Change("", "", 1.0): usual,
        Change("", "", STRETCH): {"agents": 1.01, "mixed": 2.0},
        Change(*wanted[0], 0.5): {"agents": 1.1, "mixed": 2.4},
        Change(*wanted[0], 2.0): usual,
    }
    chance, row = table(wanted, found).rows
    assert list(chance)[2:4] == ["1.01", "agents"]
    assert list(row) == ["`STRETCH`", "1.0001", "1.20", "mixed", "1.00", "none depends on it"]


def test_a_constant_is_changed_where_it_is_used(tmp_path: Path) -> None:
    """In a fresh process, in which what uses it sees the change; the page has a row for it."""
    page = tmp_path / "RESULTS.md"
    main(constant=["strategies.cost.demand:PRICE"], column=["documents"], page=page)
    row = page.read_text().splitlines()[-1]
    assert row.startswith("| `PRICE` |")
    assert "none depends" not in row
