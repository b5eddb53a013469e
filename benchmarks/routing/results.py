"""The results of the routing benchmark as tables, for a terminal or a document."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.table import Table

from benchmarks.routing.cells import Cell
from benchmarks.routing.goals import Found, Goal, best_peer
from benchmarks.routing.policies import OURS, POLICIES
from benchmarks.routing_rates import Rate

#: Columns per table, so that it fits on a wide terminal.
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


#: The numbers in which our strategies are compared with the best peer.
_BESIDE: tuple[tuple[str, Callable[[Cell], float]], ...] = (
    ("Mean TTFT beside the best peer, s", lambda cell: cell.ttft_s),
    ("p99 TTFT beside the best peer, s", lambda cell: cell.ttft_p99_s),
    ("Mean end to end beside the best peer, s", lambda cell: cell.e2e_s),
)


class Sheet(NamedTuple):
    """A table as plain text; the columns in `right` are numbers, the others words."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int]


def sheets(found: Found, columns: Sequence[str], goals: Sequence[Goal]) -> Iterator[Sheet]:
    """Yield comparisons with the best peer, a sheet per number, sustainable rates, and goals."""
    for title, number in _BESIDE:
        yield _beside_sheet(title, number, found, columns)
    for title, text in _NUMBERS:
        for start in range(0, len(columns), _WIDE):
            yield _number_sheet(title, text, found, columns[start : start + _WIDE])
    if found.rates:
        yield _rate_sheet(found)
    yield _goal_sheet(goals)


def terminal(sheet: Sheet) -> Table:
    """Return a sheet as a table with colours."""
    table = Table(title=sheet.title)
    for place, heading in enumerate(sheet.headings):
        table.add_column(heading, justify="right" if place in sheet.right else "left")
    for row in sheet.rows:
        table.add_row(*(f"[bold red]{text}[/]" if text == "not met" else text for text in row))
    return table


def markdown(sheet: Sheet) -> str:
    """Return a sheet as GitHub-flavoured Markdown, preceded by its title."""
    rule = ["---:" if place in sheet.right else "---" for place in range(len(sheet.headings))]
    lines = (f"| {' | '.join(cells)} |" for cells in (sheet.headings, rule, *sheet.rows))
    return f"{sheet.title}:\n\n" + "\n".join(lines) + "\n"


def _beside_sheet(
    title: str, number: Callable[[Cell], float], found: Found, columns: Sequence[str]
) -> Sheet:
    rows = []
    for column in columns:
        ours = [found.means.get((column, name)) for name in OURS]
        best = best_peer(found.means, column, number)
        texts = ["" if cell is None else _short(number(cell)) for cell in (*ours, best)]
        last = ["", ""]
        if best is not None and ours[0] is not None:
            last = [best.policy, f"{number(ours[0]) / number(best):.2f}"]
        rows.append([column, *texts, *last])
    headings = ("", *OURS, "best peer", "which", "ratio")
    return Sheet(title, headings, rows, (1, 2, 3, 5))


def _number_sheet(
    title: str, text: Callable[[Cell], str], found: Found, columns: Sequence[str]
) -> Sheet:
    rows = []
    for policy in POLICIES:
        cells = [found.means.get((column, policy.name)) for column in columns]
        if any(cells):
            rows.append([policy.name, *("" if cell is None else text(cell) for cell in cells)])
    ideals = [found.ideals[column] for column in columns]
    if title.startswith("Mean TTFT"):
        rows.append(["zero-queue floor", *(_short(ideal.ttft_s) for ideal in ideals)])
    if title == "Hit rate":
        rows.append(["ideal", *(f"{ideal.hit_rate:.3f}" for ideal in ideals)])
    return Sheet(title, ["", *columns], rows, range(1, len(columns) + 1))


def _rate_sheet(found: Found) -> Sheet:
    columns = list(dict.fromkeys(rate.column for rate in found.rates))
    rates = {(rate.column, rate.policy): _rate(rate) for rate in found.rates}
    rows = [
        [policy.name, *(rates.get((column, policy.name), "") for column in columns)]
        for policy in POLICIES
        if any((column, policy.name) in rates for column in columns)
    ]
    title = "Sustainable rate (90 % begun within 2 s, 99 % within 30 s; best peer searched)"
    return Sheet(title, ["", *columns], rows, range(1, len(columns) + 1))


def _rate(rate: Rate) -> str:
    if rate.rate is None:
        return "none"
    return f"{'< ' if rate.below else ''}{rate.rate:.3g}"


def _goal_sheet(goals: Sequence[Goal]) -> Sheet:
    met = sum(goal.met for goal in goals)
    rows = [
        (
            *(goal.name, goal.policy, goal.column, f"{goal.value:.3f}"),
            *("≥" if goal.least else "≤", f"{goal.bound:.3f}", goal.against),
            f"{goal.seeds}" if goal.measure else "",
            "met" if goal.met else "not met",
        )
        for goal in goals
    ]
    headings = ("goal", "strategy", "column", "is", "", "to be", "against", "seeds", "")
    return Sheet(f"Goals, {met} of {len(goals)} met", headings, rows, (3, 5, 7))


def _short(seconds: float) -> str:
    """Format seconds with at least three significant digits."""
    if seconds < 10:
        return f"{seconds:.3f}"
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:,.0f}"
