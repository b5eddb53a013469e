"""What each constant is worth: `python -m benchmarks.routing.sensitivity --jobs 2`.

Halves and doubles every number in `strategies/constants.py`, one at a time, and compares the mean
time to the first token of `prefixaware` with what it is unchanged, in every column. The worst one
is shown, and written into RESULTS.md. One more row changes nothing but the moments at which
requests come, by a ten-thousandth: that much is chance.

Each change is made in a process of its own before a strategy is imported, so what copies a constant
or is derived from it follows. The strategies must not be compiled, as compilers inline constants.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import track

from benchmarks.routing import PAGE
from strategies import constants

if TYPE_CHECKING:
    from benchmarks.routing.results import Sheet

#: The columns, each with a pattern of its own; those without a trace are left out.
COLUMNS = (
    *("conversation x2", "conversation tight x1.75", "sessions x0.3"),
    *("groups", "chats", "agents", "documents", "one_prefix", "no_reuse", "bursts", "mixed"),
)
FACTORS = (0.5, 2.0)
#: How much later all requests come in the row that shows what is chance.
STRETCH = 1.0001


class Change(NamedTuple):
    """One constant times a factor; without a name, requests come that much later instead."""

    name: str
    factor: float


class Task(NamedTuple):
    """What is measured with a change."""

    change: Change
    traces: Path | None
    columns: Sequence[str]
    seeds: Sequence[int]


def main(
    *,
    traces: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder with the recorded traces."),
    ] = None,
    constant: Annotated[list[str] | None, typer.Option(help="Only these; repeat for more.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="Only these; repeat for more.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many, from 1.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    page: Annotated[Path, typer.Option(help="Write the table here.")] = PAGE,
) -> None:
    """Measure, print the table, and write it."""
    known = numbers()
    wanted = {name: known[name] for name in constant or known if name in known}
    if unknown := set(constant or ()) - known.keys():
        raise typer.BadParameter(f"{unknown.pop()!r} is no constant; there are: {', '.join(known)}")
    changes = [Change("", 1.0), Change("", STRETCH)]
    changes += [Change(name, factor) for name in wanted for factor in FACTORS]
    drawn = range(1, seeds + 1)
    tasks = [Task(change, traces, tuple(column or COLUMNS), drawn) for change in changes]
    with get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        shown = track(
            pool.imap(ttfts, tasks, chunksize=1),
            "Changes",
            total=len(tasks),
            console=Console(stderr=True),
            transient=True,
        )
        found = dict(zip(changes, shown, strict=True))
    _show(table(wanted, found), found[changes[0]], drawn, page)


def numbers() -> dict[str, float]:
    """Return the constants by name."""
    return {
        name: value
        for name, value in vars(constants).items()
        if name.isupper() and isinstance(value, int | float)
    }


def times(value: float, factor: float) -> float:
    """Return a constant times a factor; whole numbers stay whole, and at least one."""
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def ttfts(task: Task) -> dict[str, float]:
    """Make a change, and return the mean seconds to the first token by column.

    Raises RuntimeError if something has copied the constants before, or may have inlined them.
    """
    change = task.change
    if change.name:
        _change(change)
    # Not before the change.
    from benchmarks.routing import columns as cells  # noqa: PLC0415
    from benchmarks.routing.policies import OURS, policy_named  # noqa: PLC0415

    policy, found = policy_named(OURS[0]), {}
    for one in cells.columns(task.traces):
        if one.name in task.columns:
            column = one if change.name else one._replace(rate=one.rate / change.factor)
            done = [cells.cell(cells.Task(column, policy, seed)) for seed in task.seeds]
            found[one.name] = fmean(cell.ttft_s for cell in done)
    return found


def _change(change: Change) -> None:
    early = {name for name in sys.modules if name.startswith("strategies.")} - {constants.__name__}
    if early:
        raise RuntimeError(f"imported before the change: {', '.join(sorted(early))}")
    setattr(constants, change.name, times(numbers()[change.name], change.factor))
    if not (import_module("strategies.cost.cost").__file__ or "").endswith(".py"):
        raise RuntimeError("the strategies are compiled; remove the compiled files first")


def table(wanted: Mapping[str, float], found: Mapping[Change, Mapping[str, float]]) -> "Sheet":
    """Return a row for each constant: its value, and the worst columns if halved and doubled."""
    from benchmarks.routing.results import CONSTANTS, Sheet  # noqa: PLC0415

    usual = found[Change("", 1.0)]
    chance = _worst(found[Change("", STRETCH)], usual)
    rows = [["requests come later by a ten-thousandth", "", *chance, "", ""]]
    for name, value in wanted.items():
        worst = [_worst(found[Change(name, factor)], usual) for factor in FACTORS]
        rows.append([f"`{name}`", f"{value:g}", *worst[0], *worst[1]])
    headings = ("", "value", "halved", "in", "doubled", "in")
    return Sheet(CONSTANTS, headings, rows, (1, 2, 4))


def _worst(changed: Mapping[str, float], usual: Mapping[str, float]) -> tuple[str, str]:
    """Return the worst ratio and its column; no column if nothing depends on the change."""
    if changed == usual:
        return "1.00", "none depends on it"
    ratio, column = max((changed[name] / usual[name], name) for name in usual)
    return f"{ratio:.2f}", column


def _show(sheet: "Sheet", names: Collection[str], seeds: Sequence[int], page: Path) -> None:
    """Print the table, and write it to the page."""
    # These import the strategies.
    from benchmarks.routing.results import markdown, terminal, write  # noqa: PLC0415

    Console(width=140).print(terminal(sheet))
    text = f"""Generated by `python -m benchmarks.routing.sensitivity`: each number in
[strategies/constants.py](../strategies/constants.py) halved and doubled. Shown is mean TTFT of
`prefixaware` on the stock engine, relative to what it is unchanged, in the column that suffers most
of {", ".join(names)}. What is not above the first row is chance. Seeds, of those for choosing:
{", ".join(map(str, seeds))}."""
    write(page, constants=markdown(sheet._replace(text=text)))


if __name__ == "__main__":
    typer.run(main)
