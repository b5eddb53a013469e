"""`warmroute demo`: the same traffic on a simulated fleet with two strategies, side by side.

The fleet runs in a process of its own; the router and the traffic run here, over real sockets.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Annotated

import httpx
import typer
import uvloop
from rich.console import Console

from router.app import create_app
from router.cli.terminal import INTERRUPTED, address_of, fail
from router.http.server import PortTaken, Server, bind
from router.replay.plan import Options, ReplayError, ReplayPlan
from router.replay.report import Report, comparison
from router.replay.run import replay
from router.settings.model import Settings
from router.settings.types import Address
from simulator.fleet import SimulatedFleet, run_fleet
from simulator.settings import FleetSettings
from simulator.workloads import Conversation, chats, document_questions

STRATEGIES = ("roundrobin", "prefixaware")
#: Strategies replaced for serving: after the demo, users may try sessions too, unlike the traffic.
SERVES = {"prefixaware": "session"}
WORKERS = 8
#: Simulated seconds per second: fast enough to be short, slow enough for two shared cores.
SPEED = 4.0
#: Simulated seconds over which users arrive.
SPAN_S = 40.0
MODEL = "llama-3.1-8b"


class DemoError(Exception):
    """The demo cannot go on; the message is a sentence that says why."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the command."""

    listen: Address
    workers: int = WORKERS
    once: bool = False
    seed: int = 1


def run_demo(
    once: Annotated[bool, typer.Option("--once", help="End after the comparison.")] = False,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT of the prefixaware router.")
    ] = "127.0.0.1:8080",
    seed: Annotated[int, typer.Option(help="Seed of the generated workload.")] = 1,
) -> None:
    """Compare roundrobin and prefixaware on a simulated fleet, with real HTTP traffic."""
    options = DemoOptions(listen=address_of(listen), once=once, seed=seed)
    try:
        code = uvloop.run(
            run(options, Console(), Console(stderr=True, highlight=False, soft_wrap=True))
        )
    except KeyboardInterrupt:
        raise fail("interrupted", INTERRUPTED) from None
    except (DemoError, PortTaken, ReplayError) as error:
        raise fail(str(error)) from None
    raise typer.Exit(code)


def _run_fleet(settings: FleetSettings, parent: Connection) -> None:
    """Serve in the child until told to stop; send the parent the URLs, or what went wrong."""
    os.setsid()  # Ctrl-C is for the parent, which ends this process when it is done

    def end_with_the_parent() -> None:
        with contextlib.suppress(EOFError, OSError):
            parent.recv()
        os.kill(os.getpid(), signal.SIGTERM)

    def ready(fleet: SimulatedFleet) -> None:
        parent.send([worker.url for worker in fleet.workers])
        threading.Thread(target=end_with_the_parent, daemon=True).start()

    try:
        run_fleet(settings, ready)
    except OSError as error:
        parent.send(str(error))


@contextlib.asynccontextmanager
async def _fleet(options: DemoOptions) -> AsyncIterator[list[str]]:
    """Run the simulated fleet while the block runs; yield the workers' URLs."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    settings = FleetSettings(workers=options.workers, models=(MODEL,), speed=SPEED, kv_events=False)
    process = spawn.Process(target=_run_fleet, args=(settings, theirs), daemon=True)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited, until the child is ready
    process.start()
    signal.signal(signal.SIGINT, before)
    theirs.close()
    try:
        try:
            urls = await asyncio.get_running_loop().run_in_executor(None, ours.recv)
        except EOFError:
            urls = "it ended before it was ready"
        if isinstance(urls, str):
            raise DemoError(f"The simulated fleet did not start: {urls}.")
        yield urls
    finally:
        process.terminate()
        process.join(10)


@contextlib.asynccontextmanager
async def _router(strategy: str, urls: list[str], listen: Address) -> AsyncIterator[str]:
    """Serve with one strategy while the block runs; yield its URL."""
    workers = [{"url": url, "name": f"sim-{place}"} for place, url in enumerate(urls, start=1)]
    settings = Settings.model_validate(
        {
            "listen": listen,
            "auth": "none",  # a public address for a demo is given on purpose
            "workers": workers,
            "strategy": SERVES.get(strategy, strategy),
            "logs": {"level": "warning"},
            "shutdown": {"delay": "0s"},
        }
    )
    listener = bind(settings.listen)
    running = Server(create_app(settings), settings.shutdown)
    task = asyncio.create_task(running.serve([listener]))
    await running.started.wait()
    try:
        yield f"http://{Address(listen.host, listener.getsockname()[1])}"
    finally:
        running.stop()
        await task


async def run(options: DemoOptions, out: Console, err: Console) -> int:
    """Run the demo; return the exit code. Raises DemoError and PortTaken."""
    stop, signals, concluded = asyncio.Event(), list[int](), False

    def end(number: int) -> None:
        signals.append(number)
        stop.set()

    bind(options.listen).close()  # if the port is taken, fail now, not after the first half
    if not options.listen.is_loopback:
        warning = f"{options.listen} can be reached from other machines, and everyone is let in."
        err.print(warning, highlight=False, markup=False)
    err.print(f"Starting {options.workers} simulated workers (Llama 3.1 8B, one H100 each).")
    async with _fleet(options) as urls:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end, number)
        reports: dict[str, Report] = {}
        for strategy in STRATEGIES:
            await _forget(urls)
            address = options.listen if strategy == STRATEGIES[-1] else Address("127.0.0.1", 0)
            async with _router(strategy, urls, address) as url:
                plan = ReplayPlan(
                    "multi-turn chats and questions on documents", (), _workload(options)
                )
                err.print(f"{strategy}: {plan.total} requests through {url}")
                replaying = Options(url=url, speed=SPEED, stream_interval=4)
                reports[strategy] = await replay(plan, replaying, console=err, stop=stop)
                if strategy == STRATEGIES[-1] and not stop.is_set():
                    _conclude(reports, out)
                    concluded = True
                    if not options.once:
                        _invite(url, out)
                        await stop.wait()
            if stop.is_set():
                break
    if not concluded:
        err.print("interrupted")
        return 128 + signals[0]
    return 1 if any(report.failed for report in reports.values()) else 0


def _workload(options: DemoOptions) -> list[Conversation]:
    """Make multi-turn chats and questions on documents, at about half of the fleet's capacity."""
    talks = chats(
        options.seed,
        conversations=12 * options.workers,
        turns=4,
        system_tokens=3000,
        shared_systems=0.1,
        user_tokens=400,
        answer_tokens=100,
        think_s=4.0,
        over_s=SPAN_S,
    )
    questions = document_questions(
        options.seed,
        documents=options.workers,
        questions=8,
        document_tokens=16_000,
        over_s=SPAN_S,
    )
    return [*talks, *questions]


async def _forget(urls: list[str]) -> None:
    """Empty every worker's cache, so that both strategies start alike."""
    async with httpx.AsyncClient(trust_env=False) as client:
        for url in urls:
            (await client.post(f"{url}/reset_prefix_cache")).raise_for_status()


def _conclude(reports: dict[str, Report], out: Console) -> None:
    out.print(comparison(reports))
    out.print(
        f"Times are in seconds of the simulated fleet, which runs {SPEED:g} times faster than"
        " the clock. Hit rate: prompt tokens that workers found in their KV cache.",
        style="dim",
    )
    for name, report in reports.items():
        for warning in report.warnings:
            out.print(f"{name}: {warning}", markup=False)


def _invite(url: str, out: Console) -> None:
    out.print(
        f"""
Still serving on {url} (prefixaware, with sessions) until Ctrl-C. Send this twice; the second
x-warmroute-decision says "prefix", and how many tokens the worker already holds:

  curl -i {url}/v1/completions -H 'content-type: application/json' \\
    -d "{{\\"prompt\\":\\"$(printf 'Why is the sky blue? %.0s' $(seq 100))\\"}}"

  {url}/workers   {url}/metrics   {url}/docs
""",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
