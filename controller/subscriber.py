"""Listening to engines over ZeroMQ: the edge of the controller.

A SUB socket for each engine, so that nobody can speak for another; a DEALER socket for each replay.
What is heard goes to a `Source`, which says what must be asked for. Where the address has a
wildcard for its host we bind, and the engine dials in.

Source: vLLM `distributed/kv_events.py`; its replies may have three frames or four.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from time import monotonic
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from controller.source import Source
from controller.stream import Ask

log = logging.getLogger("warmroute.controller")

#: Messages that are taken in one go before others get their turn.
TURN = 64
#: Messages that may wait in a socket.
HIGH_WATER = 100_000
#: Replays at once: an engine that replays publishes nothing meanwhile.
REPLAYS = 8
#: Seconds a replay may pause, and take in all.
PAUSE_S, REPLAY_S = 5.0, 120.0
#: Seconds between two looks at what has to wait.
TICK_S = 0.5
_END = b"\xff" * 8
#: Bytes of one message that a socket takes in.
_LARGEST = 32 << 20


class Subscriber:
    """Subscriptions to engines, from `follow` to `close`."""

    def __init__(self) -> None:
        self._context = zmq.asyncio.Context()
        self._tasks: dict[Source, list[asyncio.Task[None]]] = {}
        self._replays = asyncio.Semaphore(REPLAYS)
        self._asking: set[asyncio.Task[None]] = set()

    def follow(self, source: Source, endpoint: str, replay: str | None, topic: str = "") -> None:
        """Listen to an engine. A bad address is logged, and tried no more."""
        self._tasks[source] = [
            asyncio.create_task(self._listen(source, endpoint, replay, topic)),
            asyncio.create_task(self._tick(source, replay)),
        ]

    async def leave(self, sources: Iterable[Source]) -> None:
        """Listen to these no more."""
        tasks = [task for source in sources for task in self._tasks.pop(source, ())]
        await _end(tasks)

    async def close(self) -> None:
        """Listen to nobody any more."""
        await self.leave(list(self._tasks))
        await _end(self._asking)
        self._context.destroy(linger=0)

    async def _listen(self, source: Source, endpoint: str, replay: str | None, topic: str) -> None:
        socket = self._context.socket(zmq.SUB)
        watching: asyncio.Task[None] | None = None
        try:
            socket.set_hwm(HIGH_WATER)
            socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST)
            socket.subscribe(topic)
            monitor = socket.get_monitor_socket(
                zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            )
            watching = asyncio.create_task(self._watch(source, monitor, replay))
            try:
                socket.bind(endpoint) if binds(endpoint) else socket.connect(endpoint)
            except zmq.ZMQError as error:
                log.error("worker %s: kv_events %s: %s", source.worker, endpoint, error)
                return
            while True:
                self._hear(source, await socket.recv_multipart(), replay)
                with contextlib.suppress(zmq.Again):
                    for _ in range(TURN):
                        self._hear(source, await socket.recv_multipart(zmq.NOBLOCK), replay)
                await asyncio.sleep(0)
        finally:
            if watching is not None:
                await _end([watching])
            socket.disable_monitor()
            socket.close(linger=0)

    async def _watch(self, source: Source, monitor: Any, replay: str | None) -> None:  # noqa: ANN401
        """Tell the source whether the connection stands."""
        try:
            while True:
                event = await recv_monitor_message(monitor)
                if event["event"] == zmq.EVENT_DISCONNECTED:
                    source.disconnected()
                else:
                    self._ask(source, source.opened(monotonic()), replay)
        finally:
            monitor.close(linger=0)

    async def _tick(self, source: Source, replay: str | None) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._ask(source, source.tick(monotonic()), replay)

    def _hear(self, source: Source, frames: list[bytes], replay: str | None) -> None:
        if len(frames) != 3 or len(frames[1]) != 8:
            source.refused["odd frames"] += 1
            return
        sequence = int.from_bytes(frames[1], "big")
        self._ask(source, source.heard(sequence, frames[2], monotonic()), replay)

    def _ask(self, source: Source, asks: list[Ask], replay: str | None) -> None:
        for ask in asks:
            if replay is not None:
                task = asyncio.create_task(self._replay(source, ask, replay))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)

    async def _replay(self, source: Source, ask: Ask, endpoint: str) -> None:
        """Ask for what was missed, and hand it on."""
        async with self._replays:
            socket = self._context.socket(zmq.DEALER)
            try:
                socket.set_hwm(HIGH_WATER)
                socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST)
                socket.connect(endpoint)
                async with asyncio.timeout(REPLAY_S):
                    await socket.send_multipart([b"", ask.start.to_bytes(8, "big")])
                    asks = await self._take(source, ask, socket)
            except (TimeoutError, zmq.ZMQError) as error:
                why = str(error) or "no answer in time"
                log.warning("worker %s: kv_replay %s: %s", source.worker, endpoint, why)
                asks = source.replay_failed(ask.round, monotonic())
            finally:
                socket.close(linger=0)
        self._ask(source, asks, endpoint)

    async def _take(self, source: Source, ask: Ask, socket: zmq.asyncio.Socket) -> list[Ask]:
        """Hand on replies up to the end; return what must be asked for next."""
        taken = 0
        while True:
            async with asyncio.timeout(PAUSE_S):
                frames = await socket.recv_multipart()
            number, payload = (frames[-2], frames[-1]) if len(frames) >= 3 else (b"", b"")
            if number == _END and not payload:
                return source.replay_ended(ask.round, monotonic())
            if len(number) != 8:
                source.refused["odd frames"] += 1
                continue
            asks = source.replayed(ask.round, int.from_bytes(number, "big"), payload)
            if asks:
                return asks
            taken += 1
            if taken % TURN == 0:
                await asyncio.sleep(0)


def binds(endpoint: str) -> bool:
    """Whether an engine dials in there: the address is any of ours, and not one of its own."""
    return "*" in endpoint or "::" in endpoint or "//0.0.0.0:" in endpoint


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
