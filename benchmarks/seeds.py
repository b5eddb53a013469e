"""The published results of HyperPod's routing, on a simulated fleet: `python -m benchmarks.seeds`.

Seven simulated replicas with the constants of Llama-3.1-70B on eight H100, the published workloads
as far as they are described, each strategy with stock settings, without and with L1 and L2. The
baseline is random choice with every worker's own prefix cache on; the population of contexts is
calibrated so that it hits 25 to 30 %, as published, and nothing else is fitted. The clock is
virtual and everything is drawn by a seed: the same command gives the same numbers anywhere.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

from benchmarks.routing_cells import each
from benchmarks.seeds_cells import Cell, Task, bound, calibrated, cell
from benchmarks.seeds_fleet import ROUTERS, SETUPS
from benchmarks.seeds_table import lines, verdicts
from benchmarks.seeds_work import SEEDS, Seed

_err = Console(stderr=True, highlight=False)


class Found(NamedTuple):
    """What came of one workload."""

    seed: Seed
    population: int
    bound: float
    """What one infinite cache would hit on what the best router was asked."""
    cells: Sequence[Cell]


def main(
    *,
    only: Annotated[list[str] | None, typer.Option(help="Workloads whose names begin so.")] = None,
    clients: Annotated[
        int, typer.Option(min=1, help="Requests at once, of the whole fleet.")
    ] = 100,
    span: Annotated[
        float | None, typer.Option(min=1.0, help="Simulated seconds. Default: as published.")
    ] = None,
    number: Annotated[int, typer.Option("--seed", help="What is drawn.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Write the tables here.")
    ] = None,
) -> None:
    """Measure, and print every line with the word simulated on it."""
    picked = [seed for seed in SEEDS if not only or any(seed.name.startswith(o) for o in only)]
    if not picked:
        names = ", ".join(repr(seed.name) for seed in SEEDS)
        raise typer.BadParameter(f"no workload is called so; there are: {names}")
    told: list[str] = []
    for found in _found(picked, clients, span, number, jobs):
        for line in (*lines(*found), *verdicts(found.seed, found.bound, found.cells)):
            print(line, flush=True)
            told.append(line)
        print()
        told.append("")
    if markdown_file is not None:
        markdown_file.write_text("\n".join(told))


def _found(
    seeds: Sequence[Seed], clients: int, span: float | None, number: int, jobs: int
) -> Iterator[Found]:
    """Calibrate, and compute all cells of one workload after the other."""
    for seed in seeds:
        population = calibrated(seed, clients, number)
        tasks = [
            Task(seed, router, setup, population, clients, number, span or seed.span_s)
            for router in ROUTERS
            for setup in SETUPS
            if router.redis or "Redis" not in setup.name
        ]
        _err.print(f"{seed.name}: {len(tasks)} cells")
        cells = list(each(cell, tasks, jobs))
        asked = max(one.requests for one in cells) // clients
        yield Found(seed, population, bound(seed, population, clients, number, asked), cells)


if __name__ == "__main__":
    typer.run(main)
