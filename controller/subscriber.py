"""Listening to engines over ZeroMQ: the edge of the controller.

A SUB socket for each address: with one engine behind each, nobody can speak for another. A DEALER
socket for each replay. What is heard goes to a `Source`, which says what must be asked for. Where
the address has a wildcard for its host we bind, and engines dial in: one, or several that their
topics tell apart (`line`).

Source: vLLM `distributed/kv_events.py`; its replies may have three frames or four.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable
from time import monotonic
from typing import Any

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from controller.line import Line
from controller.source import UNEXPECTED, Source
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
#: Seconds between two looks at what has to wait, and two tries to bind an address that is taken.
TICK_S = 0.5
_END = b"\xff" * 8
#: Bytes of one message that a socket takes in.
_LARGEST = 32 << 20


class Subscriber:
    """Subscriptions to engines, from `follow` to `close`."""

    def __init__(self) -> None:
        self._context = zmq.asyncio.Context()
        self._lines: dict[object, tuple[Line, asyncio.Task[None]]] = {}
        """By the address where engines dial in, or by the one engine that is connected to."""
        self._followed: dict[Source, tuple[object, asyncio.Task[None]]] = {}
        self._replays = asyncio.Semaphore(REPLAYS)
        self._asking: dict[asyncio.Task[None], Source] = {}
        """Replays that are under way."""

    def follow(
        self,
        source: Source,
        endpoint: str,
        replay: str | None,
        topic: str = "",
        names: Iterable[str] = (),
    ) -> None:
        """Listen to an engine, which goes by these `names` where others dial in at the same address
        of ours. A bad address is logged, and tried no more."""
        place: object = endpoint if binds(endpoint) else source
        line, listening = self._lines.get(place, (Line(), None))
        line.add(source, replay, {source.worker, *names})
        if listening is None:
            subscribed = "" if binds(endpoint) else topic
            listening = asyncio.create_task(self._listen(line, endpoint, subscribed))
        self._lines[place] = line, listening
        ticking = asyncio.create_task(self._tick(source, replay))
        self._followed[source] = place, ticking

    def leave(self, sources: Iterable[Source]) -> Coroutine[Any, Any, None]:
        """Listen to these no more: nothing of theirs is applied from now on; to be awaited, for
        their sockets are still to be closed."""
        sources = set(sources)
        ended = [task for task, source in self._asking.items() if source in sources]
        for source in sources:
            if source in self._followed:
                place, ticking = self._followed.pop(source)
                ended.append(ticking)
                line, listening = self._lines[place]
                if line.remove(source):
                    del self._lines[place]
                    ended.append(listening)
        for task in ended:
            task.cancel()
        return _end(ended)

    async def close(self) -> None:
        """Listen to nobody any more."""
        await self.leave(list(self._followed))
        self._context.destroy(linger=0)

    async def _listen(self, line: Line, endpoint: str, topic: str) -> None:
        socket = self._context.socket(zmq.SUB)
        watching: asyncio.Task[None] | None = None
        try:
            socket.set_hwm(HIGH_WATER)
            socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST)
            socket.setsockopt(zmq.IPV6, "[" in endpoint)  # not for names: engines bind IPv4 then
            socket.subscribe(topic)
            monitor = socket.get_monitor_socket(
                zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            )
            watching = asyncio.create_task(self._watch(line, monitor))
            if not await _attached(socket, endpoint):
                return
            while True:
                self._hear(line, await socket.recv_multipart())
                with contextlib.suppress(zmq.Again):
                    for _ in range(TURN):
                        self._hear(line, await socket.recv_multipart(zmq.NOBLOCK))
                await asyncio.sleep(0)
        finally:
            if watching is not None:
                await _end([watching])
            socket.disable_monitor()
            socket.close(linger=0)

    async def _watch(self, line: Line, monitor: Any) -> None:  # noqa: ANN401
        """Tell the sources whether the connection stands.

        Where several dial in, nobody knows whose it is: one is there once it is heard, or has
        answered for what was missed, and when one breaks, each must show that it goes on.
        """
        try:
            while True:
                event = await recv_monitor_message(monitor)
                gone = event["event"] == zmq.EVENT_DISCONNECTED
                for source, replay in list(line.replays.items()):
                    if not gone and (replay or not line.shared):
                        self._ask(source, source.opened(monotonic()), replay)
                    elif gone:
                        source.doubted() if line.shared else source.disconnected()
        finally:
            monitor.close(linger=0)

    async def _tick(self, source: Source, replay: str | None) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._ask(source, source.tick(monotonic()), replay)

    def _hear(self, line: Line, frames: list[bytes]) -> None:
        """Hand on a message. Raises nothing: all that follow on this line are still to be heard."""
        source = line.of(frames[0])
        if source is None:
            return
        try:
            self._hand_on(line, source, frames)
        except Exception as error:  # noqa: BLE001 - see above
            _count(source, error)

    def _hand_on(self, line: Line, source: Source, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[1]) != 8:
            source.refused["odd frames"] += 1
            return
        now, replay = monotonic(), line.replays[source]
        if line.shared and not source.connected:
            self._ask(source, source.opened(now), replay)
        sequence = int.from_bytes(frames[1], "big")
        self._ask(source, source.heard(sequence, frames[2], now), replay)

    def _ask(self, source: Source, asks: list[Ask], replay: str | None) -> None:
        for ask in asks:
            if replay is not None:
                task = asyncio.create_task(self._replay(source, ask, replay))
                self._asking[task] = source
                task.add_done_callback(self._asking.pop)

    async def _replay(self, source: Source, ask: Ask, endpoint: str) -> None:
        """Ask for what was missed, and hand it on."""
        async with self._replays:
            socket = self._context.socket(zmq.DEALER)
            try:
                socket.set_hwm(HIGH_WATER)
                socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST)
                socket.setsockopt(zmq.IPV6, "[" in endpoint)
                socket.connect(endpoint)
                async with asyncio.timeout(REPLAY_S):
                    await socket.send_multipart([b"", ask.start.to_bytes(8, "big")])
                    asks = await self._take(source, ask, socket)
            except (TimeoutError, zmq.ZMQError) as error:
                why = str(error) or "no answer in time"
                log.warning("worker %s: kv_replay %s: %s", source.worker, endpoint, why)
                asks = source.replay_failed(ask.round, monotonic())
            except Exception as error:  # noqa: BLE001 - it is asked again, as after any failure
                _count(source, error)
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
    """Whether engines dial in there: the host is any of ours, and not one of theirs."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    return host in ("*", "0.0.0.0", "[::]", "::")  # noqa: S104 - as the operator has it


def _count(source: Source, error: Exception) -> None:
    """Note a fault of ours, by its kind alone: what was in the message may be a prompt."""
    source.refused[UNEXPECTED] += 1
    if source.refused[UNEXPECTED] == 1:
        log.error("worker %s: KV events: unexpected %s", source.worker, type(error).__name__)


async def _attached(socket: zmq.asyncio.Socket, endpoint: str) -> bool:
    """Connect, or bind as soon as nobody else does; False where the address is none."""
    told = False
    while True:
        try:
            socket.bind(endpoint) if binds(endpoint) else socket.connect(endpoint)
        except zmq.ZMQError as error:
            if not told:
                log.error("KV events at %s: %s", endpoint, error)
            told = True
            if error.errno != zmq.EADDRINUSE:
                return False
            await asyncio.sleep(TICK_S)
        else:
            return True


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
