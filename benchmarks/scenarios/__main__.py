"""The command: which scenarios are run, and their table. Exits with 1 if a check fails."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.routing.columns import each
from benchmarks.scenarios import SCENARIOS, checks_of
from benchmarks.scenarios.checks import Check


def main(
    *,
    scenario: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(SCENARIOS)}; repeat for more.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    size: Annotated[float, typer.Option(min=0.05, help="Of the workloads; 1 is stated.")] = 1.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the numbers here.")
    ] = None,
) -> None:
    """Run them and print what holds."""
    names = scenario or list(SCENARIOS)
    if not set(names) <= SCENARIOS.keys():
        raise typer.BadParameter(f"a scenario is one of {', '.join(SCENARIOS)}")
    runs = [(name, size) for name in names]
    bar = track(
        each(checks_of, runs, jobs),
        "Scenarios",
        total=len(runs),
        console=Console(stderr=True),
        transient=True,
    )
    results = dict(zip(names, bar, strict=True))
    Console(width=120).print(_table(results))
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    if not all(check.met for checks in results.values() for check in checks):
        raise typer.Exit(1)


def _table(results: Mapping[str, Sequence[Check]]) -> Table:
    checks = [check for several in results.values() for check in several]
    met = sum(check.met for check in checks)
    table = Table(title=f"Scenarios: {met} of {len(checks)} checks hold")
    for heading in ("scenario", "what", "is", "", "to be", ""):
        table.add_column(heading, justify="right" if heading in {"is", "to be"} else "left")
    for name, several in results.items():
        for place, check in enumerate(several):
            table.add_row(
                *("" if place else name, check.what, f"{check.value:,.3f}"),
                *("≥" if check.least else "≤", f"{check.bound:,.3f}"),
                "holds" if check.met else "[bold red]does not hold[/]",
                end_section=place + 1 == len(several),
            )
    return table


if __name__ == "__main__":
    typer.run(main)
