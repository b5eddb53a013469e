"""Check of the virtual clock against real sockets: `python -m benchmarks.routing.sockets TRACE`.

Sends the same requests with `warmroute replay` through a real router to eight simulated HTTP
workers, which run several times faster than real time, and runs them on the virtual clock of
`benchmarks.routing`. The workers use blocks of 16 tokens and cache answers too, and the router sees
bytes and learns how many make a token; the virtual clock knows blocks of 512 tokens. Mean TTFT must
agree; hit rates are shown beside it.
"""

import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from statistics import fmean
from sys import executable
from time import monotonic, sleep
from typing import Annotated, NamedTuple

import httpx
import typer
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from benchmarks.harness.processes import free_ports, started
from benchmarks.harness.router import router
from benchmarks.routing.columns import Column, Task, cell
from benchmarks.routing.drive import EngineFleet
from benchmarks.routing.policies import policy_named
from benchmarks.routing.workloads import Talk, Work, faster, mooncake
from router.replay.plan import Options
from router.replay.run import replay_trace
from simulator.engine.profiles import PROFILES

PROFILE = "llama-3.1-8b-h100"
WORKERS = 8
FLEET = EngineFleet(PROFILES[PROFILE], WORKERS)
#: Names in the settings, and the corresponding policies in `benchmarks.routing`.
STRATEGIES = {"roundrobin": "round robin", "leastload": "leastload", "prefixaware": "prefixaware"}
#: Largest relative difference in TTFT at which the two runs agree.
APART = 0.15
#: Runs on the virtual clock, and how many seconds later each request may come in all but the first.
#: Where prompts are not looked at, hits are chance: such a shift alone changes them by a tenth.
RUNS, SHIFT_S = 12, 0.02
#: So many runs through sockets, for the same reason: round robin does not depend on time.
REPEATS = {"leastload": 3, "prefixaware": 3}
_READY_S = 30.0
_ROOT = Path(__file__).parents[2]


class How(NamedTuple):
    """How much of the trace to run, and how fast."""

    limit: int
    rate: float
    speed: float


class Seen(NamedTuple):
    """The result of one run."""

    ttft_s: float
    hit_rate: float


def main(
    trace: Annotated[Path, typer.Argument(exists=True, help="In Mooncake's form.")],
    *,
    limit: Annotated[int, typer.Option(min=1, help="Requests.")] = 1_500,
    rate: Annotated[float, typer.Option(help="Of the trace's own.")] = 1.0,
    speed: Annotated[float, typer.Option(help="Simulated seconds a second.")] = 4.0,
    strategy: Annotated[list[str] | None, typer.Option(help="Only these.")] = None,
) -> None:
    """Run both ways and compare. The exit code is 1 where they lie too far apart."""
    err = Console(stderr=True)
    table = Table(title=f"Sockets against the virtual clock, {limit:,} requests")
    for heading in ("strategy", "TTFT, sockets", "virtual", "", "hits, sockets", "virtual", "", ""):
        table.add_column(heading, justify="left" if heading == "strategy" else "right")
    names = strategy or list(STRATEGIES)
    if not set(names) <= STRATEGIES.keys():
        raise typer.BadParameter(f"a strategy is one of {', '.join(STRATEGIES)}")
    agreed, how = True, How(limit, rate, speed)
    with tempfile.TemporaryDirectory(prefix="warmroute-sockets-") as name:
        folder = Path(name)
        with _fleet(folder, speed) as ports:
            for one in names:
                err.print(f"{one}: through sockets")
                repeats = range(REPEATS.get(one, 1))
                sockets = _mean([_through_sockets(folder, ports, one, trace, how) for _ in repeats])
                row, good = compared(one, sockets, _virtual(trace, one, how))
                table.add_row(*row)
                agreed = agreed and good
    Console(width=100).print(table)
    if not agreed:
        raise typer.Exit(1)


def compared(label: str, sockets: Seen, virtual: Seen) -> tuple[list[str], bool]:
    """Return a row of the table, and whether the two agree on TTFT."""
    off = [there / here - 1.0 for there, here in zip(sockets, virtual, strict=True)]
    good = abs(off[0]) <= APART
    cells = [f"{sockets.ttft_s:.3f}", f"{virtual.ttft_s:.3f}", f"{off[0]:+.1%}"]
    cells += [f"{sockets.hit_rate:.3f}", f"{virtual.hit_rate:.3f}", f"{off[1]:+.1%}"]
    return [label, *cells, "agrees" if good else "differs"], good


@contextmanager
def _fleet(folder: Path, speed: float) -> Iterator[list[int]]:
    """Run the simulated workers until the block ends; yields their ports."""
    first = _first_of(WORKERS)
    words = ["simulate", "--workers", str(WORKERS), "--port", str(first), "--profile", PROFILE]
    command = [executable, "-m", "router", *words, "--speed", str(speed)]
    log = folder / "fleet.log"
    with started(command, log, {"PYTHONPATH": str(_ROOT)}) as process:
        ports = list(range(first, first + WORKERS))
        deadline = monotonic() + _READY_S
        while not all(map(_answers, ports)):
            if process.poll() is not None or monotonic() > deadline:
                raise typer.BadParameter(f"the workers do not answer: {log.read_text()[-2000:]}")
            sleep(0.1)
        yield ports


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").is_success
    except httpx.TransportError:
        return False


def _first_of(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    for first in (port for _ in range(100) for port in free_ports(1)):
        with ExitStack() as stack, suppress(OSError, OverflowError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise typer.BadParameter(f"no {count} free ports in a row")


def _through_sockets(
    folder: Path, ports: Sequence[int], strategy: str, trace: Path, how: How
) -> Seen:
    for port in ports:
        httpx.post(f"http://127.0.0.1:{port}/reset_prefix_cache").raise_for_status()
    workers = [{"url": f"http://127.0.0.1:{port}"} for port in ports]
    settings = {"workers": workers, "strategy": strategy, "logs": {"level": "warning"}}
    with router(folder, settings) as running:
        options = Options(
            url=f"http://127.0.0.1:{running.port}",
            rate=how.rate,
            speed=how.speed,
            limit=how.limit,
            stream_interval=16,
        )
        report = replay_trace(trace, options)
    if report.failed or report.ttft_s is None or report.hit_rate is None:
        raise typer.BadParameter(f"{strategy}: {report.failed} requests failed: {report.errors}")
    for warning in report.warnings:
        Console(stderr=True).print(f"{strategy}: {warning}", markup=False)
    return Seen(report.ttft_s.mean, report.hit_rate)


def _virtual(trace: Path, strategy: str, how: How) -> Seen:
    """Return the mean of `RUNS` runs on the virtual clock."""
    whole = mooncake(trace, 0)  # the seed with which `warmroute replay` spreads timestamps
    talks = sorted(whole.talks, key=lambda talk: talk.at_s)[: how.limit]
    policy = policy_named(STRATEGIES[strategy])
    column = Column(strategy, lambda seed, rate: _work(talks, seed, rate), FLEET, how.rate)
    cells = [cell(Task(column, policy, number)) for number in range(RUNS)]
    return _mean([Seen(one.ttft_s, one.hit_rate) for one in cells])


def _work(talks: Sequence[Talk], number: int, rate: float) -> Work:
    return faster(Work("trace", shifted(talks, number)), rate)


def _mean(seen: Sequence[Seen]) -> Seen:
    return Seen(fmean(run.ttft_s for run in seen), fmean(run.hit_rate for run in seen))


def shifted(talks: Sequence[Talk], number: int) -> list[Talk]:
    """Return the talks, each up to `SHIFT_S` later by chance; those of run 0 as they are."""
    chance = Random(number)
    later = [replace(talk, at_s=talk.at_s + chance.uniform(0.0, SHIFT_S)) for talk in talks]
    return sorted(later, key=lambda talk: talk.at_s) if number else list(talks)


if __name__ == "__main__":
    typer.run(main)
