"""The command: the small request beside each neighbour, and their table."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness.bench import Bench
from benchmarks.harness.load import quantile_ms
from benchmarks.harness.processes import NotReady, Stopped, child, memory_bytes
from benchmarks.harness.router import Router, keying_router
from benchmarks.harness.stub import StubSettings
from benchmarks.neighbours.clients import ClientJob, ProbeAnswers, send, send_nicely
from benchmarks.neighbours.requests import NEIGHBOURS
from benchmarks.prompts.model import model_folder

#: Seconds between two small requests, and between two samples of the router's memory.
REQUEST_INTERVAL_S, SAMPLE_INTERVAL_S = 0.01, 0.1
#: Seconds of small requests before anything is measured.
_WARM_UP_S = 2.0
#: More workers than the neighbour has connections, so that the small request never has to wait for
#: one: what is measured is the router.
STUBS = 6

_err = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class NeighbourRow:
    """The results of one neighbour; times in milliseconds, memory in bytes."""

    name: str
    size: int
    """Bytes of its body."""
    statuses: dict[int, int]
    rate: float
    """Its answers a second."""
    p50_ms: float
    p99_ms: float
    worst_ms: float
    alone_p99_ms: float
    """Of the small request just before, without it."""
    rss: int
    """Memory afterwards."""


def main(
    *,
    only: Annotated[list[str] | None, typer.Option(help="Part of a name; repeat.")] = None,
    at_once: Annotated[int, typer.Option(help="The neighbour's connections.")] = 4,
    seconds: Annotated[float, typer.Option(help="How long to look at each.")] = 6.0,
    rest: Annotated[float, typer.Option(help="Seconds of rest before memory is read.")] = 60.0,
    tokens: Annotated[bool, typer.Option(help="With a tokenizer.")] = True,
    model: Annotated[
        Path | None, typer.Option(help="A model's folder. By default, one is made.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here.")] = None,
) -> None:
    """Measure and print the table."""
    names = [name for name in NEIGHBOURS if not only or any(part in name for part in only)]
    tokenizer = (model or model_folder("chatml")) if tokens else None
    rows: list[NeighbourRow] = []
    try:
        with (
            Bench(STUBS, StubSettings(tokenizes=False)) as bench,
            child(send) as (probe, _),
            child(send_nicely) as (neighbour, _),
            keying_router(bench.ports, tokenizer) as served,
        ):
            _small(probe, served.port, _WARM_UP_S)
            before = memory_bytes(served.pids)
            with _highest(served) as highest:
                for name in names:
                    with _err.status(name):
                        job = ClientJob(served.port, seconds, name, at_once)
                        rows.append(_row(probe, neighbour, job, served))
            with _err.status("a rest"):
                time.sleep(rest)
            after = memory_bytes(served.pids)
            if not served.ready():
                raise NotReady("the router does not answer any more")
    except (Stopped, NotReady) as error:
        _err.print(str(error), markup=False)
        raise typer.Exit(1) from None
    print(f"{'with' if tokens else 'without'} a tokenizer, {at_once} at once")
    Console(width=200).print(_table(rows))
    print(
        f"memory: {before / 1e6:.0f} MB before, {max(highest) / 1e6:.0f} MB at most,"
        f" {after / 1e6:.0f} MB after {rest:g} s"
    )
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def _row(
    probe: "Connection[Any, Any]",
    neighbour: "Connection[Any, Any]",
    job: ClientJob,
    served: Router,
) -> NeighbourRow:
    neighbour.send(ClientJob(job.port, 0, job.name))  # make the body
    size: int = neighbour.recv()
    alone = _small(probe, job.port, job.seconds)
    neighbour.send(ClientJob(job.port, job.seconds + 0.5, job.name, job.at_once))
    time.sleep(0.25)
    beside = _small(probe, job.port, job.seconds)
    answers: ProbeAnswers = neighbour.recv()
    return NeighbourRow(
        name=job.name,
        size=size,
        statuses=answers.statuses,
        rate=len(answers.seconds) / (job.seconds + 0.5),
        p50_ms=quantile_ms(beside, 0.5),
        p99_ms=quantile_ms(beside, 0.99),
        worst_ms=quantile_ms(beside, 1.0),
        alone_p99_ms=quantile_ms(alone, 0.99),
        rss=memory_bytes(served.pids),
    )


def _small(probe: "Connection[Any, Any]", port: int, seconds: float) -> list[float]:
    probe.send(ClientJob(port, seconds, pause=REQUEST_INTERVAL_S))
    answers: ProbeAnswers = probe.recv()
    if set(answers.statuses) != {200}:
        raise NotReady(f"the small requests got {answers.statuses}")
    return sorted(answers.seconds)


@contextmanager
def _highest(served: Router) -> Iterator[list[int]]:
    """Sample the router's memory all the time."""
    samples, ended = [memory_bytes(served.pids)], threading.Event()

    def look() -> None:
        while not ended.wait(SAMPLE_INTERVAL_S):
            samples.append(memory_bytes(served.pids))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def _table(rows: Sequence[NeighbourRow]) -> Table:
    table = Table()
    for heading in (
        *("beside", "MB", "answers", "a second"),
        *("p50 ms", "p99 ms", "worst ms", "alone p99 ms", "added p99 ms", "memory MB"),
    ):
        table.add_column(heading, justify="left" if heading == "beside" else "right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.size / 1e6:.1f}",
            " ".join(f"{count}x{status}" for status, count in sorted(row.statuses.items())),
            f"{row.rate:.1f}",
            *(f"{ms:.1f}" for ms in (row.p50_ms, row.p99_ms, row.worst_ms, row.alone_p99_ms)),
            f"{row.p99_ms - row.alone_p99_ms:.1f}",
            f"{row.rss / 1e6:.0f}",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
