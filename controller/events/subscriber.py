"""Listening to engines over ZeroMQ: the I/O of the controller.

There is a SUB socket for each address; with one engine behind each, none can speak for another.
There is a DEALER socket for each replay. Messages go to a `Source`, which returns the replays to
ask for. If the host of an address is a wildcard, the socket binds and engines connect to it: one,
or several that are told apart by their topics (see `line`).

Source: vLLM `distributed/kv_events.py`; its replies have three or four frames.

Shares time on the event loop between the tasks that apply KV events and everything else.

Events are applied on the loop that serves requests. When a whole fleet replays, that is minutes of
work at once. So only one task at a time applies events, for a few milliseconds; then all others
get to run.
"""

import asyncio
import contextlib
import errno
import logging
from collections.abc import Coroutine, Iterable
from time import monotonic
from types import TracebackType
from typing import Any

import zmq
import zmq.asyncio

from controller.events.shared_socket import Line, binds
from controller.events.sockets import Change, Monitor, attach, by_ipv6, context, opened
from controller.events.source import UNEXPECTED, Source
from controller.events.stream import Ask

#: Length of a turn in seconds; it may be exceeded by one message.
TURN_S = 0.002


class Turns:
    """Turns in order of arrival: use `async with turns:`, and continue while `left()`."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._until = 0.0

    async def __aenter__(self) -> None:
        """Wait for a turn."""
        await self._lock.acquire()
        self._until = monotonic() + TURN_S

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """End the turn; let all other tasks run first."""
        try:
            if error is None:
                await asyncio.sleep(0)
        finally:
            self._lock.release()

    def left(self) -> bool:
        """Whether there is time left in this turn."""
        return monotonic() < self._until


log = logging.getLogger("warmroute.controller")

#: Most replays at once, since an engine publishes nothing while it replays.
REPLAYS = 8
#: Seconds that a replay may pause, and that it may take in all: the replays of a whole fleet share
#: the event loop with requests.
PAUSE_S, REPLAY_S = 5.0, 600.0
#: Seconds between two calls of `Source.tick`.
TICK_S = 0.5
#: Seconds until a socket is created again, after none could be created or its connection died.
AGAIN_S = 1.0
_END = b"\xff" * 8
#: Errors from a temporary lack of sockets, descriptors or memory. All others mean a bad address.
_LACKING = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))
#: Refusal reason: data that ZeroMQ could not parse, without saying what, ended the connection.
ENDED = "ended the connection"


class Subscriber:
    """Subscriptions to engines, from `follow` to `close`."""

    def __init__(self) -> None:
        self._context = context()
        self._turns = Turns()
        self._lines: dict[object, tuple[Line, asyncio.Task[None]]] = {}
        """By the address that is bound, or by the source that is connected to."""
        self._followed: dict[Source, tuple[object, asyncio.Task[None]]] = {}
        self._replays = asyncio.Semaphore(REPLAYS)
        self._asking: dict[asyncio.Task[None], Source] = {}
        """Running replays, and those that wait for a free place among `REPLAYS`."""

    def follow(
        self,
        source: Source,
        endpoint: str,
        replay: str | None,
        topic: str = "",
        names: Iterable[str] = (),
    ) -> None:
        """Listen to an engine.

        `names` are what its topic may call it, if several engines connect to one bound address. A
        bad address is logged and not tried again.
        """
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
        """Stop listening to these: from now on none of their events is applied.

        Await the result, which closes their sockets.
        """
        sources = set(sources)
        for source in sources:
            source.late.clear()  # a task that listens to others as well may be taking them
        return _end(self._tasks_of(sources))

    async def close(self) -> None:
        """Stop listening to all engines; late steps are left to who asks for their marks."""
        await _end(self._tasks_of(set(self._followed)))
        self._context.destroy(linger=0)

    def _tasks_of(self, sources: set[Source]) -> list[asyncio.Task[None]]:
        """Forget these; return the tasks that are of no use without them, cancelled."""
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
        return ended

    async def _listen(self, line: Line, endpoint: str, topic: str) -> None:
        """Keep listening, whatever happens to a socket; give up if the address is bad."""
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
        """Listen until the connection is dead. Raises ZMQError."""
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
            frames = await _at_once(line, socket) or await socket.recv_multipart()
            came = monotonic()
            async with self._turns:
                source = self._hear(line, frames, came)
                while not (source and source.late) and self._turns.left():
                    more = await _at_once(line, socket)
                    if more is None:
                        break
                    source = self._hear(line, more, monotonic())
            if source is not None and source.late:
                line.waits(monotonic())
                await self._catch_up(source)

    async def _catch_up(self, source: Source) -> None:
        """Take late steps, in turns. Nothing more is received meanwhile, so that none pile up."""
        while source.late:
            async with self._turns:
                while source.late:
                    source.catch_up()
                    if not self._turns.left():
                        break

    async def _watch(self, line: Line, monitor: Monitor, endpoint: str) -> None:
        """Tell the sources about changes of the connection; return when it is dead.

        If several engines connect to one address, it is unknown whose connection changed. One is
        connected once it is heard or has answered a replay; if a connection breaks, all of them are
        doubted until they show that they are still there.
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
            await self._catch_up(source)  # if who began with that has been cancelled

    def _hear(self, line: Line, frames: list[bytes], came: float) -> Source | None:
        """Hand on a message and return its source, if that is known.

        Never raises, so that the messages after it are still handled.
        """
        source = line.of(frames[0])
        if source is None:
            return None
        try:
            self._hand_on(line, source, frames, came)
        except Exception as error:  # noqa: BLE001 - see above
            _count(source, error)
        return source

    def _hand_on(self, line: Line, source: Source, frames: list[bytes], came: float) -> None:
        if len(frames) != 3 or len(frames[1]) != 8:
            source.refused["odd frames"] += 1
            return
        now, replay = monotonic(), line.replays[source]
        if line.shared and not source.connected:
            self._ask(source, source.opened(now), replay)
        sequence = int.from_bytes(frames[1], "big")
        self._ask(source, source.heard(sequence, frames[2], now, came), replay)

    def _ask(self, source: Source, asks: list[Ask], replay: str | None) -> None:
        for ask in asks:
            if replay is not None:
                task = asyncio.create_task(self._replay(source, ask, replay))
                self._asking[task] = source
                task.add_done_callback(self._asking.pop)

    async def _replay(self, source: Source, ask: Ask, endpoint: str) -> None:
        """Request a replay, and hand on its messages."""
        async with self._replays:
            try:
                asks = await self._replay_once(source, ask, endpoint)
            except (TimeoutError, zmq.ZMQError) as error:
                why = str(error) or "no answer in time"
                log.warning("worker %s: kv_replay %s: %s", source.worker, endpoint, why)
                asks = source.replay_failed(ask.round, monotonic())
            except Exception as error:  # noqa: BLE001 - replayed again, as after any failure
                _count(source, error)
                asks = source.replay_failed(ask.round, monotonic())
        self._ask(source, asks, endpoint)
        await self._catch_up(source)

    async def _replay_once(self, source: Source, ask: Ask, endpoint: str) -> list[Ask]:
        """Return the replays to ask for next. Raises TimeoutError, ZMQError."""
        socket = opened(self._context, zmq.DEALER, ipv6=await by_ipv6(endpoint))
        try:
            socket.connect(endpoint)
            async with asyncio.timeout(REPLAY_S):
                await socket.send_multipart([b"", ask.start.to_bytes(8, "big")])
                return await self._take_all(source, ask, socket)
        finally:
            socket.close(linger=0)

    async def _take_all(self, source: Source, ask: Ask, socket: zmq.asyncio.Socket) -> list[Ask]:
        """Hand on replies up to the end; return the replays to ask for next."""
        while True:
            async with asyncio.timeout(PAUSE_S):
                frames = await socket.recv_multipart()
            async with self._turns:
                asks = _taken(source, ask, frames)
                with contextlib.suppress(zmq.Again):
                    while asks is None and not source.late and self._turns.left():
                        asks = _taken(source, ask, await socket.recv_multipart(zmq.NOBLOCK))
            if asks is not None:
                return asks
            await self._catch_up(source)


async def _at_once(line: Line, socket: zmq.asyncio.Socket) -> list[bytes] | None:
    """Return a message that waits; None, after telling the line, if there is none."""
    try:
        return await socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        line.caught_up()
        return None


def _taken(source: Source, ask: Ask, frames: list[bytes]) -> list[Ask] | None:
    """Hand on a reply; None to go on, or the replays to ask for if this one is over."""
    number, payload = (frames[-2], frames[-1]) if len(frames) >= 3 else (b"", b"")
    if number == _END and not payload:
        return source.replay_ended(ask.round, monotonic())
    if len(number) != 8:
        source.refused["odd frames"] += 1
        return None
    return source.replayed(ask.round, int.from_bytes(number, "big"), payload) or None


def _count(source: Source, error: Exception) -> None:
    """Count an unexpected exception, and log its type only: its message may contain a prompt."""
    source.refused[UNEXPECTED] += 1
    if source.refused[UNEXPECTED] == 1:
        log.error("worker %s: KV events: unexpected %s", source.worker, type(error).__name__)


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
