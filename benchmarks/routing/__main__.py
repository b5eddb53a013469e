"""Quality of routing decisions: `python -m benchmarks.routing --traces FOLDER --judge N`.

Compares Warmroute's strategies, other routers' policies (implemented from their published rules),
and bounds on simulated workers, with recorded and generated workloads, on several engines. The
clock is virtual and all randomness is seeded, so the same command gives the same numbers on any
machine. Without traces only the generated workloads run.

Constants and rules are chosen by the seeds 1 to 3, the default. With `--judge N` others are derived
from N, and RESULTS.md is written.
"""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.routing import PAGE
from benchmarks.routing.columns import (
    CHOOSING,
    EVERYWHERE,
    STOCK,
    Cell,
    Column,
    Task,
    chosen,
    columns,
    computed,
    elsewhere,
    judging,
    means,
    rescaled,
)
from benchmarks.routing.policies import POLICIES, Policy, policy_named
from benchmarks.routing.results import (
    Results,
    decisions,
    goals,
    markdown,
    plot,
    sheets,
    terminal,
    write,
)
from benchmarks.routing.workloads import Ideal, ideal
from simulator.traces import TraceError

PICTURE = "results.png"
#: Workloads that are replayed with one thing made ideal.
REPLAYED = (*EVERYWHERE, "conversation x2.2", "conversation tight x1.75")
#: Seeds on other engines.
FEWER = 2

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
    judge: Annotated[
        int | None, typer.Option(help="Derive the seeds from it, and write RESULTS.md.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many; on other engines two at most.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    page: Annotated[Path, typer.Option(help="Write the results here, with --judge.")] = PAGE,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the numbers here.")
    ] = None,
) -> None:
    """Measure, judge the goals, and print the tables."""
    drawn = CHOOSING[:seeds] if judge is None else judging(judge, seeds)
    try:
        stock = columns(traces)
        every = [*stock, *(other for one in stock for other in elsewhere(one))]
        picked = chosen(column or (), every)
        policies = [policy_named(name) for name in policy] if policy else POLICIES
        picked = rescaled(picked, stock, jobs)
        cells = _measured([*_tasks(picked, policies, drawn)], jobs)
        ideals = {one.name: _ideal(one, drawn) for one in picked if one.engine == STOCK}
    except (ValueError, TraceError) as error:
        raise typer.BadParameter(str(error)) from error
    found = means(cells)
    reached = goals(found, picked) + ([] if judge is None else decisions())
    results = Results(found, picked, ideals, reached)
    for sheet in sheets(results):
        Console(width=200).print(terminal(sheet))
    if json_file is not None:
        parts = {"seeds": drawn, "cells": cells, "ideals": ideals, "goals": reached}
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(parts), indent=1) + b"\n")
    if judge is not None:
        write(page, judged=_page(results, drawn))
        plot(results, page.with_name(PICTURE))


def _tasks(
    picked: Sequence[Column], policies: Sequence[Policy], seeds: Sequence[int]
) -> list[Task]:
    """Return all cells; those of a column and seed follow one another, as they share the work."""
    return [
        Task(column, policy, seed)
        for column in picked
        for seed in (seeds if column.engine == STOCK else seeds[:FEWER])
        for policy in policies
        if _runs(policy, column)
    ]


def _runs(policy: Policy, column: Column) -> bool:
    if policy.kind == "ideal":
        return column.engine == STOCK and column.workload in REPLAYED
    return policy.everywhere or column.engine == STOCK


def _measured(tasks: Sequence[Task], jobs: int) -> list[Cell]:
    """Compute all cells, with a progress bar."""
    bar = Progress(
        *Progress.get_default_columns()[:2],
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=_err,
        transient=True,
    )
    with bar:
        cells = bar.add_task("Cells", total=len(tasks))
        return computed(tasks, jobs, lambda: bar.advance(cells))


def _ideal(column: Column, seeds: Sequence[int]) -> Ideal:
    """Return the lower bounds of a column, as means over the same seeds."""
    profile, size = column.fleet.profile, column.fleet.block_tokens
    each = [ideal(column.work(seed, column.rate), profile, size) for seed in seeds]
    return Ideal(*(fmean(values) for values in zip(*each, strict=True)))


def _page(results: Results, seeds: Sequence[int]) -> str:
    """Return the page's first part."""
    words = shlex.join("PATH" if "/" in word else word for word in sys.argv[1:])
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, check=False, text=True
    ).stdout.strip()
    head = f"""# Routing: results

Generated by `python -m benchmarks.routing {words}`, {datetime.now(UTC):%Y-%m-%d}, commit
{commit or "unknown"}. Seeds for judging: {", ".join(map(str, seeds))}; on other engines only the
first {min(FEWER, len(seeds))}. No constant was chosen by them: for that, seeds are below 100.
[Routing](../docs/routing.md) explains the cost; [notes](NOTES.md) say what else was tried.

![Mean seconds to the first token on the stock engine]({PICTURE})
"""
    return "\n\n".join([head.strip(), *map(markdown, sheets(results))])


if __name__ == "__main__":
    typer.run(main)
