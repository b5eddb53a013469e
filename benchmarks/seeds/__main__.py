"""The command: which workloads are run, and their tables."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console

from benchmarks.routing.columns import each
from benchmarks.seeds.cells import SeedResult, Task, bound, calibrated, cell
from benchmarks.seeds.fleet import ROUTERS, SETUPS
from benchmarks.seeds.tables import lines, verdicts
from benchmarks.seeds.workloads import SEEDS, Seed

_err = Console(stderr=True, highlight=False)


class WorkloadResult(NamedTuple):
    """The results of one workload."""

    seed: Seed
    population: int
    bound: float
    """Hit rate of one infinite cache on the requests that the best router got."""
    cells: Sequence[SeedResult]


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
    printed: list[str] = []
    for result in _results(picked, clients, span, number, jobs):
        for line in (*lines(*result), *verdicts(result.seed, result.bound, result.cells)):
            print(line, flush=True)
            printed.append(line)
        print()
        printed.append("")
    if markdown_file is not None:
        markdown_file.write_text("\n".join(printed))


def _results(
    seeds: Sequence[Seed], clients: int, span: float | None, number: int, jobs: int
) -> Iterator[WorkloadResult]:
    """Calibrate each workload in turn, and compute all its cells."""
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
        turns = max(result.requests for result in cells) // clients
        yield WorkloadResult(
            seed, population, bound(seed, population, clients, number, turns), cells
        )


if __name__ == "__main__":
    typer.run(main)
