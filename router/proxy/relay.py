"""Relays a worker's answer to the client, byte for byte, as it arrives."""

import asyncio
from collections.abc import Callable
from typing import Final

from router.api.endpoints import CHAT, COMPLETION, RESPONSES, Endpoint
from router.api.error_shapes import error_event
from router.api.errors import APIError, Stopping, WorkerFailed, refused_by_worker
from router.http.exchange import Exchange, date_line
from router.http.sse import EVENT_ENDS, RESPONSE_ENDS, has_last, only_comments
from router.responses.owners import IdReader
from router.upstream.connection import Sink, UpstreamConnection
from router.upstream.errors import WorkerError
from router.upstream.faults import NO_FAULT, fault
from router.upstream.response import ResponseHead
from router.upstream.usage import TAIL_BYTES, Usage, UsageTail

#: Bytes of an incomplete event that are held back until the rest of it arrives.
MAX_HELD_BYTES: Final = 64 << 10
#: Bytes of a worker's error that are quoted in a stream that has already begun.
MAX_QUOTED_BYTES = 2000
#: Where what a model writes can be told from the rest of the answer.
_WRITTEN: Final = frozenset((CHAT, COMPLETION))


class AnswerCut(Exception):
    """The worker failed in mid-answer; the client got an error event, or is to be cut off."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(str(error))
        self.error = error


class Relay:
    """Relays one answer.

    The status is held back until the first byte of the body, so that a worker that dies in prefill
    still gives the client a proper status. In a stream, an incomplete event is held back until it
    is whole, so that an error can always follow as an event of its own and no client has to parse
    half an event. If an event is too long to hold back, half of it may be sent; if the worker fails
    then, the answer is cut off instead.

    The last event of a stream completes it, whatever the connection to the worker does then.
    """

    __slots__ = (
        "_endpoint",
        "_events",
        "_exchange",
        "_half",
        "_held",
        "_last_begun",
        "_long",
        "_refusal",
        "_tail",
        "naming",
    )

    def __init__(self, endpoint: Endpoint, exchange: Exchange) -> None:
        self._endpoint = endpoint
        self._exchange = exchange
        self._events = False
        self._held = b""
        self._half = False
        """The last bytes sent were part of an incomplete event."""
        self._long = long = endpoint.prompted is RESPONSES
        """The last event of a stream repeats the whole answer: its beginning is not in the tail."""
        self._tail = UsageTail(long=long)
        self._last_begun = False
        """Such an event has begun."""
        self._refusal: tuple[int, bytes] | None = None
        """A worker's error that has to become an event: its status, and what has come of it."""
        self.naming: IdReader | None = None
        """Wants to see the beginning of the answer, before the client does."""

    def begin(self, connection: UpstreamConnection, added: bytes) -> bool:
        """Relay the head, with `added` header lines, and the first bytes; True if that is all."""
        head, exchange = connection.head, self._exchange
        data = connection.first()
        last = connection.finished
        self._tail.add(data)
        self._events = head.stream
        if self._events and not last and not _ends(data):
            data = self._hold(data)
        if self._long:
            self._look(data)
        if exchange.commented:
            return self._go_on(head, data, last)
        fields = head.fields()
        if not head.dated:  # RFC 9110 section 6.6.1
            added += date_line()
        length = head.length
        if last and length is not None:
            length = len(data)
        elif self._events:
            length = None  # not declared: we may have to append an error event
        exchange.start(head.status, fields + added, length, data, last=last)
        return last

    def _go_on(self, head: ResponseHead, data: bytes, last: bool) -> bool:
        """Relay the first bytes if comments were already sent: only events can follow them."""
        self._exchange.commented = False
        if self._events:
            self._exchange.write(data, last)
            return last
        self._events, self._refusal = True, (head.status, b"")
        self._quote(data, last)
        return last

    def _quote(self, data: bytes, last: bool) -> None:
        """Keep the beginning of a worker's error, and tell it as an event once all has come."""
        assert self._refusal is not None  # noqa: S101 - see `_go_on`
        status, kept = self._refusal
        kept += data[: MAX_QUOTED_BYTES - len(kept)]
        self._refusal = status, kept
        if last:
            self._fail(refused_by_worker(status, kept.decode("utf-8", errors="replace")))

    async def flow(
        self, connection: UpstreamConnection, begun: Callable[[], None] | None = None
    ) -> None:
        """Relay the rest. Raises AnswerCut.

        `begun`, if given, is called when the first byte arrives that is no comment.
        """
        exchange = self._exchange
        exchange.feed_from(connection)
        try:
            sink = self._pass if begun is None else self._watching(begun)
            await connection.flow(sink, self.complete)
        except WorkerError as error:
            if self.complete():
                exchange.write(b"", last=True)
                return
            if self._refusal is None:
                message = f"The worker failed in the middle of its answer: it {error}."
                self._fail(WorkerFailed(message))
            else:  # what has come of an error says more than that it broke off
                self._quote(b"", last=True)
            raise AnswerCut(error) from None
        except asyncio.CancelledError:
            if exchange.left:
                raise
            if self.complete():
                exchange.write(b"", last=True)
            else:
                self._fail(Stopping("The router was stopped in the middle of this answer."))
            raise

    def _pass(self, data: bytes, last: bool) -> None:
        self._tail.add(data)
        if self._refusal is not None:
            self._quote(data, last)
            return
        if self._events and (self._held or not _ends(data)) and not last:
            data = self._hold(data)
        elif self._held:
            data, self._held = self._held + data, b""
        else:
            self._half = False
        if self._long:
            self._look(data)
        self._exchange.write(data, last)

    def _watching(self, begun: Callable[[], None]) -> Sink:
        """Return a sink that relays as `_pass` does, and calls `begun` once."""
        waits = True

        def sink(data: bytes, last: bool) -> None:
            nonlocal waits
            if waits and not only_comments(self._held + data):
                waits = False
                begun()
            self._pass(data, last)

        return sink

    def _look(self, data: bytes) -> None:
        """Notice the id of a response in what is about to be sent, and a last event, unless it will
        be in the tail."""
        if self.naming is not None:
            self.naming.add(data)
        if len(data) > TAIL_BYTES // 2 or data.startswith(RESPONSE_ENDS):
            self._last_begun = self._last_begun or has_last(self._endpoint, data)

    def _hold(self, data: bytes) -> bytes:
        """Hold back an incomplete event; return the whole ones before it."""
        data = self._held + data
        whole = max(data.rfind(end) + len(end) if end in data else 0 for end in EVENT_ENDS)
        if whole:
            self._half = False
        if len(data) - whole > MAX_HELD_BYTES:
            whole, self._half = len(data), True
        self._held = data[whole:]
        return data[:whole]

    def complete(self) -> bool:
        """Whether a stream has sent its last event: clients may close then, before HTTP's end."""
        if not self._events or self._half or self._refusal is not None:
            return False
        return self._last_begun or has_last(self._endpoint, self._tail.end(len(self._held)))

    def usage(self) -> Usage:
        """Return the usage that the worker reported, once all of the answer is relayed."""
        return self._tail.read()

    def flaw(self, usage: Usage) -> tuple[int, str]:
        """Return the status that the relayed answer of status 200 should have had, and a label.

        What the model has written by the `usage` may be withheld, such as its reasoning.
        """
        if not self._events and (usage.answer or 0) > 1:
            return NO_FAULT  # as an error has none
        end, endpoint = self._tail.end(0), self._endpoint
        writes = endpoint.answers and endpoint.prompted in _WRITTEN and (usage.answer or 0) < 2
        return fault(end, stream=self._events, whole=len(end) < TAIL_BYTES, writes=writes)

    def _fail(self, error: APIError) -> None:
        """End a stream with an error event in the endpoint's format; do nothing for others."""
        exchange = self._exchange
        if self._half:
            exchange.cut()
        elif self._events:
            exchange.fail(error_event(self._endpoint.path, error, exchange.identity), error.message)


def _ends(data: bytes) -> bool:
    """Whether `data` ends with the end of an event; nearly all events end the first way."""
    return data[-2:] == b"\n\n" or data.endswith(EVENT_ENDS)
