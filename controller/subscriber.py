"""Listening to engines over ZeroMQ: the edge of the controller.

A SUB socket for each address: with one engine behind each, nobody can speak for another. A DEALER
socket for each replay. What is heard goes to a `Source`, which says what must be asked for. Where
the address has a wildcard for its host we bind, and engines dial in: one, or several that their
topics tell apart (`line`).

Source: vLLM `distributed/kv_events.py`; its replies may have three frames or four.
"""

import asyncio
import contextlib
import errno
import logging
from collections.abc import Coroutine, Iterable
from time import monotonic
from typing import Any

import zmq
import zmq.asyncio

from controller.line import Line, binds
from controller.sockets import Change, Monitor, attach, by_ipv6, context, opened
from controller.source import UNEXPECTED, Source
from controller.stream import Ask
from controller.turns import Turns

log = logging.getLogger("warmroute.controller")

#: Replays at once: an engine that replays publishes nothing meanwhile.
REPLAYS = 8
#: Seconds a replay may pause, and take in all: those of a whole fleet share the loop with requests.
PAUSE_S, REPLAY_S = 5.0, 600.0
#: Seconds between two looks at what has to wait.
TICK_S = 0.5
#: Seconds until a socket is made anew, where there was none to be had, or its connection is dead.
AGAIN_S = 1.0
_END = b"\xff" * 8
#: For want of sockets, descriptors or memory, which may come back. All else is said of addresses.
_LACKING = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))
#: What came over a connection ended it, and ZeroMQ does not say what.
ENDED = "ended the connection"


class Subscriber:
    """Subscriptions to engines, from `follow` to `close`."""

    def __init__(self) -> None:
        self._context = context()
        self._turns = Turns()
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
        """Go on listening, whatever happens to a socket; give up where the address is none."""
        said = ""
        while True:
            try:
                await self._listen_once(line, endpoint, topic)
            except zmq.ZMQError as error:
                if error.errno not in _LACKING:
                    log.error("KV events at %s: %s", endpoint, error)
                    return
                if said != (said := str(error)):
                    log.error("KV events at %s: %s; it is tried again", endpoint, error)
            await asyncio.sleep(AGAIN_S)

    async def _listen_once(self, line: Line, endpoint: str, topic: str) -> None:
        """Until its connection is dead. Raises ZMQError."""
        socket = opened(self._context, zmq.SUB, ipv6=await by_ipv6(endpoint))
        tasks: list[asyncio.Task[None]] = []
        monitor: Monitor | None = None
        try:
            socket.subscribe(topic)
            monitor = Monitor(socket, endpoint)
            tasks.append(asyncio.create_task(self._watch(line, monitor, endpoint)))
            await attach(socket, endpoint)
            tasks.append(asyncio.create_task(self._hear_all(line, socket)))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _end(tasks)
            if monitor is not None:
                monitor.close()
            socket.close(linger=0)

    async def _hear_all(self, line: Line, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await socket.recv_multipart()
            async with self._turns:
                self._hear(line, frames)
                with contextlib.suppress(zmq.Again):
                    while self._turns.left():
                        self._hear(line, await socket.recv_multipart(zmq.NOBLOCK))

    async def _watch(self, line: Line, monitor: Monitor, endpoint: str) -> None:
        """Tell the sources whether the connection stands; return when it is dead.

        Where several dial in, nobody knows whose it is: one is there once it is heard, or has
        answered for what was missed, and when one breaks, each must show that it goes on.
        """
        while (change := await monitor.change()) is not Change.DEAD:
            for source, replay in list(line.replays.items()):
                if change is Change.LOST:
                    source.doubted() if line.shared else source.disconnected()
                elif replay or not line.shared:
                    self._ask(source, source.opened(monotonic()), replay)
        for source in line:
            source.refused[ENDED] += 1
        log.warning("KV events at %s: something that came over it %s", endpoint, ENDED)

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
            try:
                asks = await self._replay_once(source, ask, endpoint)
            except (TimeoutError, zmq.ZMQError) as error:
                why = str(error) or "no answer in time"
                log.warning("worker %s: kv_replay %s: %s", source.worker, endpoint, why)
                asks = source.replay_failed(ask.round, monotonic())
            except Exception as error:  # noqa: BLE001 - it is asked again, as after any failure
                _count(source, error)
                asks = source.replay_failed(ask.round, monotonic())
        self._ask(source, asks, endpoint)

    async def _replay_once(self, source: Source, ask: Ask, endpoint: str) -> list[Ask]:
        """Return what must be asked for next. Raises TimeoutError, ZMQError."""
        socket = opened(self._context, zmq.DEALER, ipv6=await by_ipv6(endpoint))
        try:
            socket.connect(endpoint)
            async with asyncio.timeout(REPLAY_S):
                await socket.send_multipart([b"", ask.start.to_bytes(8, "big")])
                return await self._take_all(source, ask, socket)
        finally:
            socket.close(linger=0)

    async def _take_all(self, source: Source, ask: Ask, socket: zmq.asyncio.Socket) -> list[Ask]:
        """Hand on replies up to the end; return what must be asked for next."""
        while True:
            async with asyncio.timeout(PAUSE_S):
                frames = await socket.recv_multipart()
            async with self._turns:
                asks = _taken(source, ask, frames)
                with contextlib.suppress(zmq.Again):
                    while asks is None and self._turns.left():
                        asks = _taken(source, ask, await socket.recv_multipart(zmq.NOBLOCK))
                if asks is not None:
                    return asks


def _taken(source: Source, ask: Ask, frames: list[bytes]) -> list[Ask] | None:
    """Hand on a reply; return what must be asked for next, if that was the last."""
    number, payload = (frames[-2], frames[-1]) if len(frames) >= 3 else (b"", b"")
    if number == _END and not payload:
        return source.replay_ended(ask.round, monotonic())
    if len(number) != 8:
        source.refused["odd frames"] += 1
        return None
    return source.replayed(ask.round, int.from_bytes(number, "big"), payload) or None


def _count(source: Source, error: Exception) -> None:
    """Note a fault of ours, by its kind alone: what was in the message may be a prompt."""
    source.refused[UNEXPECTED] += 1
    if source.refused[UNEXPECTED] == 1:
        log.error("worker %s: KV events: unexpected %s", source.worker, type(error).__name__)


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
