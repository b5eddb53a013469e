"""What it is worth that prompts give way across processes.

`python -m benchmarks.routing_processes --traces FOLDER --jobs 2`

A router of several processes on the virtual clock. All of them know everything that is sent, and
held requests are ordered over all of them, as in one process. Once a prompt may preempt those of
any process, as in the product, and once only those of its own process. The table has the ratio of
the two.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.routing_cells import Cell, Task, each, summed
from benchmarks.routing_columns import Column, chosen, columns
from benchmarks.routing_drive import Asked, Drive
from benchmarks.routing_policies import policy_named
from strategies.base import Candidate, Decision, Prompt
from strategies.queue import Queue

_POLICY = policy_named("prefixaware")
_COLUMNS = ("conversation x2", "conversation x2.2", "groups", "agents", "documents", "mixed")


class Apart(Drive):
    """A router of several processes whose prompts give way only within each process."""

    processes = 1

    def _rank(self, prompt: Prompt) -> Decision:
        self._show(prompt)
        return super()._rank(prompt)

    def _place(self, asked: Asked, choice: Candidate) -> None:
        self._show(asked.prompt)
        super()._place(asked, choice)

    def _show(self, prompt: Prompt) -> None:
        """Let only bookings of the prompt's process be preempted for it."""
        here = self._process(prompt)
        for booking, placed in self._booked.items():
            theirs = self._process(placed.asked.prompt)
            booking.since = placed.asked.at_s if theirs == here else None

    def _process(self, prompt: Prompt) -> int:
        """Return the process that serves it: by chance, but the same in every run."""
        return hash((prompt.tokens, *prompt.keys[-1:])) % self.processes


def run(task: tuple[Column, int, int]) -> Cell:
    """Run one column with one seed and so many processes."""
    column, seed, processes = task
    drive = Apart(column.fleet, lambda seats: _POLICY.make(seats, seed), Queue())
    drive.processes = processes
    done = drive.run(column.work(seed, column.rate))
    busy = [seat.engine.busy_s for seat in drive.seats]
    return summed(Task(column, _POLICY, seed, column.rate), done, busy)


def main(
    *,
    traces: Annotated[Path | None, typer.Option(help="Folder of recorded traces.")] = None,
    column: Annotated[list[str] | None, typer.Option(help="Names or beginnings of names.")] = None,
    processes: Annotated[list[int] | None, typer.Option(min=2, help="Of the router.")] = None,
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time.")] = 1,
) -> None:
    """Compare the mean TTFT of several processes with that of one, where all give way to all."""
    counts = processes or [2, 4, 8]
    every = columns(traces)
    names = column or [name for name in _COLUMNS if any(one.name == name for one in every)]
    wanted = chosen(names, every)
    tasks = [(one, seed, n) for one in wanted for n in (1, *counts) for seed in range(1, seeds + 1)]
    cells = []
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("runs", total=len(tasks))
        for cell in each(run, tasks, jobs):
            cells.append(cell)
            progress.advance(bar)
    Console(width=100).print(_table(wanted, counts, seeds, [cell.ttft_s for cell in cells]))


def _table(
    wanted: Sequence[Column], counts: Sequence[int], seeds: int, ttft_s: Sequence[float]
) -> Table:
    table = Table(title="Mean TTFT if prompts give way only within each process")
    add = partial(table.add_column, justify="right")
    table.add_column("column")
    add("one process, or all give way, s")
    for count in counts:
        add(f"{count} processes")
    runs = iter(ttft_s)
    for one in wanted:
        means = [fmean(next(runs) for _ in range(seeds)) for _ in range(1 + len(counts))]
        table.add_row(one.name, f"{means[0]:.3f}", *(f"{m / means[0]:.3f}" for m in means[1:]))
    return table


if __name__ == "__main__":
    typer.run(main)
