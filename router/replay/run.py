"""Replays traces and conversations against any OpenAI-compatible server, and measures it."""

import asyncio
import signal
import ssl
import threading
from pathlib import Path

import uvloop
from rich.console import Console

from router.replay.client import FrontDoor
from router.replay.drive import Drive
from router.replay.plan import Endpoint, Options, Plan, ReplayError
from router.replay.progress import shown
from router.replay.report import Report, report_of
from simulator.traces import CHARS_PER_TOKEN, TraceError, read_trace, spread

__all__ = ["Options", "Plan", "ReplayError", "replay", "replay_trace", "run", "trace_plan"]


async def replay(
    plan: Plan,
    options: Options,
    *,
    console: Console | None = None,
    stop: asyncio.Event | None = None,
) -> Report:
    """Send a plan's requests and report on the answers, including failed ones.

    Once `stop` is set, nothing more is sent, requests in flight are cancelled, and the report
    covers the answers so far. Cancelling the task itself raises CancelledError as usual.
    """
    plan = plan.limited(options.limit)
    async with FrontDoor(options) as door:
        drive = Drive(plan, options, door)
        async with shown(drive.tally, console):
            await drive.until(stop or asyncio.Event())
        return report_of(drive.run, plan, options, door.model)


def run(plan: Plan, options: Options, *, console: Console | None = None) -> Report:
    """Replay on a new event loop; the first Ctrl-C ends it early, with a report so far."""

    async def main() -> Report:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def interrupted() -> None:
            stop.set()
            loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C interrupts at once

        if threading.current_thread() is not threading.main_thread():  # it gets no signals
            return await replay(plan, options, console=console)
        loop.add_signal_handler(signal.SIGINT, interrupted)
        try:
            return await replay(plan, options, console=console, stop=stop)
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    return uvloop.run(main())


def replay_trace(
    trace: Path,
    *,
    url: str = "http://127.0.0.1:8080",
    rate: float = 1.0,
    speed: float = 1.0,
    limit: int | None = None,
    endpoint: Endpoint = "chat",
    model: str | None = None,
    max_tokens: int | None = None,
    concurrency: int = 1000,
    timeout_s: float = 600.0,
    chars_per_token: int = CHARS_PER_TOKEN,
    stream_interval: int | None = None,
    ignore_eos: bool = True,
    api_key: str | None = None,
    trust: ssl.SSLContext | None = None,
    seed: int = 0,
    as_recorded: bool = False,
) -> Report:
    """Replay a trace file, as `warmroute replay` does. Raises ReplayError."""
    options = Options(
        url=url,
        rate=rate,
        speed=speed,
        limit=limit,
        endpoint=endpoint,
        model=model,
        max_tokens=max_tokens,
        concurrency=concurrency,
        timeout_s=timeout_s,
        chars_per_token=chars_per_token,
        stream_interval=stream_interval,
        ignore_eos=ignore_eos,
        api_key=api_key,
        trust=trust,
    )
    plan = trace_plan(trace, seed=seed, as_recorded=as_recorded)
    return run(plan, options, console=Console(stderr=True))


def trace_plan(trace: Path, *, seed: int = 0, as_recorded: bool = False) -> Plan:
    """Read a trace file into a plan. Raises ReplayError, which says what is wrong with the file.

    Requests with the same time stamp are spread over the gap to the next, unless `as_recorded`.
    """
    try:
        requests = list(read_trace(trace))
    except TraceError as error:
        raise ReplayError(str(error)) from error
    if not requests:
        raise ReplayError(f"{trace}: no requests in it")
    return Plan(trace.name, requests if as_recorded else spread(requests, seed))
