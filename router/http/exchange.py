"""One client request and its answer: the interface between the client connection and the proxy."""

import asyncio
from http import HTTPStatus
from time import time
from typing import Any, Final, Protocol
from wsgiref.handlers import format_date_time

from router.api.error_shapes import error_response
from router.api.errors import APIError, BadRequest, Headers
from router.api.lenient_json import rewritten
from router.http.content_coding import decoded
from router.http.headers import new_id
from router.http.validation import RequestHead

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class AnswerSource(Protocol):
    """Where an answer comes from."""

    def pause(self) -> None:
        """Send nothing for now."""

    def resume(self) -> None:
        """Go on sending."""


class ClientConnection(Protocol):
    """The client connection of an exchange, as far as the exchange uses it."""

    stopping: bool
    """The server wants to close the connection after this answer."""

    def write(self, data: bytes) -> None:
        """Send bytes, or buffer them until the client takes them."""

    def finished(self, exchange: "Exchange") -> None:
        """Take note that the answer is complete."""

    def feed_from(self, source: AnswerSource | None) -> None:
        """Pause `source` while the client is slow."""

    def cut(self, *, framed: bool) -> None:
        """Close the connection in the middle of an answer, so that the client can tell.

        `framed`: the client can tell by the framing, as the end of the body is marked.
        """


class SessionTable(Protocol):
    """The sessions of a pool."""

    def asked(self, headers: Headers, body: bytes) -> Any:  # noqa: ANN401 - as `Exchange.session`
        """Return the use of the session that a request names; None: it names none."""


class Exchange:
    """One request, read completely, and its answer.

    `answer` sends the whole answer; `start` and then `write` until `last` send it in pieces.
    """

    __slots__ = (
        "_chunked",
        "_fields",
        "_framed",
        "_with_body",
        "asked",
        "body",
        "codings",
        "commented",
        "ended",
        "head",
        "headers",
        "identity",
        "inner",
        "keep",
        "keyed",
        "left",
        "line",
        "max_body",
        "method",
        "path",
        "query",
        "refusal",
        "salt",
        "seen",
        "served",
        "session",
        "started",
        "steers",
        "task",
        "tenant",
        "trusted",
        "version",
    )

    def __init__(  # noqa: PLR0915 - plain state, a line each
        self, line: ClientConnection, head: RequestHead, *, keep: bool
    ) -> None:
        self.line = line
        """The connection of the request."""
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
        """Its credentials are for the router alone and do not pass on to a worker."""
        self.identity = head.identity or new_id()
        """The request id."""
        self.tenant = ""
        """Name of the client key that was shown."""
        self.salt = ""
        """The cache salt of that key; empty if keys share their caches."""
        self.trusted = self.steers = False
        """`trusted`: the operator trusts its client with what steers engines (`proxy/limits.py`).
        `steers`: so it does, or the workers that it goes to are for everyone."""
        self.refusal: APIError | None = None
        """The answer, if the head alone was reason to refuse the request."""
        self.body = b""
        """As the worker gets it."""
        self.seen = b""
        """The body as it is read here, if that is another (`lenient_json.py`)."""
        self.codings = head.codings
        """Content codings that the body is still in."""
        self.max_body = 0
        """Size limit of the body in bytes."""
        self.task: asyncio.Task[None] | None = None
        self.served = False
        """The proxy has begun to work on it."""
        self.session: Any = None
        """Its use of a session, once known; what that is, `sessions/` knows."""
        self.asked = False
        """A worker was chosen, and the metrics count the request under that worker."""
        self.started = False
        """The answer has begun."""
        self.commented = False
        """The answer so far consists of our own comments only (`sse.py`)."""
        self.ended = False
        """The answer is complete, or was cut."""
        self.left = False
        """The client closed the connection: an answer would reach nobody."""
        self.inner: Exchange | None = None
        """The exchange whose answer this one wraps in another form."""
        self._chunked = False
        self._framed = True
        """The end of the body is marked by a length or chunks, not only by the close."""
        self._with_body = head.method != "HEAD"
        self._fields = b""

    def leave(self) -> None:
        """Note that the client closed the connection."""
        self.left = True
        if self.inner is not None:
            self.inner.leave()

    @property
    def told(self) -> bool:
        """Whether the client has received the real status: an answer beyond our own comments."""
        return self.started and not self.commented

    def whose(self) -> str:
        """Return the name of the key that was shown, for a log line; empty if none was."""
        return f" key={self.tenant}" if self.tenant else ""

    def named(self) -> dict[str, str]:
        """Return the same as a field of a log line for machines."""
        return {"key": self.tenant} if self.tenant else {}

    def passing(self, *, keyed: bool) -> bytes:
        """Return the header lines for a worker, without the client's credentials if `keyed`."""
        return self.head.passing(keyed=keyed or self.keyed, steers=self.steers)

    async def decode(self) -> None:
        """Undo the content codings of the body. Raises BodyTooLarge, WrongCoding."""
        self.body = await decoded(self.body, self.codings, self.max_body)
        self.codings = ()

    async def read_laxly(self) -> None:
        """Make `seen` of a body that is not JSON to msgspec. Raises BadRequest if it is no text."""
        try:
            self.body, self.seen = await rewritten(self.body)
        except ValueError as error:
            raise BadRequest(f"The request body is not valid JSON: {error}.") from None

    def session_among(self, sessions: SessionTable) -> Any:  # noqa: ANN401 - as `session`
        """Return the request's use of a session, if it names one. Raises BadRequest.

        A request that is read again keeps it: it may have started the session.
        """
        if self.session is not None and self.session.belongs_to(sessions):
            return self.session
        return sessions.asked(self.headers, self.seen or self.body)

    async def undo(self) -> None:
        """Restore the session after a failure, unless the client already has an answer."""
        if self.session is not None and not self.told:
            await self.session.undo()

    def add(self, fields: bytes) -> None:
        """Add header lines to the answer, whatever it will be."""
        self._fields += fields

    def answer(self, status: int, fields: bytes, body: bytes) -> None:
        """Send a whole answer."""
        self.start(status, fields, len(body), body, last=True)

    def refuse(self, error: APIError) -> None:
        """Send a router error, in the shape of the path's surface."""
        response = error_response(self.path, error, self.identity)
        fields = b"%bx-request-id: %b\r\n%b" % (response.fields, self.identity, date_line())
        if response.id_field and response.id_field + b": " not in self._fields:
            fields += b"%b: %b\r\n" % (response.id_field, self.identity)
        self.answer(response.status, fields, response.body)

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
        self.line.write(b"%b%b%b%b\r\n%b" % (line, fields, self._fields, framing, data))
        if last:
            self._end()

    def _framing(self, status: int, length: int | None) -> bytes:
        """Decide how the body ends; return the header lines that say so."""
        if self.line.stopping:
            self.keep = False
        framing = b""
        if status in {204, 304}:  # no body, whatever the length says (RFC 9110 section 8.6)
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
        """Send another piece of the answer."""
        if not self._with_body:
            data = b""
        elif self._chunked:
            data = _chunk(data, last)
        if data:
            self.line.write(data)
        if last:
            self._end()

    def fail(self, event: bytes, message: str) -> None:
        """End a stream with an error; `event` carries `message` in the stream's own format."""
        del message
        self.write(event, last=True)

    def feed_from(self, source: AnswerSource | None) -> None:
        """Pause `source` while the client is slow."""
        self.line.feed_from(source)

    def cut(self) -> None:
        """End an incomplete answer so that the client can see that it is incomplete."""
        if not self.ended:
            self.ended = True
            self.line.cut(framed=self._framed)

    def _end(self) -> None:
        self.ended = True
        self.line.finished(self)


def _chunk(data: bytes, last: bool) -> bytes:
    """Frame a piece of a chunked body (RFC 9112 section 7.1)."""
    if not data:
        return b"0\r\n\r\n" if last else b""
    return (b"%x\r\n%b\r\n0\r\n\r\n" if last else b"%x\r\n%b\r\n") % (len(data), data)


_date = (0, b"")


def date_line() -> bytes:
    """Return the current `Date` header line (RFC 9110 section 6.6.1), made once a second."""
    global _date  # noqa: PLW0603 - a cache of one
    now = int(time())
    if _date[0] != now:
        _date = (now, b"date: %b\r\n" % format_date_time(now).encode())
    return _date[1]
