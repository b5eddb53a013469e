"""From a worker's answer to the client: every byte as it came, as it comes."""

import asyncio
from typing import Final

from router.answer_head import Head
from router.connection import Connection
from router.errors import WorkerError
from router.events import EVENT_ENDS, error_event
from router.exchange import Exchange, date_line
from router.openai import Endpoint
from router.usage import Usage, UsageTail

#: How the last event of a stream begins; clients close when they have read it.
_LAST_EVENTS = (b"data: [DONE]", b"event: response.completed", b"event: message_stop")
#: Bytes of an event that is not whole that are kept until the rest of it comes.
LONGEST_HELD: Final = 64 << 10
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
    it computes the prompt still gives the client a proper status. Of a stream, an event that is
    not whole is held back until it is: so whatever happens, an error can follow as an event of
    its own, and no client has to make sense of half of one. Of one that is too long for that, half
    may be sent: then the answer is cut off instead.
    """

    __slots__ = ("_endpoint", "_events", "_exchange", "_half", "_held", "_tail")

    def __init__(self, endpoint: Endpoint, exchange: Exchange) -> None:
        self._endpoint = endpoint
        self._exchange = exchange
        self._tail = UsageTail()
        self._events = False
        self._held = b""
        self._half = False
        """What was sent last is half of an event."""

    def begin(self, connection: Connection, added: bytes) -> bool:
        """Relay what is there, with `added` header lines; return whether that is all."""
        head, exchange = connection.head, self._exchange
        data = connection.first()
        last = connection.finished
        self._tail.add(data)
        self._events = head.stream
        if self._events and not last and not _ends(data):
            data = self._hold(data)
        if exchange.commented:
            return self._go_on(head, data, last)
        fields = head.fields()
        if not head.dated:  # RFC 9110 section 6.6.1
            added += date_line()
        length = head.length
        if last and length is not None:
            length = len(data)
        elif self._events:
            length = None  # not promised: an event of ours may have to end it
        exchange.start(head.status, fields + added, length, data, last=last)
        return last

    def _go_on(self, head: Head, data: bytes, last: bool) -> bool:
        """A stream has begun already, with comments: only events can follow."""
        self._exchange.commented = False
        if self._events:
            self._exchange.write(data, last)
            return last
        message = data[:LONGEST_MESSAGE].decode("utf-8", errors="replace")
        self._events = True
        kind = "invalid_request_error" if 400 <= head.status < 500 else "server_error"
        self._fail(f"The worker answered {head.status}: {message}", str(head.status), kind)
        return True

    async def flow(self, connection: Connection) -> None:
        """Relay the rest. Raises CutShort."""
        exchange = self._exchange
        exchange.feed_from(connection)
        try:
            await connection.flow(self._pass)
        except WorkerError as error:
            self._fail(f"The worker failed in the middle of its answer: it {error}.")
            raise CutShort(error) from None
        except asyncio.CancelledError:
            if not exchange.left:
                self._fail("The router was stopped in the middle of this answer.")
            raise

    def _pass(self, data: bytes, last: bool) -> None:
        self._tail.add(data)
        if self._events and (self._held or not _ends(data)) and not last:
            data = self._hold(data)
        elif self._held:
            data, self._held = self._held + data, b""
        else:
            self._half = False
        self._exchange.write(data, last)

    def _hold(self, data: bytes) -> bytes:
        """Keep an event that is not whole; return those before it."""
        data = self._held + data
        whole = max(data.rfind(end) + len(end) if end in data else 0 for end in EVENT_ENDS)
        if whole:
            self._half = False
        if len(data) - whole > LONGEST_HELD:
            whole, self._half = len(data), True
        self._held = data[whole:]
        return data[:whole]

    @property
    def complete(self) -> bool:
        """A stream has said all that it will: clients close then, before HTTP's own end."""
        return self._events and self._tail.last_event().startswith(_LAST_EVENTS)

    def usage(self) -> Usage:
        """What the worker reported, once the answer has passed."""
        return self._tail.read()

    def _fail(self, message: str, code: str = "worker_failed", kind: str = "server_error") -> None:
        """End the stream, if it is one, with an error in its own shape."""
        if self._half:
            self._exchange.cut()
        elif self._events:
            self._exchange.fail(error_event(self._endpoint, message, code, kind), message)


def _ends(data: bytes) -> bool:
    """Whether an event ends with it; nearly all end in the first way."""
    return data[-2:] == b"\n\n" or data.endswith(EVENT_ENDS)
