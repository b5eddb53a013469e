"""The soak's clients: each kind is one way in which a client may behave, well or badly.

They arrive at a given rate, whether or not earlier ones have an answer (open loop).
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from random import Random
from time import monotonic
from typing import Any

import uvloop

from benchmarks.harness.connection import BenchConnection, Reply
from benchmarks.soak.judge import End, SoakTally
from benchmarks.soak.requests import (
    LARGE_BYTES,
    SMALL_BYTES,
    SoakConversation,
    SoakRequest,
    SoakRequests,
    WantedAnswer,
)

#: Conversations in progress at the same time.
_CONVERSATIONS = 64
#: The answer requested by clients that read slowly.
_LONG_ANSWER = WantedAnswer(stream=False, length=2_000_000)
#: Pause in seconds: of a slow client after every read; of a dead one after the first read, so long
#: that the router drops it.
_SLOW_PAUSE_S, _DEAD_PAUSE_S = 0.02, 12.0
#: Seconds after which a kept connection is not reused, because the router may be closing it.
_IDLE_TIMEOUT_S = 5.0
_REFUSALS = frozenset((400, 404, 405, 408, 413, 414, 431, 501))
_OPERATOR_PATHS = (b"/metrics", b"/workers", b"/v1/models", b"/health/live", b"/openapi.json")
CLOSE = b"Connection: close\r\n"
#: Most clients at once; beyond that, arrivals are skipped and counted as held back.
_MAX_CLIENTS = 300
#: Seconds after which a client gives up and counts its request as hung.
CLIENT_TIMEOUT_S = 60.0
#: Seconds that arrivals may lag behind schedule before the missed ones are skipped.
_MAX_LAG_S = 1.0
Visit = Callable[[], Awaitable[None]]


class Clients:
    """The behaviour of clients; each public method is one client's visit from start to end."""

    def __init__(self, port: int, source: SoakRequests, tally: SoakTally) -> None:
        self._port = port
        self._source = source
        self._random = source.random
        self._tally = tally
        self._kept: list[BenchConnection] = []
        self._connections: set[BenchConnection] = set()
        self._talks = [SoakConversation(place) for place in range(_CONVERSATIONS)]
        self.kinds: dict[Callable[[], Awaitable[None]], int] = {
            self.small: 300,
            self.large: 30,
            self.stream: 250,
            self.conversation: 200,
            self.chunked: 25,
            self.expecting: 15,
            self.pipelined: 15,
            self.alone: 40,
            self.leaving: 60,
            self.half_closing: 5,
            self.slow: 4,
            self.dead: 1,
            self.bad: 40,
            self.unknown_model: 20,
            self.oversize: 4,
            self.silent: 4,
            self.unfinished: 4,
            self.admin: 5,
        }
        """Relative frequency of each kind of visit."""

    def close(self) -> None:
        """Close every connection."""
        for connection in tuple(self._connections):
            connection.abort()

    # Clients that behave.

    async def small(self) -> None:
        """Ask for a short answer."""
        await self._ask("small", self._source.request(SMALL_BYTES))

    async def large(self) -> None:
        """Send a long prompt."""
        await self._ask("large", self._source.request(LARGE_BYTES))

    async def stream(self) -> None:
        """Ask for a stream."""
        await self._ask("stream", self._source.stream())

    async def conversation(self) -> None:
        """Continue a conversation that no other client continues at the moment."""
        if not self._talks:
            return
        talk = self._talks.pop(self._random.randrange(len(self._talks)))
        try:
            await self._ask("conversation", self._source.turn(talk))
        finally:
            self._talks.append(talk)

    async def alone(self) -> None:
        """Use a new connection for one request only."""
        connection = await self._open()
        await self._tell(connection, "alone", self._source.request(SMALL_BYTES, fields=CLOSE))
        connection.abort()

    async def chunked(self) -> None:
        """Send a body in chunks."""
        request = self._source.request(SMALL_BYTES)
        await self._ask("chunked", request, request.chunked(self._random.randint(1, 9)))

    async def expecting(self) -> None:
        """Send the body only after the answer 100 Continue."""
        request = self._source.request(SMALL_BYTES, fields=b"Expect: 100-continue\r\n")
        connection, sent = await self._open(), monotonic()
        connection.send(request.head())
        await connection.continued.wait()
        if connection.is_open:
            connection.send(request.body)
        self._tally.judge("expecting", request, sent, await connection.reply())
        connection.abort()

    async def pipelined(self) -> None:
        """Send several requests at once on one connection."""
        requests = [self._source.request(SMALL_BYTES) for _ in range(self._random.randint(2, 5))]
        connection, sent = await self._open(), monotonic()
        connection.send(*(piece for request in requests for piece in request.whole()))
        for request in requests:
            reply = await connection.reply()
            self._tally.judge("pipelined", request, sent, reply)
            if not reply.complete:
                break  # the answers to the others cannot follow
        connection.abort()

    async def slow(self) -> None:
        """Read a long answer slowly."""
        connection = await self._open(slow=_SLOW_PAUSE_S)
        await self._tell(connection, "slow", self._source.request(SMALL_BYTES, _LONG_ANSWER))
        connection.abort()

    # Clients that disconnect, or stop reading or sending.

    async def leaving(self) -> None:
        """Disconnect at any point: within the request, before the answer, within the answer."""
        request = self._source.stream()
        connection = await self._open()
        if self._random.random() < 0.3:
            connection.send(
                request.head(), request.body[: self._random.randrange(len(request.body))]
            )
            await asyncio.sleep(self._random.uniform(0, 0.02))
        else:
            connection.send(*request.whole())
            if self._random.random() < 0.4:
                await asyncio.sleep(self._random.uniform(0, 0.05))
            else:
                pieces = self._random.randint(1, request.wanted.length)
                while connection.is_open and connection.pieces < pieces:
                    connection.news.clear()
                    await connection.news.wait()
        connection.abort()
        self._tally.count("leaving", End.LEFT)

    async def half_closing(self) -> None:
        """Close the sending side; the router treats that as a disconnect."""
        request = self._source.stream()
        connection = await self._open()
        connection.send(*request.whole())
        connection.half_close()
        await connection.closed
        self._tally.count("half closing", End.LEFT)

    async def dead(self) -> None:
        """Stop reading a long answer for longer than the router waits."""
        connection = await self._open(slow=_DEAD_PAUSE_S, once=True)
        connection.send(*self._source.request(SMALL_BYTES, _LONG_ANSWER).whole())
        reply = await connection.reply()
        connection.abort()
        if reply.status == 200 and reply.complete:
            self._tally.violation("dead", End.WRONG, "the router waited for a client that is dead")
        else:
            self._tally.count("dead", End.DROPPED)

    async def silent(self) -> None:
        """Connect and send nothing until the router closes the connection."""
        connection = await self._open()
        await connection.closed
        self._tally.count("silent", End.REFUSED)

    async def unfinished(self) -> None:
        """Send part of a request and never the rest."""
        request = self._source.request(SMALL_BYTES)
        part = b"".join(request.whole())
        connection = await self._open()
        connection.send(part[: self._random.randint(1, len(part) - 1)])
        self._refusal("unfinished", await connection.reply())
        connection.abort()

    # Clients whose requests are wrong, and operators.

    async def bad(self) -> None:
        """Send an invalid request."""
        connection = await self._open()
        connection.send(self._source.bad())
        self._refusal("bad", await connection.reply())
        connection.abort()

    async def unknown_model(self) -> None:
        """Ask for an unknown model."""
        connection = await self._kept_or_new()
        connection.send(self._source.unknown_model())
        self._refusal("unknown model", await connection.reply())
        self._keep(connection)

    async def oversize(self) -> None:
        """Send more than is allowed."""
        connection = await self._open()
        connection.send(*self._source.oversize())
        self._refusal("oversize", await connection.reply())
        connection.abort()

    async def admin(self) -> None:
        """Read one of the operators' endpoints."""
        connection = await self._kept_or_new()
        connection.send(
            b"GET %b HTTP/1.1\r\nHost: soak\r\n\r\n" % self._random.choice(_OPERATOR_PATHS)
        )
        reply = await connection.reply()
        if reply.status == 200 and reply.complete:
            self._tally.count("operators", End.ANSWERED)
        else:
            self._tally.violation("operators", End.WRONG, f"{reply.status} {reply.body[:200]!r}")
        self._keep(connection)

    # Common helpers.

    async def _ask(
        self, kind: str, request: SoakRequest, pieces: list[bytes] | None = None
    ) -> None:
        connection = await self._kept_or_new()
        await self._tell(connection, kind, request, pieces)
        self._keep(connection)

    async def _tell(
        self,
        connection: BenchConnection,
        kind: str,
        request: SoakRequest,
        pieces: list[bytes] | None = None,
    ) -> None:
        sent = monotonic()
        connection.send(*(pieces or request.whole()))
        self._tally.judge(kind, request, sent, await connection.reply())

    def _refusal(self, kind: str, reply: Reply) -> None:
        if reply.status in _REFUSALS and reply.complete:
            self._tally.count(kind, End.REFUSED)
        else:
            self._tally.violation(kind, End.WRONG, f"{reply.status} {reply.body[:200]!r}")

    async def _kept_or_new(self) -> BenchConnection:
        """Return an open kept connection, or a new one."""
        while self._kept:
            connection = self._kept.pop()
            if connection.is_open and monotonic() < connection.used_at + _IDLE_TIMEOUT_S:
                return connection
            connection.abort()
        return await self._open()

    async def _open(self, *, slow: float = 0.0, once: bool = False) -> BenchConnection:
        connection = await BenchConnection.open(self._port, slow=slow, once=once)
        self._connections.add(connection)
        connection.closed.add_done_callback(lambda _: self._connections.discard(connection))
        return connection

    def _keep(self, connection: BenchConnection) -> None:
        if connection.is_open:
            connection.used_at = monotonic()
            self._kept.append(connection)


class LoadGenerator:
    """Starts clients at a Poisson rate."""

    def __init__(self, port: int, seed: int) -> None:
        self.rate = 0.0
        """Clients a second."""
        self.begun = 0
        """Clients started so far."""
        self.tally = SoakTally()
        self._random = Random(seed)
        self._clients = Clients(port, SoakRequests(Random(seed + 1)), self.tally)
        self._kinds = list(self._clients.kinds)
        self._weights = list(self._clients.kinds.values())
        self._visits: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Start clients until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if not self.rate:
                await asyncio.sleep(0.01)
                due = loop.time()
                continue
            due += self._random.expovariate(self.rate)
            now = loop.time()
            if due > now:
                await asyncio.sleep(due - now)
            elif now - due > _MAX_LAG_S:
                due = now
            if len(self._visits) >= _MAX_CLIENTS:
                self.tally.held_back += 1
                continue
            visit = self._random.choices(self._kinds, self._weights)[0]
            self.begun += 1
            task = asyncio.create_task(self._visit(visit))
            self._visits.add(task)
            task.add_done_callback(self._visits.discard)

    async def _visit(self, visit: Visit) -> None:
        name = getattr(visit, "__name__", "")
        try:
            async with asyncio.timeout(CLIENT_TIMEOUT_S):
                await visit()
        except TimeoutError:
            self.tally.violation(name, End.HUNG, f"after {CLIENT_TIMEOUT_S:.0f} s")
        except OSError as error:
            self.tally.violation(name, End.WRONG, f"{type(error).__name__}: {error}")

    async def finish(self) -> None:
        """Wait for all running clients, then close all connections."""
        await asyncio.gather(*self._visits)
        self._clients.close()


def serve(channel: "Connection[Any, Any]", port: int, seed: int) -> None:
    """Run the load in this process: rates come on the channel; None ends it, with the tally."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        uvloop.run(_serve(channel, LoadGenerator(port, seed)))
    except (EOFError, ConnectionError):
        return


async def _serve(channel: "Connection[Any, Any]", load: LoadGenerator) -> None:
    running = asyncio.create_task(load.run())
    while True:
        rate: float | None = await asyncio.to_thread(channel.recv)
        if rate is None:
            break
        load.rate = rate
        channel.send((load.begun, load.tally.ends))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await load.finish()
    channel.send(load.tally)
