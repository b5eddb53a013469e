"""The command: sets up router, workers and load, and reports what came of them."""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness.processes import NotReady, Stopped, child, stoppable
from benchmarks.harness.router import router
from benchmarks.soak import clients as soak_load
from benchmarks.soak.fleet import Workers
from benchmarks.soak.judge import asked_twice, lost
from benchmarks.soak.report import SoakReport, complaints
from benchmarks.soak.run import TICK_INTERVAL_S, Broken, SoakRun, settings

#: Workers that are in the settings all the time.
WORKERS = 4
#: Idle seconds of the router before the load; time limit for the workers to start.
_IDLE_S, _START_TIMEOUT_S = 4.0, 30.0

_err = Console(stderr=True, highlight=False, soft_wrap=True)


def soak(
    folder: Path, minutes: float, share: float, seed: int, options: Sequence[str]
) -> SoakReport:
    """Run the whole soak and return its report. Raises Broken, NotReady, Stopped."""
    with ExitStack() as stack:
        stack.enter_context(stoppable())
        workers = stack.enter_context(Workers(folder, WORKERS, seed))
        _until_well(workers)
        served = stack.enter_context(router(folder, settings(workers, guest=False), options))
        load = stack.enter_context(child(soak_load.serve, served.port, seed))
        time.sleep(_IDLE_S)
        course = SoakRun(served, workers, load, share)
        before = course.state()
        course.run(60 * minutes)
        tally = course.finish()
        after = course.rest(before)
        code = served.end()
        books = workers.books()
        log = served.log.read_text(errors="replace")
    return SoakReport(
        minutes=minutes,
        tally=tally,
        lost=lost(tally.failures, books),
        twice=asked_twice(books),
        faults=workers.faults,
        reloads=course.reloads,
        load_share=course.load_share,
        machine_share=course.machine_share,
        samples=course.samples,
        tasks=course.tasks,
        before=before,
        after=after,
        complaints=complaints(log),
        exit_code=code,
    )


def _until_well(workers: Workers) -> None:
    deadline = monotonic() + _START_TIMEOUT_S
    while not workers.well:
        if monotonic() > deadline:
            raise NotReady("the workers do not begin")
        workers.state()
        time.sleep(TICK_INTERVAL_S)


def main(
    *,
    minutes: Annotated[float, typer.Option(min=0.1, help="How long the load lasts.")] = 10.0,
    share: Annotated[
        float, typer.Option(min=0.05, max=1.0, help="Of a core, for each process of the router.")
    ] = 0.7,
    processes: Annotated[int, typer.Option(min=1, help="Given to `warmroute serve`.")] = 1,
    seed: Annotated[int, typer.Option(help="What chance hangs on.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write everything here.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Copy the router's log there.")] = None,
) -> None:
    """Soak the router and say what came of it."""
    options = ["--processes", str(processes)] if processes > 1 else []
    with TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        try:
            report = soak(folder, minutes, share * processes, seed, options)
        except (Broken, NotReady, Stopped) as error:
            _err.print(str(error), markup=False)
            raise typer.Exit(1) from None
        finally:
            if log is not None and (folder / "warmroute.log").exists():
                log.write_text((folder / "warmroute.log").read_text(errors="replace"))
    Console(width=160).print(report.table())
    for line in report.lines():
        print(line)
    if json_file is not None:
        json_file.write_text(json.dumps(report.data(), indent=1) + "\n")
    problems = report.problems()
    print("\n".join(f"PROBLEM: {problem}" for problem in problems) or "All is well.")
    raise typer.Exit(1 if problems else 0)


if __name__ == "__main__":
    typer.run(main)
