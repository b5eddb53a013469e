"""Runs a plan: sends requests when they are due and collects the answers.

Traces are an open loop: a request is sent at its time, whatever happened to earlier ones.
Conversations are a closed loop: a turn follows the previous answer after some think time. Progress
goes to stderr: a bar on a terminal, otherwise a line every ten seconds.
"""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from router.replay.client import Message, ReplayClient
from router.replay.plan import Options, ReplayError, ReplayPlan
from router.replay.report import Report, Run, Sample, report_of
from simulator.traces import (
    TraceError,
    TraceRequest,
    prompt_text,
    read_trace,
    spread,
)
from simulator.workloads import Conversation

REDRAW_INTERVAL_S = 0.25
LINE_INTERVAL_S = 10.0


@dataclass(slots=True)
class Tally:
    """Counts while a replay runs."""

    total: int
    done: int = 0
    in_flight: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def __str__(self) -> str:
        hits = f"{self.cached_tokens / self.prompt_tokens:.0%}" if self.prompt_tokens else "-"
        return f"{self.in_flight} in flight, {self.errors} errors, hit rate {hits}"


@asynccontextmanager
async def shown(tally: Tally, console: Console | None) -> AsyncIterator[None]:
    """Show the tally on the console while the block runs; do nothing if that is None."""
    if console is None:
        yield
        return
    showing = asyncio.create_task(
        _bar(tally, console) if console.is_terminal else _lines(tally, console)
    )
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def _bar(tally: Tally, console: Console) -> None:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    # Redrawn from here and not from rich's own thread, which would take CPU at any moment.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        bar = progress.add_task("", total=tally.total)
        while True:
            progress.update(bar, completed=tally.done, description=str(tally), refresh=True)
            await asyncio.sleep(REDRAW_INTERVAL_S)


async def _lines(tally: Tally, console: Console) -> None:
    began = perf_counter()
    while True:
        await asyncio.sleep(LINE_INTERVAL_S)
        passed = perf_counter() - began
        console.print(f"{passed:.0f} s: {tally.done} of {tally.total} done, {tally}", markup=False)


_Start = Callable[[float], Coroutine[Any, Any, None]]


class Drive:
    """Runs one plan and records what happens."""

    def __init__(self, plan: ReplayPlan, options: Options, client: ReplayClient) -> None:
        self.run = Run()
        self.tally = Tally(plan.total)
        self._options = options
        self._client = client
        self._slots = asyncio.Semaphore(options.concurrency)
        starts: list[tuple[float, _Start]] = [
            *((request.at_s, partial(self._request, request)) for request in plan.requests),
            *((talk.start_s, partial(self._conversation, talk)) for talk in plan.conversations),
        ]
        self._starts = sorted(starts, key=lambda start: start[0])

    async def until(self, stop: asyncio.Event) -> None:
        """Run to the end, or until told to stop."""
        began = perf_counter()
        everything = asyncio.create_task(self._everything())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({everything, stopped}, return_when=asyncio.FIRST_COMPLETED)
            self.run.interrupted = not everything.done()
        finally:
            everything.cancel()
            stopped.cancel()
            await asyncio.gather(everything, stopped, return_exceptions=True)
            self.run.wall_s = perf_counter() - began
        if not everything.cancelled():
            everything.result()  # raises if there was a bug of our own

    async def _everything(self) -> None:
        faster = self._options.rate * self._options.speed
        first = self._starts[0][0] if self._starts else 0.0
        began = perf_counter()
        async with asyncio.TaskGroup() as group:
            for at, start in self._starts:
                due = began + (at - first) / faster
                await asyncio.sleep(max(0.0, due - perf_counter()))
                group.create_task(start(due))

    async def _request(self, request: TraceRequest, due: float) -> None:
        def body() -> bytes:
            text = prompt_text(request, self._options.chars_per_token)
            return self._client.body([{"role": "user", "content": text}], request.output_tokens)

        await self._send(due, body)

    async def _conversation(self, talk: Conversation, due: float) -> None:
        messages: list[Message] = [{"role": "system", "content": talk.system}]
        for sent, turn in enumerate(talk.turns):
            if sent:
                due = perf_counter() + turn.think_s / self._options.speed
                await asyncio.sleep(turn.think_s / self._options.speed)
            messages.append({"role": "user", "content": turn.user})
            body = partial(self._client.body, messages, turn.answer_tokens)
            sample = await self._send(due, body, collect=True)
            if sample.fault:  # without an answer, the conversation cannot go on
                left = len(talk.turns) - sent - 1
                self.run.skipped += left
                self.tally.done += left
                return
            messages.append({"role": "assistant", "content": sample.text})

    async def _send(
        self, due: float, body: Callable[[], bytes], *, collect: bool = False
    ) -> Sample:
        late = perf_counter() - due
        self.run.waited_for_slot += self._slots.locked()
        async with self._slots:
            free_at = perf_counter()
            self.tally.in_flight += 1
            try:
                sample = await self._client.send(body(), collect=collect)
            finally:
                self.tally.in_flight -= 1
        self.run.lags.append(late + sample.sent_at - free_at)
        self._note(sample)
        return sample

    def _note(self, sample: Sample) -> None:
        self.run.samples.append(sample)
        self.tally.done += 1
        self.tally.errors += sample.fault is not None
        if sample.usage:
            self.tally.prompt_tokens += sample.usage.prompt_tokens
            self.tally.cached_tokens += sample.usage.cached_tokens or 0


async def replay(
    plan: ReplayPlan,
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
    async with ReplayClient(options) as client:
        drive = Drive(plan, options, client)
        async with shown(drive.tally, console):
            await drive.until(stop or asyncio.Event())
        return report_of(drive.run, plan, options, client.model)


def run(plan: ReplayPlan, options: Options, *, console: Console | None = None) -> Report:
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
    trace: Path, options: Options, *, seed: int = 0, as_recorded: bool = False
) -> Report:
    """Replay a trace file, as `warmroute replay` does. Raises ReplayError."""
    plan = trace_plan(trace, seed=seed, as_recorded=as_recorded)
    return run(plan, options, console=Console(stderr=True))


def trace_plan(trace: Path, *, seed: int = 0, as_recorded: bool = False) -> ReplayPlan:
    """Read a trace file into a plan. Raises ReplayError, which says what is wrong with the file.

    Requests with the same time stamp are spread over the gap to the next, unless `as_recorded`.
    """
    try:
        requests = list(read_trace(trace))
    except TraceError as error:
        raise ReplayError(str(error)) from error
    if not requests:
        raise ReplayError(f"{trace}: no requests in it")
    return ReplayPlan(trace.name, requests if as_recorded else spread(requests, seed))
