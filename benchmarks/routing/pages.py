"""Tables for a terminal or a document, and the page RESULTS.md that they are written to."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

PAGE = Path(__file__).parents[1] / "RESULTS.md"
#: The first line of what `benchmarks.routing.sensitivity` writes into the page.
SENSITIVITY = "## What each constant is worth"


class Sheet(NamedTuple):
    """A table as plain text; the columns in `right` are numbers, the others words."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int]


def terminal(sheet: Sheet) -> Table:
    """Return a sheet as a table with colours."""
    table = Table(title=sheet.title)
    for place, heading in enumerate(sheet.headings):
        table.add_column(heading, justify="right" if place in sheet.right else "left")
    for row in sheet.rows:
        table.add_row(*(f"[bold red]{text}[/]" if "missed" in text else text for text in row))
    return table


def markdown(sheet: Sheet) -> str:
    """Return a sheet as GitHub-flavoured Markdown, preceded by its title."""
    rule = ["---:" if place in sheet.right else "---" for place in range(len(sheet.headings))]
    lines = (f"| {' | '.join(cells)} |" for cells in (sheet.headings, rule, *sheet.rows))
    return f"{sheet.title}:\n\n" + "\n".join(lines) + "\n"


def write(page: Path, *, judged: str = "", sensitivity: str = "") -> None:
    """Write a part of the page, and keep the other one as it is there."""
    old = page.read_text() if page.exists() else ""
    head, found, tail = old.partition(SENSITIVITY)
    page.write_text((judged or head).rstrip() + "\n\n" + (sensitivity or found + tail))
