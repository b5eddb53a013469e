"""From a worker's answer to the client: every byte as it came, as it comes."""

import asyncio

from router.connection import Connection, Head
from router.errors import Headers, WorkerError
from router.events import error_event
from router.exchange import Exchange, date_line
from router.headers import answer_fields, header
from router.openai import Endpoint
from router.usage import Usage, UsageTail

#: Characters of a worker's error that are told in a stream that has begun already.
LONGEST_MESSAGE = 2000


class CutShort(Exception):
    """The worker failed in the middle of its answer; the client has been told, or cut off."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(str(error))
        self.error = error


class Relay:
    """One answer on its way through.

    The status is held back until the first byte of the body is there: a worker that dies while
    it computes the prompt still gives the client a proper status.
    """

    __slots__ = ("_endpoint", "_events", "_exchange", "_last", "_tail")

    def __init__(self, endpoint: Endpoint, exchange: Exchange) -> None:
        self._endpoint = endpoint
        self._exchange = exchange
        self._tail = UsageTail()
        self._events = False
        self._last = b""

    def begin(self, connection: Connection, added: bytes) -> bool:
        """Relay what is there, with `added` header lines; return whether that is all."""
        head, exchange = connection.head, self._exchange
        fields = answer_fields(head.headers)
        if b"date: " not in fields:  # RFC 9110 section 6.6.1
            added += date_line()
        self._last = data = connection.first()
        self._tail.add(data)
        last = connection.finished
        self._events = _is_stream(head.headers)
        if exchange.commented:
            return self._go_on(head, data, last)
        exchange.start(head.status, fields + added, head.length, data, last=last)
        return last

    def _go_on(self, head: Head, data: bytes, last: bool) -> bool:
        """A stream has begun already, with comments: only events can follow."""
        exchange = self._exchange
        exchange.commented = False
        if self._events:
            exchange.write(data, last)
            return last
        message = data[:LONGEST_MESSAGE].decode("utf-8", errors="replace")
        self.fail(f"The worker answered {head.status}: {message}", code=str(head.status))
        return True

    async def flow(self, connection: Connection) -> None:
        """Relay the rest. Raises CutShort."""
        exchange = self._exchange
        exchange.feed_from(connection)
        try:
            await connection.flow(self._pass)
        except WorkerError as error:
            if self._events:
                self.fail(f"The worker failed in the middle of its answer: it {error}.")
            raise CutShort(error) from None
        except asyncio.CancelledError:
            if self._events and not exchange.left:
                self.fail("The router was stopped in the middle of this answer.")
            raise

    def _pass(self, data: bytes, last: bool) -> None:
        self._last = data
        self._tail.add(data)
        self._exchange.write(data, last)

    def usage(self) -> Usage:
        """What the worker reported, once the answer has passed."""
        return self._tail.read()

    def fail(self, message: str, code: str = "worker_failed") -> None:
        """End the stream with an error in its own shape."""
        text = error_event(self._endpoint, message, code)
        whole = not self._last or self._last.endswith(b"\n\n") or not self._events
        self._exchange.write(text if whole else b"\n\n" + text, last=True)


def _is_stream(headers: Headers) -> bool:
    return header(headers, b"content-type").startswith(b"text/event-stream")
