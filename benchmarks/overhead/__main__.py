"""The command: which proxies are measured, and what is printed."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from benchmarks.harness.bench import Bench, RunningProxy
from benchmarks.harness.processes import NotReady, Stopped, memory_bytes
from benchmarks.harness.proxies import PROXIES, TIMES, programs, version
from benchmarks.harness.stub import StubSettings
from benchmarks.overhead.cells import REQUEST_COUNTS, Measurement, cases, measure
from benchmarks.overhead.tables import OverheadReport

#: Workers behind every proxy.
WORKERS = 2
#: Seconds between two events of a paced stream: an engine's step under some load.
EVENT_INTERVAL_S = 0.01

_err = Console(stderr=True, highlight=False, soft_wrap=True)


def main(
    *,
    peer: Annotated[
        list[str] | None, typer.Option(help="NAME=COMMAND of a proxy; repeat for more.")
    ] = None,
    warmroute: Annotated[
        str | None, typer.Option(help="Command of another Warmroute than this environment's.")
    ] = None,
    before: Annotated[
        str | None, typer.Option(help="Command of one more Warmroute, to be compared with.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only proxies with this in their name; repeat.")
    ] = None,
    size: Annotated[
        list[int] | None,
        typer.Option(help=f"Bytes, of {list(REQUEST_COUNTS)}; repeat."),
    ] = None,
    cores: Annotated[
        int, typer.Option(min=0, help="Cores for the proxy alone; 0: it shares all of them.")
    ] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="How often everything is measured.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="A quarter of the requests.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write every single measurement here.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print for a document.")] = False,
) -> None:
    """Measure and print the tables."""
    sizes = size or list(REQUEST_COUNTS)
    if unknown := set(sizes) - set(REQUEST_COUNTS):
        raise typer.BadParameter(f"--size: {unknown} not of {list(REQUEST_COUNTS)}")
    try:
        commands = programs(peer or [], warmroute, before)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        with Bench(WORKERS, StubSettings(step_s=EVENT_INTERVAL_S), cores) as bench:
            running = [bench.direct(), *_start(bench, commands, only or [""], cores)]
            loads = cases(sizes, 4 if quick else 1)
            cells = list(
                track(
                    measure(bench, running, loads, rounds),
                    "Measuring",
                    total=rounds * len(loads) * len(running),
                    console=_err,
                    transient=True,
                )
            )
            memory = {proxy.name: memory_bytes(proxy.pids) for proxy in running}
    except (Stopped, NotReady, ValueError) as error:
        _err.print(str(error), markup=False)
        raise typer.Exit(1) from None
    about = _about(commands, running, rounds, cores)
    _print(OverheadReport(cells, running, memory), about, markdown=markdown)
    if json_file is not None:
        json_file.write_text(_json(about, running, memory, cells))


def _start(
    bench: Bench, commands: dict[str, list[str]], only: Sequence[str], cores: int
) -> list[RunningProxy]:
    chosen = [
        proxy
        for proxy in PROXIES
        if proxy.program in commands
        and any(part in proxy.name for part in only)
        and (cores != 1 or TIMES not in proxy.mode)
    ]
    return [
        bench.start(proxy, commands[proxy.program])
        for proxy in track(chosen, "Starting", console=_err, transient=True)
    ]


def _about(
    commands: dict[str, list[str]], running: Sequence[RunningProxy], rounds: int, cores: int
) -> str:
    used = {proxy.name.split()[0] for proxy in running if proxy.group}
    versions = [f"{name} {version(commands[name], name)}" for name in commands if name in used]
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    room = f"each on {cores} core{'s' * (cores > 1)} of its own" if cores else "all cores shared"
    return f"{', '.join(sorted(versions))}; {machine}; {room}; medians of {rounds} rounds."


def _print(report: OverheadReport, about: str, *, markdown: bool) -> None:
    out = Console()
    for grid in report.grids():
        if markdown:
            print(grid.markdown())
        else:
            out.print(grid.rich())
    for line in (*report.notes(), about):
        print(line)


def _json(
    about: str,
    running: Sequence[RunningProxy],
    memory: dict[str, int],
    cells: Sequence[Measurement],
) -> str:
    rest = {proxy.name: proxy.rest_bytes for proxy in running}
    content = {
        "about": about,
        "memory_at_rest": rest,
        "memory_after": memory,
        "cells": [asdict(cell) for cell in cells],
    }
    return json.dumps(content, indent=1) + "\n"


if __name__ == "__main__":
    typer.run(main)
