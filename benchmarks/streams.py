"""Thousands of streams at once: `python -m benchmarks.streams`.

Holds many streams open through a router, each with some events a second, as chats have, and reports
how many events arrive, how late, and at what CPU cost. The lag of the router's event loop is
measured from outside: a probe requests the liveness endpoint every 20 ms, and workers stamp every
event with the time it was sent. At the end the clients disconnect in mid-stream.

Workers and clients share the machine with the router. Their share of a core is shown. If the
machine is saturated, the numbers are its limits rather than the router's, and a note says so.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness.bench import Bench, RunningProxy
from benchmarks.harness.load import quantile_ms
from benchmarks.harness.processes import (
    NotReady,
    Stopped,
    cpu_seconds,
    machine_seconds,
    memory_bytes,
)
from benchmarks.harness.proxies import PROXIES, TIMES, Group, ProxyProcess, programs
from benchmarks.harness.streams import BUSY_ABOVE, ENDLESS_EVENTS, PHASES, Watchers
from benchmarks.harness.stub import StubSettings

#: A proxy is saturated below this share of the due events.
SATURATED_BELOW = 0.97

_err = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class StreamsRow:
    """The results of one proxy with `streams` streams; shares are of one core."""

    proxy: str
    streams: int
    begun: int
    broken: int
    due: float
    """Events a second that the streams that began should deliver."""
    delivered: float
    delay_p50_ms: float
    delay_p99_ms: float
    idle_p99_ms: float
    """Latency of the probe before the streams were opened."""
    probe_p50_ms: float
    probe_p99_ms: float
    proxy_share: float
    event_us: float
    stream_kb: float
    worker_shares: float
    """The sum over all workers."""
    client_shares: float
    busiest: float
    """The share of the busiest worker or client."""
    other_share: float
    """Everything else on the machine."""

    @property
    def saturated(self) -> bool:
        """Return true if events fall short of what is due, or streams did not begin."""
        return self.delivered < SATURATED_BELOW * self.due or self.begun < self.streams


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """The measurement to make: numbers of streams, events per second of each, and duration."""

    streams: Sequence[int]
    rate: float
    seconds: float


def main(
    *,
    streams: Annotated[
        list[int] | None, typer.Option(help="Streams at once; repeat. Default: 1000 and 5000.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Events a second of each stream.")] = 20.0,
    seconds: Annotated[float, typer.Option(help="How long to look.")] = 10.0,
    processes: Annotated[
        int | None, typer.Option(help="Given to `warmroute serve`. Default: not given.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that send events.")] = 8,
    clients: Annotated[int, typer.Option(min=1, help="Processes that take them.")] = 2,
    peer: Annotated[
        list[str] | None, typer.Option(help="NAME=COMMAND of a proxy; repeat for more.")
    ] = None,
    warmroute: Annotated[
        str | None, typer.Option(help="Command of another Warmroute than this environment's.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only proxies with this in their name; repeat.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here.")] = None,
) -> None:
    """Measure and print the table. Proxies run by round robin; litellm only if it is named."""
    plan = StreamPlan(streams or [1000, 5000], rate, seconds)
    try:
        commands = programs(peer or [], warmroute)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    chosen = [
        proxy
        for proxy in PROXIES
        if proxy.group is not Group.AWARE and proxy.program in commands and TIMES not in proxy.mode
        if (any(part in proxy.name for part in only) if only else not proxy.slow)
    ]
    settings = StubSettings(events=ENDLESS_EVENTS, step_s=1 / rate, phases=PHASES)
    rows: list[StreamsRow] = []
    try:
        with Bench(workers, settings) as bench, Watchers(clients) as watchers:
            for proxy in chosen:
                options = ["--processes", str(processes)] if processes else []
                own = options if proxy.program == "warmroute" else []
                with bench.running(proxy, commands[proxy.program], own) as running:
                    rows += _levels(bench, watchers, proxy, running, plan)
    except (Stopped, NotReady) as error:
        _err.print(str(error), markup=False)
        raise typer.Exit(1) from None
    Console(width=160).print(_table(rows))
    for note in _notes(rows):
        print(note)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def _levels(
    bench: Bench, watchers: Watchers, proxy: ProxyProcess, running: RunningProxy, plan: StreamPlan
) -> list[StreamsRow]:
    idle = watchers.idle(proxy.alive, running.port)
    pids = (*running.pids, *bench.stub_pids)
    rows = []
    for count in plan.streams:
        with _err.status(f"{proxy.name}: {count} streams"):
            begun = watchers.hold(running.port, count)
            memory = memory_bytes(running.pids) - running.rest_bytes
            watchers.look((proxy.alive,), running.port, plan.seconds)
            machine, used = _shares(pids, plan.seconds)
            probe, seen = watchers.seen()
        own, workers = used[: len(running.pids)], used[len(running.pids) :]
        clients = [client.cpu / client.wall for client in seen]
        delivered = sum(client.events / client.wall for client in seen)
        delays = sorted(delay for client in seen for delay in client.delays)
        rows.append(
            StreamsRow(
                proxy=proxy.program,
                streams=count,
                begun=begun,
                broken=sum(client.broken for client in seen),
                due=begun * plan.rate,
                delivered=delivered,
                delay_p50_ms=quantile_ms(delays, 0.5),
                delay_p99_ms=quantile_ms(delays, 0.99),
                idle_p99_ms=quantile_ms(sorted(idle.answers[proxy.alive]), 0.99),
                probe_p50_ms=quantile_ms(sorted(probe.answers[proxy.alive]), 0.5),
                probe_p99_ms=quantile_ms(sorted(probe.answers[proxy.alive]), 0.99),
                proxy_share=sum(own),
                event_us=sum(own) / max(delivered, 1.0) * 1e6,
                stream_kb=memory / max(begun, 1) / 1e3,
                worker_shares=sum(workers),
                client_shares=sum(clients),
                busiest=max(*workers, *clients),
                other_share=max(machine - sum(used) - sum(clients), 0.0),
            )
        )
    return rows


def _shares(pids: Sequence[int], seconds: float) -> tuple[float, list[float]]:
    """Measure for `seconds` the shares of a core that the machine and each process use."""
    began, machine = time.perf_counter(), machine_seconds()
    before = [cpu_seconds(pid) for pid in pids]
    time.sleep(seconds)
    wall = time.perf_counter() - began
    used = [(cpu_seconds(pid) - start) / wall for pid, start in zip(pids, before, strict=True)]
    return (machine_seconds() - machine) / wall, used


def _table(rows: Sequence[StreamsRow]) -> Table:
    table = Table(title="Streams held at once; times in ms", title_justify="left")
    for heading in (
        *("", "streams", "due/s", "got/s", "delay p50", "p99", "probe idle p99", "p50", "p99"),
        *("CPU", "µs/event", "kB/stream", "workers", "clients", "others"),
    ):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            *(row.proxy, f"{row.begun:,}", f"{row.due:,.0f}", f"{row.delivered:,.0f}"),
            *(f"{row.delay_p50_ms:.1f}", f"{row.delay_p99_ms:.1f}", f"{row.idle_p99_ms:.1f}"),
            *(f"{row.probe_p50_ms:.1f}", f"{row.probe_p99_ms:.1f}", f"{row.proxy_share:.0%}"),
            *(f"{row.event_us:.1f}", f"{row.stream_kb:.1f}"),
            *(f"{row.worker_shares:.0%}", f"{row.client_shares:.0%}"),
            f"{row.other_share:.0%}",
        )
    return table


def _notes(rows: Sequence[StreamsRow]) -> list[str]:
    """Say where each proxy saturated, and where something else was the limit."""
    cores = len(os.sched_getaffinity(0))
    notes = [f"The machine has {cores} cores; CPU, workers, clients and others are shares of one."]
    for row in rows:
        name = f"{row.proxy}, {row.streams:,} streams:"
        if row.begun < row.streams:
            notes.append(f"{name} {row.streams - row.begun:,} never began")
        if row.broken:
            notes.append(f"{name} {row.broken:,} broke off")
        known = row.proxy_share + row.worker_shares + row.client_shares
        if known + row.other_share > BUSY_ABOVE * cores:
            notes.append(f"{name} WARNING: nothing was left of the machine, whose limits these are")
        elif row.busiest > BUSY_ABOVE:
            notes.append(f"{name} WARNING: a worker or a client was busy all the time")
        elif row.saturated:
            notes.append(f"{name} saturated at {row.delivered:,.0f} events a second")
    return notes


if __name__ == "__main__":
    typer.run(main)
