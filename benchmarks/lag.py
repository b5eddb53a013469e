"""The effect of long prompts on other requests: `python -m benchmarks.lag`.

Holds streams through a router while new prompts of 128,000 tokens arrive, ten a second, and
measures the delay of the streams' events and of liveness answers: without the long prompts, with
them keyed by their text, and with them tokenized, at several switch intervals of the interpreter
(how long a thread may keep the GIL while another one wants it).

The workers are stubs that answer at once. Everything runs on this machine, including the workers,
the streams' clients and the sender of the long prompts.

Sends long prompts at a fixed rate from its own process, and records how long each takes.
"""

import asyncio
import json
import os
import signal
import sys
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from benchmarks.harness.bench import Bench, Standing
from benchmarks.harness.load import HEADERS
from benchmarks.harness.processes import NotReady, Stopped, child, cpu_seconds, machine_seconds
from benchmarks.harness.proxies import Proxy
from benchmarks.harness.stub import MODEL, StubSettings
from benchmarks.lag_router import await_tokenizer, router_with, total
from benchmarks.prompts.model import Texts, body, model_folder
from benchmarks.streams import BUSY, ENDLESS, PHASES, Watchers, quantile

#: Seconds after which a request is given up.
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Long:
    """A job: where to send long prompts, how many, and for how long."""

    port: int
    rate: float
    """Prompts a second."""
    seconds: float


@dataclass(slots=True)
class Sent:
    """The result of a job."""

    took: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds from the first byte sent to the answer's head, for each answered request."""
    failed: int = 0


def send_long(pipe: "Connection[Any, Any]", folder: Path, tokens: int, count: int) -> None:
    """Make `count` different bodies of `tokens` tokens, then run the jobs received on the pipe.

    Sends the size of a body in bytes first, then the result of each job. When all bodies were sent
    it starts over, so `count` must be large enough, or the tokenizer has them in its cache.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = Texts(7, lambda text: len(tokenizer.encode(text).ids))
    bodies = [body(texts.conversation(tokens), MODEL) for _ in range(count)]
    pipe.send(len(bodies[0]))
    at = 0
    try:
        while True:
            job: Long = pipe.recv()
            wanted = int(job.rate * job.seconds)
            chosen = [bodies[(at + number) % count] for number in range(wanted)]
            at += wanted
            pipe.send(uvloop.run(_send(job, chosen)))
    except (EOFError, ConnectionError):
        return


async def _send(job: Long, bodies: list[bytes]) -> Sent:
    sent = Sent()
    began = time.perf_counter()

    async def one(number: int, body: bytes) -> None:
        await asyncio.sleep(began + number / job.rate - time.perf_counter())
        try:
            async with asyncio.timeout(_PATIENCE_S):
                took = await _ask(job.port, body)
        except (OSError, TimeoutError, EOFError):
            sent.failed += 1
        else:
            sent.took.append(took)

    await asyncio.gather(*(one(number, body) for number, body in enumerate(bodies)))
    return sent


async def _ask(port: int, body: bytes) -> float:
    """Send a request; return the seconds to the answer's head. Raises OSError, EOFError."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        asked = time.perf_counter()
        writer.write((HEADERS % (port, len(body))).encode())
        writer.write(body)
        head = await reader.readuntil(b"\r\n\r\n")
        took = time.perf_counter() - asked
        if not head.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(head[:100])
        return took
    finally:
        writer.transport.abort()


#: Switch intervals in milliseconds; Python's default first, the router's own last.
INTERVALS = (5.0, 1.0, 0.5)
#: Paths of the liveness probes.
PATHS = ("/health/live", "/ping", "/health")
#: Seconds of long prompts before measuring.
_WARM_S = 2.0

_proxy = router_with
_err = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Row:
    """The results of one case; times in milliseconds, shares of one core."""

    mode: str
    """How prompts are keyed, and the switch interval in ms."""
    rate: float
    """Long prompts a second."""
    delay_p50_ms: float
    delay_p99_ms: float
    delay_worst_ms: float
    alive_ms: Mapping[str, tuple[float, float, float]]
    """Time to an answer by path: p50, p99, worst."""
    long_p50_ms: float
    long_p99_ms: float
    failed: int
    tokenized: int
    """Long prompts that were keyed by their tokens; the others were keyed by their text."""
    router_share: float
    machine_share: float
    """CPU use of everything on the machine, including the router."""


def main(
    *,
    streams: Annotated[int, typer.Option(help="Streams held meanwhile.")] = 100,
    events: Annotated[float, typer.Option(help="Events a second of each stream.")] = 20.0,
    rate: Annotated[float, typer.Option(help="Long prompts a second.")] = 10.0,
    tokens: Annotated[int, typer.Option(help="Tokens of a long prompt.")] = 128_000,
    seconds: Annotated[float, typer.Option(help="How long to look.")] = 10.0,
    interval: Annotated[
        list[float] | None, typer.Option(help="Switch interval, ms; repeat. Default: 5, 1, 0.5.")
    ] = None,
    template: Annotated[str, typer.Option(help="The model's chat template.")] = "headers",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here.")] = None,
) -> None:
    """Measure and print the table."""
    with _err.status("making the model's folder, if it is not there"):
        folder = model_folder(template)
    intervals = interval or INTERVALS
    cases = [(False, intervals[0]), *((True, one) for one in intervals)]
    settings = StubSettings(events=ENDLESS, step_s=1 / events, phases=PHASES, tokenizes=False)
    rows: list[Row] = []
    # Enough that no router gets the same prompt twice.
    count = int(rate * (_WARM_S + seconds + 1)) + 1
    try:
        with (
            Bench(2, settings) as bench,
            Watchers(1) as watchers,
            child(send_long, folder, tokens, count) as (sender, _),
        ):
            with _err.status("making the long prompts"):
                size = sender.recv()
            look = _Look(watchers, sender, streams, seconds)
            for tokenized, pause in cases:
                proxy = _proxy(folder if tokenized else None, pause)
                with bench.running(proxy, [sys.executable]) as standing:
                    with _err.status(f"{proxy.mode}: getting warm"):
                        await_tokenizer(standing.port, wanted=tokenized)
                        sender.send(Long(standing.port, rate, _WARM_S))
                        sender.recv()
                    for wanted in (0.0, rate):
                        with _err.status(f"{proxy.mode}: {wanted:g} long prompts a second"):
                            rows.append(look.at(proxy, standing, wanted))
    except (Stopped, NotReady) as error:
        _err.print(str(error), markup=False)
        raise typer.Exit(1) from None
    title = f"{streams} streams of {events:g} events a second; long prompts of {size:,} bytes"
    Console(width=200).print(_table(title, rows))
    cores = len(os.sched_getaffinity(0))
    if any(row.machine_share > BUSY * cores for row in rows):
        print("WARNING: nothing was left of the machine; the longest times may be other programs'")
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


class _Look:
    """Holds streams, sends long prompts, and measures."""

    def __init__(
        self, watchers: Watchers, sender: "Connection[Any, Any]", streams: int, seconds: float
    ) -> None:
        self._watchers = watchers
        self._sender = sender
        self._streams = streams
        self._seconds = seconds

    def at(self, proxy: Proxy, standing: Standing, rate: float) -> Row:
        """Return the results at `rate` long prompts a second."""
        self._watchers.hold(standing.port, self._streams)
        tokenized = _tokenized(standing.port)
        # A second longer than the measurement.
        self._sender.send(Long(standing.port, rate, self._seconds + 1))
        self._watchers.look(PATHS, standing.port, self._seconds)
        began, machine = time.perf_counter(), machine_seconds()
        # The process that tested the tokenizer when the router started has ended by now.
        pids = [pid for pid in standing.pids if Path(f"/proc/{pid}").exists()]
        used = sum(map(cpu_seconds, pids))
        time.sleep(self._seconds)
        wall = time.perf_counter() - began
        machine, used = machine_seconds() - machine, sum(map(cpu_seconds, pids)) - used
        probe, seen = self._watchers.seen()
        sent: Sent = self._sender.recv()
        delays = sorted(delay for one in seen for delay in one.delays)
        took = sorted(sent.took)
        alive = {path: sorted(waited) for path, waited in probe.answers.items()}
        return Row(
            mode=proxy.mode,
            rate=rate,
            delay_p50_ms=quantile(delays, 0.5),
            delay_p99_ms=quantile(delays, 0.99),
            delay_worst_ms=quantile(delays, 1.0),
            alive_ms={path: _quantiles(waited) for path, waited in alive.items()},
            long_p50_ms=quantile(took, 0.5),
            long_p99_ms=quantile(took, 0.99),
            failed=sent.failed,
            tokenized=_tokenized(standing.port) - tokenized,
            router_share=used / wall,
            machine_share=machine / wall,
        )


def _tokenized(port: int) -> int:
    """Return how many prompts were keyed by their tokens so far."""
    return total(port, "warmroute_prompts_total", 'keyed="tokens"')


def _quantiles(ordered: Sequence[float]) -> tuple[float, float, float]:
    return quantile(ordered, 0.5), quantile(ordered, 0.99), quantile(ordered, 1.0)


def _table(title: str, rows: Sequence[Row]) -> Table:
    table = Table(
        title=f"{title}; times in ms, paths p50 / p99 / worst, CPU in cores", title_justify="left"
    )
    for heading in (
        *("", "long/s", "delay p50", "p99", "worst", *PATHS),
        *("long p50", "p99", "failed", "by tokens", "router", "machine"),
    ):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            *(row.mode, f"{row.rate:g}"),
            *(f"{row.delay_p50_ms:.1f}", f"{row.delay_p99_ms:.1f}", f"{row.delay_worst_ms:.1f}"),
            *(" / ".join(f"{ms:.1f}" for ms in row.alive_ms[path]) for path in PATHS),
            *(f"{row.long_p50_ms:.0f}", f"{row.long_p99_ms:.0f}", f"{row.failed}"),
            f"{row.tokenized}",
            *(f"{row.router_share:.2f}", f"{row.machine_share:.2f}"),
            end_section=row.rate > 0,
        )
    return table


if __name__ == "__main__":
    typer.run(main)
