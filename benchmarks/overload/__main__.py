"""The command: the levels of load, and their table."""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness.processes import NotReady, Stopped, child, cpu_seconds, stoppable
from benchmarks.harness.router import router
from benchmarks.overload import load as overload_load
from benchmarks.overload import worker as overload_worker
from benchmarks.overload.load import (
    MIN_GOODPUT_SHARE,
    Level,
    LevelResult,
    kept,
    peak,
    row,
    run_level,
)
from benchmarks.overload.worker import Capacity

#: Loads, as multiples of the workers' capacity.
LEVELS = (0.5, 1.0, 2.0, 4.0)
#: Seconds between two levels.
_LEVEL_PAUSE_S = 2.0

_err = Console(stderr=True, highlight=False, soft_wrap=True)


def measure(
    capacity: Capacity, levels: Sequence[float], seconds: float, deadline: float
) -> list[LevelResult]:
    """Run all load levels. Raises NotReady, Stopped, EOFError."""
    with ExitStack() as stack:
        stack.enter_context(stoppable())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="overload-")))
        channel, _ = stack.enter_context(child(overload_worker.serve, capacity))
        urls = [f"http://127.0.0.1:{port}" for port in channel.recv()]
        clients, _ = stack.enter_context(child(overload_load.serve))
        settings = {
            "workers": urls,
            "limits": {"in_flight": capacity.places, "queue": int(capacity.rate * deadline / 2)},
            "timeouts": {"queue": f"{deadline * 1000:.0f}ms"},
            "shutdown": {"delay": "0s", "drain": "1s"},
        }
        served = stack.enter_context(router(folder, settings))
        rows = []
        for number, load in enumerate(levels):
            with _err.status(f"{load:g} times the capacity"):
                before = sum(map(cpu_seconds, served.pids))
                level = Level(served.port, load * capacity.rate, seconds, number)
                visits = run_level(clients, level)
                used = sum(map(cpu_seconds, served.pids)) - before
                rows.append(row(load, visits, seconds, deadline, used / seconds))
                time.sleep(_LEVEL_PAUSE_S)
        return rows


def table(rows: Sequence[LevelResult], capacity: Capacity, deadline: float) -> Table:
    """Return the rows as a table."""
    title = (
        f"{capacity.workers} workers with {capacity.places} places, {capacity.service_s:g} s a"
        f" request: {capacity.rate:,.0f} requests a second; deadline {deadline:g} s"
    )
    made = Table(title=title, title_justify="left")
    for heading in (
        *("load", "offered/s", "goodput/s", "of the peak", "late", "429", "503", "failed"),
        *("answer p50 ms", "p99 ms", "refusal p99 ms", "router CPU"),
    ):
        made.add_column(heading, justify="right")
    for level in rows:
        made.add_row(
            *(f"{level.load:g}", f"{level.offered:,.0f}", f"{level.goodput:,.0f}"),
            *(f"{level.goodput / max(peak(rows), 1e-9):.0%}", f"{level.late:.1%}"),
            *(f"{level.refused_429:.1%}", f"{level.refused_503:.1%}", f"{level.failed:.1%}"),
            f"{level.p50 * 1e3:,.0f}",
            *(f"{level.p99 * 1e3:,.0f}", f"{level.refusal_p99 * 1e3:,.1f}"),
            f"{level.router_share:.0%}",
        )
    return made


def main(
    *,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long each level lasts.")] = 15.0,
    workers: Annotated[int, typer.Option(min=1)] = 4,
    places: Annotated[int, typer.Option(min=1, help="Requests at once on one worker.")] = 8,
    service: Annotated[float, typer.Option(min=0.001, help="Seconds for one of them.")] = 0.1,
    deadline: Annotated[float, typer.Option(min=0.01, help="Seconds; later is too late.")] = 1.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here.")] = None,
) -> None:
    """Measure and print the table."""
    capacity = Capacity(workers, places, service)
    try:
        rows = measure(capacity, LEVELS, seconds, deadline)
    except (EOFError, NotReady, Stopped) as error:
        _err.print(str(error) or "a process has ended by itself", markup=False)
        raise typer.Exit(1) from None
    Console(width=160).print(table(rows, capacity, deadline))
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(level) for level in rows], indent=1) + "\n")
    share = kept(rows)
    enough = share >= MIN_GOODPUT_SHARE
    print(f"At the highest load {share:.0%} of the peak is left{'' if enough else ': TOO LITTLE'}.")
    raise typer.Exit(0 if enough else 1)


if __name__ == "__main__":
    typer.run(main)
