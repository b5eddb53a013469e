"""Runs a plan: sends requests when they are due and collects the answers.

Traces are an open loop: a request is sent at its time, whatever happened to earlier ones.
Conversations are a closed loop: a turn follows the previous answer after some think time.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from time import perf_counter
from typing import Any

from router.replay.client import FrontDoor, Message
from router.replay.plan import Options, Plan
from router.replay.progress import Tally
from router.replay.report import Run, Sample
from simulator.traces import TraceRequest, prompt_text
from simulator.workloads import Conversation

_Start = Callable[[float], Coroutine[Any, Any, None]]


class Drive:
    """Runs one plan and records what happens."""

    def __init__(self, plan: Plan, options: Options, door: FrontDoor) -> None:
        self.run = Run()
        self.tally = Tally(plan.total)
        self._options = options
        self._door = door
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
            return self._door.body([{"role": "user", "content": text}], request.output_tokens)

        await self._send(due, body)

    async def _conversation(self, talk: Conversation, due: float) -> None:
        messages: list[Message] = [{"role": "system", "content": talk.system}]
        for sent, turn in enumerate(talk.turns):
            if sent:
                due = perf_counter() + turn.think_s / self._options.speed
                await asyncio.sleep(turn.think_s / self._options.speed)
            messages.append({"role": "user", "content": turn.user})
            body = partial(self._door.body, messages, turn.answer_tokens)
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
                sample = await self._door.send(body(), collect=collect)
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
