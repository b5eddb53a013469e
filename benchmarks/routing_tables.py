"""What was measured, as tables to read."""

from collections.abc import Callable, Iterator, Sequence

from rich.table import Table

from benchmarks.routing_cells import Cell
from benchmarks.routing_goals import Found, Goal
from benchmarks.routing_policies import POLICIES

#: Columns of one table, so that a terminal of 160 characters shows it.
_WIDE = 8

_NUMBERS: tuple[tuple[str, Callable[[Cell], str]], ...] = (
    ("Mean TTFT, s", lambda cell: _short(cell.ttft_s)),
    ("p99 TTFT, s", lambda cell: _short(cell.ttft_p99_s)),
    ("Mean end to end, s", lambda cell: _short(cell.e2e_s)),
    ("Between tokens, ms", lambda cell: f"{cell.token_s * 1e3:.0f}"),
    ("Hit rate", lambda cell: f"{cell.hit_rate:.3f}"),
    ("Begun within 2 s", lambda cell: f"{cell.in_time:.1%}"),
    ("Prefill, max over mean", lambda cell: f"{cell.imbalance:.2f}"),
)


def tables(found: Found, columns: Sequence[str], goals: Sequence[Goal]) -> Iterator[Table]:
    """Yield a table for every number, the sustainable rates, and the goals."""
    for title, text in _NUMBERS:
        for start in range(0, len(columns), _WIDE):
            yield _number_table(title, text, found, columns[start : start + _WIDE])
    if found.rates:
        yield _rate_table(found)
    yield _goal_table(goals)


def _number_table(
    title: str, text: Callable[[Cell], str], found: Found, columns: Sequence[str]
) -> Table:
    table = Table(title=title)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for place, policy in enumerate(POLICIES):
        cells = [found.means.get((column, policy.name)) for column in columns]
        if any(cells):
            last = place + 1 == len(POLICIES) or POLICIES[place + 1].kind != policy.kind
            texts = ("" if cell is None else text(cell) for cell in cells)
            table.add_row(policy.name, *texts, end_section=last)
    if title.startswith("Mean TTFT"):
        floors = (_short(found.ideals[column].ttft_s) for column in columns)
        table.add_row("zero-queue floor", *floors)
    if title == "Hit rate":
        table.add_row("ideal", *(f"{found.ideals[column].hit_rate:.3f}" for column in columns))
    return table


def _rate_table(found: Found) -> Table:
    columns = list(dict.fromkeys(rate.column for rate in found.rates))
    rates = {(rate.column, rate.policy): rate.rate for rate in found.rates}
    table = Table(title="Sustainable rate: 90 % begun within 2 s; 0 is below what was searched")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    for policy in POLICIES:
        if any((column, policy.name) in rates for column in columns):
            texts = (f"{rates.get((column, policy.name), 0.0):.2f}" for column in columns)
            table.add_row(policy.name, *texts)
    return table


def _goal_table(goals: Sequence[Goal]) -> Table:
    met = sum(goal.met for goal in goals)
    table = Table(title=f"Goals: {met} of {len(goals)} met")
    for heading in ("goal", "strategy", "column", "is", "", "to be", "against", ""):
        table.add_column(heading, justify="right" if heading in {"is", "to be"} else "left")
    for goal in goals:
        table.add_row(
            *(goal.name, goal.policy, goal.column, f"{goal.value:.3f}"),
            *("≥" if goal.least else "≤", f"{goal.bound:.3f}", goal.against),
            "met" if goal.met else "[bold red]not met[/]",
        )
    return table


def _short(seconds: float) -> str:
    """Three digits."""
    return (
        f"{seconds:.3f}"
        if seconds < 10
        else f"{seconds:.1f}"
        if seconds < 100
        else f"{seconds:.0f}"
    )
