"""The effect of long prompts on other requests: `python -m benchmarks.lag`.

Holds streams through a router while new prompts of 128,000 tokens arrive, ten a second, and
measures the delay of the streams' events and of liveness answers: without the long prompts, with
them keyed by their text, and with them tokenized.

The workers are stubs that answer at once. Everything runs on this machine, including the workers,
the streams' clients and the sender of the long prompts.
"""

import asyncio
import json
import os
import signal
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

from benchmarks.harness.bench import Bench
from benchmarks.harness.load import HEADERS, quantile_ms
from benchmarks.harness.processes import (
    NotReady,
    Stopped,
    child,
    cpu_seconds,
    machine_seconds,
)
from benchmarks.harness.router import Router, keying_router
from benchmarks.harness.streams import BUSY_ABOVE, ENDLESS_EVENTS, PHASES, Watchers
from benchmarks.harness.stub import MODEL, StubSettings
from benchmarks.prompts.model import Texts, body, model_folder

#: Paths of the liveness probes.
PATHS = ("/health/live", "/ping", "/health")
#: Seconds of long prompts before measuring.
_WARM_UP_S = 2.0
#: Seconds after which a request is given up.
_TIMEOUT_S = 20.0

_err = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class LongPrompts:
    """A job of the sender: where to send long prompts, how many, and for how long."""

    port: int
    rate: float
    """Prompts a second."""
    seconds: float


@dataclass(slots=True)
class TimedAnswer:
    """The result of a job."""

    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    """From the first byte sent to the answer's head, for each answered request."""
    failed: int = 0


@dataclass(frozen=True, slots=True)
class LagRow:
    """The results of one case; times in milliseconds, shares of one core."""

    keys: str
    """What prompts are keyed by."""
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
    model: Annotated[
        Path | None, typer.Option(help="A model's folder. By default, one is made.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here.")] = None,
) -> None:
    """Measure and print the table."""
    with _err.status("making the model's folder, if it is not there"):
        folder = model or model_folder("headers")
    settings = StubSettings(
        events=ENDLESS_EVENTS, step_s=1 / events, phases=PHASES, tokenizes=False
    )
    rows: list[LagRow] = []
    # Enough that no router gets the same prompt twice.
    count = int(rate * (_WARM_UP_S + seconds + 1)) + 1
    try:
        with (
            Bench(2, settings) as bench,
            Watchers(1) as watchers,
            child(send_long, folder, tokens, count) as (sender, _),
        ):
            with _err.status("making the long prompts"):
                size = sender.recv()
            case = _Case(watchers, sender, streams, seconds)
            for keys in ("text", "tokens"):
                tokenizer = folder if keys == "tokens" else None
                with (
                    _err.status(f"by {keys}: warming up"),
                    keying_router(bench.ports, tokenizer) as served,
                ):
                    case.warm_up(served, rate)
                    rows += [case.measure(served, keys, each) for each in (0.0, rate)]
    except (Stopped, NotReady) as error:
        _err.print(str(error), markup=False)
        raise typer.Exit(1) from None
    title = f"{streams} streams of {events:g} events a second; long prompts of {size:,} bytes"
    Console(width=200).print(_table(title, rows))
    cores = len(os.sched_getaffinity(0))
    if any(row.machine_share > BUSY_ABOVE * cores for row in rows):
        print("WARNING: nothing was left of the machine; the longest times may be other programs'")
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


class _Case:
    """Holds streams, sends long prompts, and measures."""

    def __init__(
        self, watchers: Watchers, sender: "Connection[Any, Any]", streams: int, seconds: float
    ) -> None:
        self._watchers = watchers
        self._sender = sender
        self._streams = streams
        self._seconds = seconds

    def warm_up(self, served: Router, rate: float) -> None:
        """Send long prompts without measuring."""
        self._sender.send(LongPrompts(served.port, rate, _WARM_UP_S))
        self._sender.recv()

    def measure(self, served: Router, keys: str, rate: float) -> LagRow:
        """Return the results at `rate` long prompts a second."""
        self._watchers.hold(served.port, self._streams)
        tokenized = _tokenized(served)
        # A second longer than the measurement.
        self._sender.send(LongPrompts(served.port, rate, self._seconds + 1))
        self._watchers.look(PATHS, served.port, self._seconds)
        began, machine = time.perf_counter(), machine_seconds()
        pids = served.pids
        cpu = sum(map(cpu_seconds, pids))
        time.sleep(self._seconds)
        wall = time.perf_counter() - began
        machine, cpu = machine_seconds() - machine, sum(map(cpu_seconds, pids)) - cpu
        probe, seen = self._watchers.seen()
        answered: TimedAnswer = self._sender.recv()
        delays = sorted(delay for client in seen for delay in client.delays)
        waits = sorted(answered.seconds)
        return LagRow(
            keys=keys,
            rate=rate,
            delay_p50_ms=quantile_ms(delays, 0.5),
            delay_p99_ms=quantile_ms(delays, 0.99),
            delay_worst_ms=quantile_ms(delays, 1.0),
            alive_ms={path: _quantiles(sorted(times)) for path, times in probe.answers.items()},
            long_p50_ms=quantile_ms(waits, 0.5),
            long_p99_ms=quantile_ms(waits, 0.99),
            failed=answered.failed,
            tokenized=_tokenized(served) - tokenized,
            router_share=cpu / wall,
            machine_share=machine / wall,
        )


def _tokenized(served: Router) -> int:
    """Return how many prompts were keyed by their tokens so far."""
    return int(served.metric("warmroute_prompts_total", keyed="tokens"))


def _quantiles(ordered: Sequence[float]) -> tuple[float, float, float]:
    return quantile_ms(ordered, 0.5), quantile_ms(ordered, 0.99), quantile_ms(ordered, 1.0)


def _table(title: str, rows: Sequence[LagRow]) -> Table:
    table = Table(
        title=f"{title}; times in ms, paths p50 / p99 / worst, CPU in cores", title_justify="left"
    )
    for heading in (
        *("keys", "long/s", "delay p50", "p99", "worst", *PATHS),
        *("long p50", "p99", "failed", "by tokens", "router", "machine"),
    ):
        table.add_column(heading, justify="left" if heading == "keys" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            *(row.keys, f"{row.rate:g}"),
            *(f"{row.delay_p50_ms:.1f}", f"{row.delay_p99_ms:.1f}", f"{row.delay_worst_ms:.1f}"),
            *(" / ".join(f"{ms:.1f}" for ms in row.alive_ms[path]) for path in PATHS),
            *(f"{row.long_p50_ms:.0f}", f"{row.long_p99_ms:.0f}", f"{row.failed}"),
            f"{row.tokenized}",
            *(f"{row.router_share:.2f}", f"{row.machine_share:.2f}"),
            end_section=row.rate > 0,
        )
    return table


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
            job: LongPrompts = pipe.recv()
            number = int(job.rate * job.seconds)
            chosen = [bodies[(at + place) % count] for place in range(number)]
            at += number
            pipe.send(uvloop.run(_send(job, chosen)))
    except (EOFError, ConnectionError):
        return


async def _send(job: LongPrompts, bodies: Sequence[bytes]) -> TimedAnswer:
    answered = TimedAnswer()
    began = time.perf_counter()

    async def send(number: int, body: bytes) -> None:
        await asyncio.sleep(began + number / job.rate - time.perf_counter())
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                seconds = await _ask(job.port, body)
        except (OSError, TimeoutError, EOFError):
            answered.failed += 1
        else:
            answered.seconds.append(seconds)

    await asyncio.gather(*(send(number, body) for number, body in enumerate(bodies)))
    return answered


async def _ask(port: int, body: bytes) -> float:
    """Send a request; return the seconds to the answer's head. Raises OSError, EOFError."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        began = time.perf_counter()
        writer.write((HEADERS % (port, len(body))).encode())
        writer.write(body)
        head = await reader.readuntil(b"\r\n\r\n")
        seconds = time.perf_counter() - began
        if not head.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(head[:100])
        return seconds
    finally:
        writer.transport.abort()


if __name__ == "__main__":
    typer.run(main)
