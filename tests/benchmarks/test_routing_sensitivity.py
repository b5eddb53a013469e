"""What each constant is worth: it is really changed, and the worst column is found."""

from importlib import import_module
from pathlib import Path

import pytest
from typer import BadParameter

from benchmarks.routing.sensitivity import STRETCH, Change, Task, main, table, times, ttfts


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
    found = {
        Change("", 1.0): usual,
        Change("", STRETCH): {"agents": 1.01, "mixed": 2.0},
        Change("MANY", 0.5): {"agents": 1.1, "mixed": 2.4},
        Change("MANY", 2.0): usual,
    }
    chance, row = table({"MANY": 2.5}, found).rows
    assert list(chance)[2:4] == ["1.01", "agents"]
    assert list(row) == ["`MANY`", "2.5", "1.20", "mixed", "1.00", "none depends on it"]


def test_a_constant_is_changed_where_it_is_used(tmp_path: Path) -> None:
    """In a fresh process, in which what uses it sees the change; the page has a row for it."""
    page = tmp_path / "RESULTS.md"
    main(constant=["PRICE", "LEAST_REST", "MOST_LOAD"], column=["documents"], page=page)
    assert "## Constants" in page.read_text()
    price, rest, unused = page.read_text().splitlines()[-3:]
    assert price.startswith("| `PRICE` |")
    assert "none depends" not in price
    assert rest.count("none depends") < 2  # another constant is derived from it
    assert unused.count("none depends") == 2


def test_a_change_that_would_come_too_late_is_an_error() -> None:
    """What has imported a constant keeps it; an unknown constant is an error that lists them."""
    import_module("strategies.cost.cost")
    with pytest.raises(RuntimeError, match=r"before the change: .*strategies\.cost\.cost"):
        ttfts(Task(Change("PRICE", 2.0), None, ["documents"], [1]))
    with pytest.raises(BadParameter, match=r"'NONE' is no constant; there are: .*PRICE"):
        main(constant=["NONE"])
