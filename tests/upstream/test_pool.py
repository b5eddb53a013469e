"""Connections that are closed at the moment they are used."""

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from router.settings.server import TimeoutSettings
from router.upstream.connection import STALE_CHECKS, UpstreamConnection
from router.upstream.errors import ConnectionLost, Refused
from router.upstream.pool import TICK_S, Upstream

TIMEOUTS = TimeoutSettings()
ASK = (b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n", b"{}")
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

Served = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def served(serve: Served) -> tuple[asyncio.Server, Upstream]:
    """Start a worker that behaves as `serve` does; return it and connections to it."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    return server, Upstream("127.0.0.1", port, tls=None, timeouts=TIMEOUTS)


async def asked(upstream: Upstream) -> bytes:
    """Send one request, then release the connection."""
    connection = await upstream.ask(*ASK)
    try:
        return await connection.chunk()
    finally:
        upstream.release(connection)


async def end(server: asyncio.Server, upstream: Upstream) -> None:
    """Close both, and let the open connections end."""
    upstream.close()
    server.close()
    await asyncio.sleep(0.05)


def hanging_up(late_s: float) -> tuple[Served, list[int]]:
    """Answer each connection's first request; close it `late_s` after the second one."""
    asked = [0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        asked[0] += 1
        writer.write(ANSWER)
        with suppress(asyncio.IncompleteReadError):  # the last connection gets no second request
            await reader.readuntil(b"{}")
            asked[0] += 1
            await asyncio.sleep(late_s)
        writer.close()
        await writer.wait_closed()

    return serve, asked


def test_what_ended_while_nobody_listened_ended_at_once() -> None:
    """A close that crossed the request is retried, even if this process noticed it late."""

    async def play() -> None:
        serve, count = hanging_up(0)
        server, upstream = await served(serve)
        assert await asked(upstream) == b"ok"
        again = asyncio.ensure_future(asked(upstream))
        await asyncio.sleep(0)  # the request is written
        time.sleep(2 * STALE_CHECKS * TICK_S)  # noqa: ASYNC251 - the loop is blocked
        assert await again == b"ok"
        assert count == [3]
        await end(server, upstream)

    asyncio.run(play())


def test_what_ended_later_may_have_begun() -> None:
    """If the close comes later, the request may have begun, so it is not retried."""

    async def play() -> None:
        serve, count = hanging_up(2 * STALE_CHECKS * TICK_S)
        server, upstream = await served(serve)
        assert await asked(upstream) == b"ok"
        with pytest.raises(ConnectionLost):
            await asked(upstream)
        assert count == [2]
        await end(server, upstream)

    asyncio.run(play())


def test_a_connection_that_ends_before_it_is_asked_was_not_asked() -> None:
    """Nothing was written, so another worker can be asked."""

    async def play(door: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: UpstreamConnection(loop, TIMEOUTS), *door.getsockname()
        )
        guest, _ = door.accept()
        guest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        guest.close()
        while connection.usable:  # noqa: ASYNC110 - the kernel tells
            await asyncio.sleep(0.01)
        with pytest.raises(Refused, match="before it was asked"):
            await connection.ask(*ASK)

    with socket.create_server(("127.0.0.1", 0)) as door:
        asyncio.run(play(door))
