"""Listening to engines over ZeroMQ: the I/O of the controller.

There is a SUB socket for each address; with one engine behind each, none can speak for another.
There is a DEALER socket for each replay. Messages go to an `EventSource`, which returns the
replays to request. If the host of an address is a wildcard, the socket binds and engines connect to
it: one, or several that are told apart by their topics (see `SharedSocket`).

Events are applied on the loop that serves requests. When a whole fleet replays, that is minutes of
work at once. So only one task at a time applies events, for a few milliseconds; then all others
get to run.

Source: vLLM `distributed/kv_events.py`; its replies have three or four frames.
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

from controller.events.sockets import (
    DEFAULT_INTERVALS,
    ConnectionChange,
    Intervals,
    Monitor,
    attach,
    create_context,
    needs_ipv6,
    open_socket,
)
from controller.events.source import UNEXPECTED, EventSource, SharedSocket, binds
from controller.events.stream import ReplayRequest

log = logging.getLogger("warmroute.controller")

#: Most replays at once, since an engine publishes nothing while it replays.
MAX_REPLAYS = 8
#: Seconds that a replay may pause, and that it may take in all: the replays of a whole fleet share
#: the event loop with requests.
REPLAY_IDLE_TIMEOUT_S, REPLAY_TIMEOUT_S = 5.0, 600.0
_END_OF_REPLAY = b"\xff" * 8
#: Errors from a temporary lack of sockets, descriptors or memory. All others mean a bad address.
_TEMPORARY_ERRORS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))
#: Refusal reason: data that ZeroMQ could not parse, without saying what, ended the connection.
ENDED_CONNECTION = "ended the connection"


class TimeSlices:
    """Slices of time in order of arrival: `async with slices:`, and continue while `left()`."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._lock = asyncio.Lock()
        self._until = 0.0

    async def __aenter__(self) -> None:
        """Wait for a slice."""
        await self._lock.acquire()
        self._until = monotonic() + self._length_s

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """End the slice; let all other tasks run first."""
        try:
            if error is None:
                await asyncio.sleep(0)
        finally:
            self._lock.release()

    def left(self) -> bool:
        """Return true if there is time left in this slice."""
        return monotonic() < self._until


class Subscriber:
    """Subscriptions to engines, from `follow` to `close`."""

    def __init__(self, intervals: Intervals = DEFAULT_INTERVALS) -> None:
        self._intervals = intervals
        self._context = create_context()
        self._slices = TimeSlices(intervals.time_slice)
        self._sockets: dict[object, tuple[SharedSocket, asyncio.Task[None]]] = {}
        """By the address that is bound, or by the source that is connected to."""
        self._followed: dict[EventSource, tuple[object, asyncio.Task[None]]] = {}
        self._replays = asyncio.Semaphore(MAX_REPLAYS)
        self._requested: dict[asyncio.Task[None], EventSource] = {}
        """Running replays, and those that wait for a free place among `MAX_REPLAYS`."""

    def follow(
        self,
        source: EventSource,
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
        shared, listening = self._sockets.get(place, (SharedSocket(), None))
        shared.add(source, replay, {source.worker, *names})
        if listening is None:
            subscribed = "" if binds(endpoint) else topic
            listening = asyncio.create_task(self._listen(shared, endpoint, subscribed))
        self._sockets[place] = shared, listening
        ticking = asyncio.create_task(self._tick(source, replay))
        self._followed[source] = place, ticking

    def leave(self, sources: Iterable[EventSource]) -> Coroutine[Any, Any, None]:
        """Stop listening to these: from now on none of their events is applied.

        Await the result, which closes their sockets.
        """
        sources = set(sources)
        for source in sources:
            source.late.clear()  # a task that listens to others as well may be taking them
        return _cancel(self._tasks_of(sources))

    async def close(self) -> None:
        """Stop listening to all engines; late steps are left to whoever asks for their marks."""
        await _cancel(self._tasks_of(set(self._followed)))
        self._context.destroy(linger=0)

    def _tasks_of(self, sources: set[EventSource]) -> list[asyncio.Task[None]]:
        """Forget these; return the tasks that are of no use without them, cancelled."""
        ended = [task for task, source in self._requested.items() if source in sources]
        for source in sources:
            if source in self._followed:
                place, ticking = self._followed.pop(source)
                ended.append(ticking)
                shared, listening = self._sockets[place]
                if shared.remove(source):
                    del self._sockets[place]
                    ended.append(listening)
        for task in ended:
            task.cancel()
        return ended

    async def _listen(self, shared: SharedSocket, endpoint: str, topic: str) -> None:
        """Keep listening, whatever happens to a socket; give up if the address is bad."""
        logged = ""
        while True:
            try:
                await self._listen_once(shared, endpoint, topic)
            except zmq.ZMQError as error:
                if error.errno not in _TEMPORARY_ERRORS:
                    log.error("KV events at %s: %s", endpoint, error)
                    return
                if logged != (logged := str(error)):
                    log.error("KV events at %s: %s; it is tried again", endpoint, error)
            await asyncio.sleep(self._intervals.retry)

    async def _listen_once(self, shared: SharedSocket, endpoint: str, topic: str) -> None:
        """Listen until the connection is dead. Raises ZMQError."""
        socket = open_socket(self._context, zmq.SUB, ipv6=await needs_ipv6(endpoint))
        tasks: list[asyncio.Task[None]] = []
        monitor: Monitor | None = None
        try:
            socket.subscribe(topic)
            monitor = Monitor(socket, endpoint, self._intervals.reconnect)
            tasks.append(asyncio.create_task(self._watch(shared, monitor, endpoint)))
            await attach(socket, endpoint, self._intervals.bind_retry)
            tasks.append(asyncio.create_task(self._receive_all(shared, socket)))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _cancel(tasks)
            if monitor is not None:
                monitor.close()
            socket.close(linger=0)

    async def _receive_all(self, shared: SharedSocket, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await _receive_waiting(shared, socket) or await socket.recv_multipart()
            came = monotonic()
            async with self._slices:
                source = self._receive(shared, frames, came)
                while not (source and source.late) and self._slices.left():
                    more = await _receive_waiting(shared, socket)
                    if more is None:
                        break
                    source = self._receive(shared, more, monotonic())
            if source is not None and source.late:
                shared.waits(monotonic())
                await self._catch_up(source)

    async def _catch_up(self, source: EventSource) -> None:
        """Take late steps, a slice at a time. Nothing is received meanwhile, so none pile up."""
        while source.late:
            async with self._slices:
                while source.late:
                    source.catch_up()
                    if not self._slices.left():
                        break

    async def _watch(self, shared: SharedSocket, monitor: Monitor, endpoint: str) -> None:
        """Tell the sources about changes of the connection; return when it is dead.

        If several engines connect to one address, it is unknown whose connection changed. One is
        connected once it is heard or has answered a replay; if a connection breaks, all of them are
        doubted until they show that they are still there.
        """
        while (change := await monitor.change()) is not ConnectionChange.DEAD:
            for source, replay in list(shared.replays.items()):
                if change is ConnectionChange.LOST:
                    source.doubted() if shared.several else source.disconnected()
                elif replay or not shared.several:
                    self._request(source, source.opened(monotonic()), replay)
        for source in shared:
            source.refused[ENDED_CONNECTION] += 1
        log.warning("KV events at %s: something that came over it %s", endpoint, ENDED_CONNECTION)

    async def _tick(self, source: EventSource, replay: str | None) -> None:
        while True:
            await asyncio.sleep(self._intervals.tick)
            self._request(source, source.tick(monotonic()), replay)
            await self._catch_up(source)  # if who began with that has been cancelled

    def _receive(
        self, shared: SharedSocket, frames: list[bytes], came: float
    ) -> EventSource | None:
        """Hand on a message and return its source, if that is known.

        Never raises, so that the messages after it are still handled.
        """
        source = shared.of(frames[0])
        if source is None:
            return None
        try:
            self._deliver(shared, source, frames, came)
        except Exception as error:  # noqa: BLE001 - see above
            _count_error(source, error)
        return source

    def _deliver(
        self, shared: SharedSocket, source: EventSource, frames: list[bytes], came: float
    ) -> None:
        if len(frames) != 3 or len(frames[1]) != 8:
            source.refused["odd frames"] += 1
            return
        now, replay = monotonic(), shared.replays[source]
        if shared.several and not source.connected:
            self._request(source, source.opened(now), replay)
        sequence = int.from_bytes(frames[1], "big")
        self._request(source, source.heard(sequence, frames[2], now, came), replay)

    def _request(
        self, source: EventSource, requests: list[ReplayRequest], replay: str | None
    ) -> None:
        for request in requests:
            if replay is not None:
                task = asyncio.create_task(self._replay(source, request, replay))
                self._requested[task] = source
                task.add_done_callback(self._requested.pop)

    async def _replay(self, source: EventSource, request: ReplayRequest, endpoint: str) -> None:
        """Request a replay, and hand on its messages."""
        async with self._replays:
            try:
                requests = await self._replay_once(source, request, endpoint)
            except (TimeoutError, zmq.ZMQError) as error:
                why = str(error) or "no answer in time"
                log.warning("worker %s: kv_replay %s: %s", source.worker, endpoint, why)
                requests = source.replay_failed(request.round, monotonic())
            except Exception as error:  # noqa: BLE001 - replayed again, as after any failure
                _count_error(source, error)
                requests = source.replay_failed(request.round, monotonic())
        self._request(source, requests, endpoint)
        await self._catch_up(source)

    async def _replay_once(
        self, source: EventSource, request: ReplayRequest, endpoint: str
    ) -> list[ReplayRequest]:
        """Return the replays to request next. Raises TimeoutError, ZMQError."""
        socket = open_socket(self._context, zmq.DEALER, ipv6=await needs_ipv6(endpoint))
        try:
            socket.connect(endpoint)
            async with asyncio.timeout(REPLAY_TIMEOUT_S):
                await socket.send_multipart([b"", request.start.to_bytes(8, "big")])
                return await self._receive_replay(source, request, socket)
        finally:
            socket.close(linger=0)

    async def _receive_replay(
        self, source: EventSource, request: ReplayRequest, socket: zmq.asyncio.Socket
    ) -> list[ReplayRequest]:
        """Hand on replies up to the end; return the replays to request next."""
        while True:
            async with asyncio.timeout(REPLAY_IDLE_TIMEOUT_S):
                frames = await socket.recv_multipart()
            async with self._slices:
                requests = _deliver_replayed(source, request, frames)
                with contextlib.suppress(zmq.Again):
                    while requests is None and not source.late and self._slices.left():
                        requests = _deliver_replayed(
                            source, request, await socket.recv_multipart(zmq.NOBLOCK)
                        )
            if requests is not None:
                return requests
            await self._catch_up(source)


async def _receive_waiting(shared: SharedSocket, socket: zmq.asyncio.Socket) -> list[bytes] | None:
    """Return a message that waits; None, after telling the shared socket, if there is none."""
    try:
        return await socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        shared.caught_up()
        return None


def _deliver_replayed(
    source: EventSource, request: ReplayRequest, frames: list[bytes]
) -> list[ReplayRequest] | None:
    """Hand on a reply; None to go on, or the replays to request if this one is over."""
    number, payload = (frames[-2], frames[-1]) if len(frames) >= 3 else (b"", b"")
    if number == _END_OF_REPLAY and not payload:
        return source.replay_ended(request.round, monotonic())
    if len(number) != 8:
        source.refused["odd frames"] += 1
        return None
    return source.replayed(request.round, int.from_bytes(number, "big"), payload) or None


def _count_error(source: EventSource, error: Exception) -> None:
    """Count an unexpected exception, and log its type only: its message may contain a prompt."""
    source.refused[UNEXPECTED] += 1
    if source.refused[UNEXPECTED] == 1:
        log.error("worker %s: KV events: unexpected %s", source.worker, type(error).__name__)


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
