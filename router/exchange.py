"""One request of a client, and the answer to it: the seam between the socket and the proxy."""

import asyncio
from http import HTTPStatus
from time import time
from typing import TYPE_CHECKING, Final, Protocol
from wsgiref.handlers import format_date_time

from router.errors import DoorError
from router.guard import Head
from router.headers import new_id
from router.sagemaker import errors as aws
from router.sagemaker.paths import speaks_aws

if TYPE_CHECKING:
    from router.salts import Salts
    from router.sessions.sessions import Sessions
    from router.sessions.visit import Visit

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class Source(Protocol):
    """Where an answer flows from."""

    def pause(self) -> None:
        """Send nothing for now."""

    def resume(self) -> None:
        """Go on."""


class Line(Protocol):
    """The connection an exchange came on, as far as it needs to know it."""

    stopping: bool
    """The server wants to close it after this answer."""

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them until the client takes them."""

    def finished(self, exchange: "Exchange") -> None:
        """The answer is complete."""

    def feed_from(self, source: Source | None) -> None:
        """Pause `source` while the client is slow."""

    def cut(self, *, framed: bool) -> None:
        """Close it: what has been sent is all there will be. The client must be able to tell."""


class Exchange:
    """One request, read whole, and its answer.

    `answer` gives it at once; `start` and then `write` until `last` give it piece by piece.
    """

    __slots__ = (
        "_chunked",
        "_fields",
        "_framed",
        "_line",
        "_with_body",
        "asked",
        "body",
        "commented",
        "ended",
        "head",
        "headers",
        "identity",
        "inner",
        "keep",
        "keyed",
        "left",
        "method",
        "part",
        "path",
        "query",
        "refusal",
        "salts",
        "served",
        "started",
        "task",
        "tenant",
        "version",
    )

    def __init__(self, line: Line, head: Head, *, keep: bool) -> None:
        self._line = line
        self.head = head
        self.method = head.method
        self.version = head.version
        self.path = head.path
        self.query = head.query
        self.headers = head.headers
        """In order, names in lower case; not to be changed."""
        self.keep = keep
        """The connection may be used again afterwards."""
        self.keyed = False
        """Its credentials are for the router alone."""
        self.identity = head.identity or new_id()
        self.tenant = ""
        """Name of the door key that was shown."""
        self.salts: Salts | None = None
        """Whose it is among them, by that name."""
        self.refusal: DoorError | None = None
        """The answer, if its head was reason enough to refuse it."""
        self.body = b""
        self.task: asyncio.Task[None] | None = None
        self.served = False
        """Somebody has begun to work on it."""
        self.part: Visit | None = None
        """Its part in a session, once that is known."""
        self.asked = False
        """A worker was chosen, and is counted with it."""
        self.started = False
        """The answer has begun."""
        self.commented = False
        """Only comments of our own are in it so far."""
        self.ended = False
        """The answer is complete, or cut."""
        self.left = False
        """The client closed the connection; nobody is there to be answered."""
        self.inner: Exchange | None = None
        """One whose answer is told in this one's."""
        self._chunked = False
        self._framed = True
        """The end of the body is told by more than the end of the connection."""
        self._with_body = head.method != "HEAD"
        self._fields = b""

    @property
    def line(self) -> Line:
        """The connection it came on."""
        return self._line

    def leave(self) -> None:
        """The client closed the connection."""
        self.left = True
        if self.inner is not None:
            self.inner.leave()

    @property
    def told(self) -> bool:
        """The client has been told how its request was answered."""
        return self.started and not self.commented

    def whose(self) -> str:
        """For a log line: the name of the key that was shown, if one was."""
        return f" key={self.tenant}" if self.tenant else ""

    def passing(self, *, keyed: bool) -> bytes:
        """Return the header lines that pass on to a worker, credentials only if not `keyed`."""
        return self.head.passing(keyed=keyed or self.keyed)

    def visit(self, sessions: "Sessions") -> "Visit | None":
        """Return its part in a session of theirs, if it names one. Raises BadRequest."""
        return sessions.asked(self.headers, self.body)

    async def undo(self) -> None:
        """Nobody answers: its session is as it was, unless the client was told otherwise."""
        if self.part is not None and not self.told:
            await self.part.undo()

    def add(self, fields: bytes) -> None:
        """Put header lines into the answer, whatever it will be."""
        self._fields += fields

    def answer(self, status: int, fields: bytes, body: bytes) -> None:
        """Give the whole answer."""
        self.start(status, fields, len(body), body, last=True)

    def refuse(self, error: DoorError) -> None:
        """Give an error of our own, as the path's clients read errors."""
        if speaks_aws(self.path):
            told = aws.told(error)
            fields = told.fields() + b"x-request-id: %b\r\n" % self.identity + date_line()
            if b"x-amzn-requestid: " not in self._fields:
                fields += b"x-amzn-requestid: %b\r\n" % self.identity
            self.answer(told.status, fields, told.body)
            return
        extra = b"".join([b"%b: %b\r\n" % pair for pair in error.headers])
        fields = b"content-type: application/json\r\nx-request-id: %b\r\n%b%b" % (
            self.identity,
            date_line(),
            extra,
        )
        self.answer(error.status, fields, error.body())

    def start(
        self, status: int, fields: bytes, length: int | None, data: bytes, *, last: bool
    ) -> None:
        """Begin the answer with its first bytes; `length` is that of the whole body, if known."""
        self.started = True
        framing = self._framing(status, length)
        if not self._with_body:
            data = b""
        elif self._chunked:
            data = _chunk(data, last)
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        self._line.write(b"%b%b%b%b\r\n%b" % (line, fields, self._fields, framing, data))
        if last:
            self._end()

    def _framing(self, status: int, length: int | None) -> bytes:
        """Decide how the body ends; return the header lines that say so."""
        if self._line.stopping:
            self.keep = False
        framing = b""
        if status in {204, 304}:  # without a body, whatever length is told (RFC 9110 section 8.6)
            self._with_body = False
        elif length is not None:
            framing = b"content-length: %d\r\n" % length
        elif self.version == "1.1":
            self._chunked = True
            framing = b"transfer-encoding: chunked\r\n"
        else:
            self.keep = self._framed = False
        if not self.keep:
            return framing + b"connection: close\r\n"
        return framing if self.version == "1.1" else framing + b"connection: keep-alive\r\n"

    def write(self, data: bytes, last: bool) -> None:
        """Go on with the answer."""
        if not self._with_body:
            data = b""
        elif self._chunked:
            data = _chunk(data, last)
        if data:
            self._line.write(data)
        if last:
            self._end()

    def fail(self, event: bytes, message: str) -> None:
        """End a stream with an error; `event` says `message` in the stream's own shape."""
        del message
        self.write(event, last=True)

    def feed_from(self, source: Source | None) -> None:
        """The answer flows from there: pause it while the client is slow."""
        self._line.feed_from(source)

    def cut(self) -> None:
        """Leave the answer without an end: the client must see that it is not whole."""
        if not self.ended:
            self.ended = True
            self._line.cut(framed=self._framed)

    def _end(self) -> None:
        self.ended = True
        self._line.finished(self)


def _chunk(data: bytes, last: bool) -> bytes:
    """RFC 9112 section 7.1."""
    if not data:
        return b"0\r\n\r\n" if last else b""
    return (b"%x\r\n%b\r\n0\r\n\r\n" if last else b"%x\r\n%b\r\n") % (len(data), data)


_date = (0, b"")


def date_line() -> bytes:
    """Return the header field `Date` of now (RFC 9110 section 6.6.1), made once a second."""
    global _date  # noqa: PLW0603 - a cache of one
    now = int(time())
    if _date[0] != now:
        _date = (now, b"date: %b\r\n" % format_date_time(now).encode())
    return _date[1]
