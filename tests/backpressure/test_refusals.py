"""Refusals sent to clients that do not read, or that send very many requests."""

import asyncio
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

from router.api.errors import UnknownPath
from router.http.connection import MAX_CHUNKS_PER_READ, MAX_CONSECUTIVE_REFUSALS, HttpConnection
from router.http.exchange import Exchange
from router.settings.model import Settings


class Nobody:
    """A door that refuses every request."""

    settings = Settings.model_validate({"workers": ["http://127.0.0.1:1"]})
    stopping = False

    def __init__(self) -> None:
        self.clients: set[HttpConnection] = set()

    def admit(self, exchange: Exchange) -> int:
        raise UnknownPath(exchange.path)

    def serve(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        raise NotImplementedError

    def unserved(self, exchange: Exchange | None, status: int, reason: str) -> None:
        """Count nothing."""


class Narrow(asyncio.Transport):
    """A transport that pauses the protocol after each answer until the test resumes it."""

    def __init__(self, client: HttpConnection) -> None:
        super().__init__()
        self._client = client
        self.answers: list[bytes] = []
        self.reading = True
        self.unsent = 1
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.answers.append(bytes(data))
        self._client.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits."""

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def test_one_after_the_other_as_they_are_taken() -> None:
    """Pipelined requests are refused one at a time, each after the client has read the last one."""
    with asyncio.Runner() as runner:
        client = HttpConnection(Nobody(), runner.get_loop())
        transport = Narrow(client)
        client.connection_made(transport)
        client.data_received(b"".join(b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % n for n in range(5)))
        for taken in range(5):
            assert len(transport.answers) == taken + 1
            assert b"'/%d'" % taken in transport.answers[taken]
            client.resume_writing()
        assert len(transport.answers) == 5


class Answering(Nobody):
    """A door that answers every request with its path."""

    def admit(self, exchange: Exchange) -> int:
        del exchange
        return 1 << 20

    async def _answered(self, exchange: Exchange) -> None:
        exchange.answer(200, b"", exchange.path.encode())

    def serve(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        return self._answered(exchange)


def test_a_refusal_comes_after_what_waits() -> None:
    """Bytes that cannot be parsed are refused after the requests that came before them."""
    with asyncio.Runner() as runner:
        client = HttpConnection(Answering(), runner.get_loop())
        transport = Narrow(client)
        client.connection_made(transport)
        client.data_received(b"GET /1 HTTP/1.1\r\nhost: a\r\n\r\n")
        runner.run(asyncio.sleep(0))
        client.data_received(b"GET /2 HTTP/1.1\r\nhost: a\r\n\r\n")
        client.data_received(b"no HTTP\r\n\r\n")
        for _ in range(3):
            runner.run(asyncio.sleep(0))
            client.resume_writing()
        assert [answer.split()[1] for answer in transport.answers] == [b"200", b"200", b"400"]
        assert b"/2" in transport.answers[1]


class Wide(Narrow):
    """A transport that accepts everything without pausing."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.answers.append(bytes(data))


def test_others_have_their_turn() -> None:
    """At most `AT_ONCE` refusals are written per turn of the loop, so that others get a turn."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        client = HttpConnection(Nobody(), loop)
        transport = Wide(client)
        client.connection_made(transport)
        asked = [b"GET /%d HTTP/1.1\r\nhost: a\r\n\r\n" % n for n in range(100)]
        last = b"POST /100 HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n"
        client.data_received(b"".join(asked) + last)
        turns = [len(transport.answers)]
        while turns[-1] < 101:
            loop.call_soon(loop.stop)
            loop.run_forever()  # one turn
            turns.append(len(transport.answers))
        assert all(
            0 < after - before <= MAX_CONSECUTIVE_REFUSALS
            for before, after in pairwise([0, *turns])
        )
        for number, answer in enumerate(transport.answers):
            assert b"'/%d'" % number in answer


def test_tiny_chunks_take_turns() -> None:
    """Tiny chunks cost much for their size: after many of them, reading pauses for one turn."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        client = HttpConnection(Answering(), loop)
        transport = Wide(client)
        client.connection_made(transport)
        client.data_received(
            b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n"
        )
        assert transport.reading
        client.data_received(b"1\r\nx\r\n" * (MAX_CHUNKS_PER_READ + 1))
        paused = not transport.reading
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert paused
        assert transport.reading
        client.data_received(b"0\r\n\r\n")
        runner.run(asyncio.sleep(0))
        assert [answer.split()[1] for answer in transport.answers] == [b"200"]


def test_who_takes_something_is_not_cut_off() -> None:
    """`clients.write` ends a connection only if the client has read nothing in all that time."""
    with asyncio.Runner() as runner:
        client = HttpConnection(Answering(), runner.get_loop())
        transport = Wide(client)
        client.connection_made(transport)
        transport.unsent = 100
        client.pause_writing()
        now, write_s = runner.get_loop().time(), Nobody.settings.clients.write
        for left in (99, 98):
            transport.unsent = left
            now += write_s - 1
            client.expire(now)
            assert not transport.aborted
        client.expire(now + write_s - 1)
        assert not transport.aborted
        client.expire(now + write_s)
        assert transport.aborted
