"""The cost of a routing decision: `python -m benchmarks.decision`.

Measures the CPU microseconds to turn a prompt into keys, to rank the workers and to record the
placement, for several prompt lengths and fleet sizes, with the ratio to the smallest case of the
same run. Every worker is busy, so that every term of the cost is computed; with `--idle` none has
anything to do. The microseconds depend on the machine's speed; the ratios do not.

With `--against FOLDER`, which holds another version of this repository, that one measures the same
cases with its own copy of this file, and the last column is the ratio to it.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from strategies.api import Prompt, Strategy
from strategies.cost.load import Load
from strategies.cost.prefill import Curve, Pace
from strategies.prefix.block_keys import TEXT_ENDS, chain, root_key
from strategies.registry import make

SIZES = (400, 8_700, 35_000, 261_000)
WORKER_COUNTS = (8, 64, 500)
ROUNDS = 200
#: Prompts placed beforehand, so that the tree is not empty and has half of each new prompt.
KNOWN_PROMPTS = 200
#: Requests decoding on every worker, besides one in prefill.
DECODING_REQUESTS = 4
#: Seconds between two decisions.
DECISION_INTERVAL_S = 0.001
#: Has another version measure the cases given as an argument.
_MEASURE_THERE = """
import json, sys
from benchmarks.decision import measured
cases, busy = json.loads(sys.argv[1])
print(json.dumps([measured(*case, busy=busy) for case in cases]))
"""


@dataclass(eq=False)
class WorkerStub:
    """A worker as a strategy sees it."""

    name: str
    load: Load = field(default_factory=Load)
    pace: Pace = field(default_factory=Pace)
    kv_tokens: int | None = 400_000
    room_tokens: int | None = 400_000


def main(
    *,
    idle: Annotated[bool, typer.Option(help="Workers have nothing to do.")] = False,
    against: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Another version.")
    ] = None,
) -> None:
    """Measure and print the table."""
    table = Table(title="CPU µs a decision (prefixaware)")
    headings = ["prompt bytes", "workers", "keys", "rank", "record", "sum", "ratio"]
    for heading in headings if against is None else [*headings, "to the other version"]:
        table.add_column(heading, justify="right")
    first = 0.0
    cases = [(size, count) for count in WORKER_COUNTS for size in SIZES]
    other_costs = [] if against is None else _measured_there(against, cases, busy=not idle)
    shown = track(cases, "Measuring", console=Console(stderr=True), transient=True)
    for place, (size, count) in enumerate(shown):
        costs = measured(size, count, busy=not idle)
        first = first or sum(costs)
        cells = [f"{cost:.1f}" for cost in (*costs, sum(costs))]
        ratios = [f"{sum(costs) / first:.1f}x"]
        ratios += [f"{sum(costs) / sum(other):.2f}x" for other in other_costs[place : place + 1]]
        table.add_row(f"{size:,}", str(count), *cells, *ratios)
    Console().print(table)


def _measured_there(
    folder: Path, cases: Sequence[tuple[int, int]], *, busy: bool
) -> list[list[float]]:
    """Return what the version in `folder` measures. Raises BadParameter if it cannot."""
    if not (folder / "benchmarks" / "decision.py").is_file():
        raise typer.BadParameter(f"{folder} has no benchmarks/decision.py")
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE_THERE, json.dumps([cases, busy])],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        check=False,
        text=True,
    )
    if done.returncode:
        raise typer.BadParameter(f"{folder} cannot measure: {done.stderr[-1000:]}")
    costs: list[list[float]] = json.loads(done.stdout)
    return costs


def measured(size: int, count: int, *, busy: bool = True) -> tuple[float, float, float]:
    """Return the CPU microseconds for keys, rank and record.

    A prompt has `size` bytes, and there are `count` workers.
    """
    chance = random.Random(size + count)
    curve = Curve()  # shared by the workers of a pool
    workers = [WorkerStub(f"w{number}", pace=Pace(curve)) for number in range(count)]
    for worker in workers if busy else []:
        _give_work(worker)
    strategy: Strategy = make("prefixaware", {})
    head = chance.randbytes(size // 2)
    for number in range(KNOWN_PROMPTS):
        text = (head if number % 2 else b"") + chance.randbytes(size // 2)
        strategy.placed(_prompt(text), workers[number % count], 0.0)
    texts = [head + chance.randbytes(size - size // 2) for _ in range(ROUNDS)]
    prompts: list[Prompt] = []
    keys = _cpu(lambda: prompts.extend(map(_prompt, texts)))
    rank = _cpu(lambda: _rank_all(strategy, prompts, workers))
    record = _cpu(lambda: _place_all(strategy, prompts, workers[0]))
    return keys, rank, record


def _give_work(worker: WorkerStub) -> None:
    """Give the worker requests that decode and one in prefill, so that it has a wait."""
    for _ in range(DECODING_REQUESTS):
        worker.load.first_byte(worker.load.book(0.0, 0.5, 8_000), 0.0)
    worker.load.book(0.0, 0.5, 8_000)


def _rank_all(strategy: Strategy, prompts: list[Prompt], workers: list[WorkerStub]) -> None:
    """Rank the prompts at advancing times, because a strategy updates its state over time."""
    for number, prompt in enumerate(prompts, 1):
        strategy.rank(prompt, workers, number * DECISION_INTERVAL_S)


def _place_all(strategy: Strategy, prompts: list[Prompt], worker: WorkerStub) -> None:
    for prompt in prompts:
        strategy.placed(prompt, worker, 0.0)


def _prompt(text: bytes) -> Prompt:
    keys = chain(root_key("CHAT", "model", ""), text)
    return Prompt("model", len(text) // 4, keys, TEXT_ENDS, 0.25)


def _cpu(work: Callable[[], object]) -> float:
    """Return the CPU microseconds of `work`, divided by `ROUNDS`."""
    began = process_time()
    work()
    return (process_time() - began) / ROUNDS * 1e6


if __name__ == "__main__":
    typer.run(main)
