"""Everything at once, for long: `python -m benchmarks.soak --minutes 10`.

Starts the router over five workers in processes of their own, of which one comes and goes with
the settings, and sends it what a public door gets: prompts of 0.4 to 261 kB, growing
conversations, streams; clients that leave at any point, read slowly or nothing at all, send
nonsense or nothing, too much, or ask for what is not there. Meanwhile workers are killed, freeze,
refuse, stall, break off, and answer 500, 503 and nonsense; one at least is always well.

The load is brought to `--share` of a core for the router during the first quarter of the time,
and held there. That quarter is left out of the slopes; it has some more load and faults than the
rest, because a process keeps the memory of its worst moment.

Fails (exit code 1) if memory grows by 1 MB a minute or more; if half a minute after the load there
are more descriptors or tasks than before, or something is booked; if a request was lost that could
have been saved, or asked of two workers (`soak_judge.py` says what that means exactly); if an
answer was wrong, or never came; if the router's log tells of a fault of its own; if it does not
end in order.
"""

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

from benchmarks import soak_load
from benchmarks.bench import NotReady, Stopped, child
from benchmarks.guarded import router, stoppable
from benchmarks.soak_fleet import Workers
from benchmarks.soak_judge import asked_twice, lost
from benchmarks.soak_report import Report, complaints
from benchmarks.soak_run import TICK_S, Broken, Soak, settings

#: Workers that stand in the settings all the time.
WORKERS = 4
#: Seconds that the router is left alone before the load, and for the workers to begin.
_SETTLE_S, _BEGIN_S = 4.0, 30.0

_err = Console(stderr=True, highlight=False, soft_wrap=True)


def soak(folder: Path, minutes: float, share: float, seed: int, options: Sequence[str]) -> Report:
    """Do it. Raises Broken, NotReady, Stopped."""
    with ExitStack() as stack:
        stack.enter_context(stoppable())
        workers = stack.enter_context(Workers(folder, WORKERS, seed))
        _until_well(workers)
        served = stack.enter_context(router(folder, settings(workers, guest=False), options))
        load = stack.enter_context(child(soak_load.serve, served.port, seed))
        time.sleep(_SETTLE_S)
        one = Soak(served, workers, load, share)
        before = one.look()
        one.run(60 * minutes)
        tally = one.finish()
        after = one.rest(before)
        code = served.end()
        books = workers.books()
        said = served.log.read_text(errors="replace")
    return Report(
        minutes=minutes,
        tally=tally,
        lost=lost(tally.failures, books),
        twice=asked_twice(books),
        faults=workers.faults,
        reloads=one.reloads,
        load_share=one.load_share,
        machine_share=one.machine_share,
        samples=one.samples,
        tasks=one.tasks,
        before=before,
        after=after,
        complaints=complaints(said),
        exit_code=code,
    )


def _until_well(workers: Workers) -> None:
    deadline = monotonic() + _BEGIN_S
    while not workers.well:
        if monotonic() > deadline:
            raise NotReady("the workers do not begin")
        workers.look()
        time.sleep(TICK_S)


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
    print("\n".join(f"PROBLEM: {one}" for one in problems) or "All is well.")
    raise typer.Exit(1 if problems else 0)


if __name__ == "__main__":
    typer.run(main)
