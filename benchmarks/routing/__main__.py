"""Quality of routing decisions: `python -m benchmarks.routing --traces FOLDER`.

Compares Warmroute's own strategies, other routers' policies (implemented from their published
rules), and two bounds on simulated workers, with recorded and generated workloads. The clock is
virtual and all randomness is seeded, so the same command gives the same numbers on any machine.
Without traces only the generated workloads run. docs/routing.md says what is simulated, and where
the traces come from.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.routing.cells import Cell, Task, computed, means
from benchmarks.routing.columns import Column, chosen, columns
from benchmarks.routing.goals import PEERS, Found, Goal, decisions, goals, hopeless
from benchmarks.routing_plot import plot
from benchmarks.routing.policies import OURS, POLICIES, Policy, policy_named
from benchmarks.routing_rates import Rate, Search, found
from benchmarks.routing.results import Sheet, markdown, sheets, terminal
from benchmarks.routing_unsure import by_seed, judged, needed, unsure
from benchmarks.routing.work import Ideal, ideal
from simulator.traces import TraceError

_err = Console(stderr=True, highlight=False)


def main(
    *,
    traces: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder with the recorded traces."),
    ] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Only those whose names begin so; repeat for more.")
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Only these; repeat for more.")] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Their mean is shown; of the hopeless the first.")
    ] = 3,
    more: Annotated[
        int, typer.Option(min=1, help="Seeds for goals that those do not decide.")
    ] = 24,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    rates: Annotated[bool, typer.Option(help="Search sustainable rates too.")] = True,
    quick: Annotated[bool, typer.Option(help="One seed, no search.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(exists=True, help="Numbers of an earlier run, for what is not run now."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the numbers here.")
    ] = None,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the tables here.")
    ] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot", help="Draw a PNG here.")] = None,
) -> None:
    """Measure, and print the tables."""
    try:
        every = columns(traces)
        picked = chosen(column or (), every)
        usual = [one for one in POLICIES if one.usual]
        policies = [policy_named(name) for name in policy] if policy else usual
        seeds, rates = (1, False) if quick else (seeds, rates)
        cells, searched = _measured(picked, policies, seeds, rates=rates, jobs=jobs)
        if keep is not None:
            cells, searched = _with_kept(keep, cells, searched, {one.name for one in every})
        told = {cell.column for cell in cells}
        shown = [one for one in every if one.name in told]
        first = [cell for cell in cells if cell.seed <= seeds]
        result = Found(means(first), _ideals(shown, seeds), searched)
        reached = goals(result)
        if not quick:
            reached, cells = surer(reached, cells, shown, more, jobs)
            reached += decisions()
    except (ValueError, TraceError) as error:
        raise typer.BadParameter(str(error)) from error
    names = [one.name for one in shown]
    _print(list(sheets(result, names, reached)), markdown_file)
    if json_file is not None:
        parts = {"cells": cells, "rates": searched, "ideals": result.ideals, "goals": reached}
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(parts), indent=1) + b"\n")
    if plot_file is not None:
        plot(result, names, plot_file)


def _print(several: Sequence[Sheet], markdown_file: Path | None) -> None:
    """Print the tables, and write them to the file."""
    for sheet in several:
        Console(width=200).print(terminal(sheet))
    if markdown_file is not None:
        markdown_file.write_text("\n".join(map(markdown, several)))


def _measured(
    picked: Sequence[Column], policies: Sequence[Policy], seeds: int, *, rates: bool, jobs: int
) -> tuple[list[Cell], list[Rate]]:
    """Compute all cells and rates, with a progress bar."""
    bar = Progress(
        *Progress.get_default_columns()[:2],
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=_err,
        transient=True,
    )
    with bar:
        cell_bar = bar.add_task("Cells", total=len(picked) * len(policies) * seeds)

        def of(seeds: Sequence[int], without: Collection[tuple[str, str]] = ()) -> list[Cell]:
            every = [
                Task(one, policy, seed, one.rate)
                for one in picked
                for seed in seeds
                for policy in policies
            ]
            tasks = [task for task in every if (task.column.name, task.policy.name) not in without]
            bar.advance(cell_bar, len(every) - len(tasks))
            return computed(tasks, jobs, lambda: bar.advance(cell_bar))

        cells = of([1])
        cells += of(range(2, seeds + 1), hopeless(means(cells)))
        searches = searches_of(picked, policies, cells) if rates else []
        rate_bar = bar.add_task("Rates", total=len(searches))
        return cells, found(searches, jobs, lambda: bar.advance(rate_bar))


def surer(
    reached: Sequence[Goal], cells: Sequence[Cell], shown: Sequence[Column], more: int, jobs: int
) -> tuple[list[Goal], list[Cell]]:
    """Judge the goals that are not decided by `more` seeds; also return all cells."""
    known, columns = by_seed(cells), {one.name: one for one in shown}
    open_goals = unsure(reached, known)
    tasks = [
        Task(columns[column], policy_named(policy), seed, columns[column].rate)
        for column, policy in needed(open_goals)
        for seed in range(1, more + 1)
        if seed not in known[column, policy]
    ]
    with Progress(console=_err, transient=True) as bar:
        bar_id = bar.add_task("More seeds", total=len(tasks))
        cells = [*cells, *computed(tasks, jobs, lambda: bar.advance(bar_id))]
    known = by_seed(cells)
    return [judged(goal, known) if goal in open_goals else goal for goal in reached], cells


def searches_of(
    picked: Sequence[Column], policies: Sequence[Policy], cells: Sequence[Cell]
) -> list[Search]:
    """Return the rate searches to make: per column, our policies and every peer compared with.

    Peers with the most answers in time come first: for the others it is then enough to show that
    they do not sustain a higher rate.
    """
    timely = {(cell.column, cell.policy): cell.in_time for cell in cells if cell.seed == 1}
    ours = [one for one in policies if one.name in OURS]
    peers = [one for one in policies if one.name in PEERS]
    searches = []
    for column in picked:
        order = sorted(peers, key=lambda peer: -timely.get((column.name, peer.name), 0.0))
        if column.searched and (ours or order):
            searches.append(Search(column, [*ours, *order]))
    return searches


class _Kept(msgspec.Struct):
    cells: list[Cell]
    rates: list[Rate]


def _with_kept(
    path: Path, cells: list[Cell], rates: list[Rate], columns: Collection[str]
) -> tuple[list[Cell], list[Rate]]:
    """Add the results of an earlier run for policies and columns that were not run now.

    Only of `columns`: without its trace, nothing can be said of a column.
    """
    kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    run = {(cell.column, cell.policy) for cell in cells}
    searched = {(rate.column, rate.policy) for rate in rates}
    old = [one for one in kept.cells if one.column in columns]
    old_rates = [one for one in kept.rates if one.column in columns]
    cells = [*cells, *(one for one in old if (one.column, one.policy) not in run)]
    rates = [*rates, *(one for one in old_rates if (one.column, one.policy) not in searched)]
    return cells, rates


def _ideals(picked: Sequence[Column], seeds: int) -> dict[str, Ideal]:
    """The ideal values (lower bounds) of each column, as means over the same seeds."""
    found = {}
    for one in picked:
        profile, size = one.fleet.profile, one.fleet.block_tokens
        each = [ideal(one.work(seed, one.rate), profile, size) for seed in range(1, seeds + 1)]
        found[one.name] = Ideal(*(fmean(values) for values in zip(*each, strict=True)))
    return found


if __name__ == "__main__":
    typer.run(main)
