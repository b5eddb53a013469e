"""The answer to an invocation, in SageMaker's form.

The proxy serves it like any other exchange and does not know of SageMaker. What the proxy writes is
passed on to the client's exchange: as it comes; in frames of an event stream; or, if all of it must
be known first (an error, or a completion to be converted), when it is complete.

A frame of `application/vnd.amazon.eventstream` is: its length, the length of its headers, the
CRC-32 of those eight bytes, headers, payload, the CRC-32 of everything before. Numbers are 32 bits,
big-endian. A header is: the length of its name in one byte, the name, 7 for the type string, the
length of the value in two bytes, the value.
"""

from struct import pack
from typing import Any, Final
from zlib import crc32

from router.api.error_shapes import AwsError, aws_error, model_error, stream_error
from router.api.errors import CREDENTIALS, Headers, NoWorker
from router.http.exchange import AnswerSource, Exchange, SessionTable, date_line
from router.http.headers import FOR_SAGEMAKER, header, passing_fields
from router.sagemaker.invocation import as_generation
from router.sessions.ids import AWS_HEADER
from router.sessions.use import SessionUse

#: The end of a server-sent event (WHATWG HTML section 9.2.5).
_EVENT_END = b"\n\n"
CONTENT_TYPE = b"application/vnd.amazon.eventstream"


def frame(payload: bytes, headers: bytes) -> bytes:
    """Return one frame."""
    start = pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = b"".join((start, pack(">I", crc32(start)), headers, payload))
    return message + pack(">I", crc32(message))


def frame_header(name: bytes, text: bytes) -> bytes:
    """Return one header of a frame."""
    return b"%b%b\x07%b%b" % (bytes((len(name),)), name, pack(">H", len(text)), text)


_PART = (
    frame_header(b":message-type", b"event")
    + frame_header(b":event-type", b"PayloadPart")
    + frame_header(b":content-type", b"application/octet-stream")
)


def parts(data: bytes) -> bytes:
    """Return one frame for each whole server-sent event; anything else becomes a single frame."""
    if data.endswith(_EVENT_END):
        events = data.split(_EVENT_END)[:-1]
        return b"".join([frame(event + _EVENT_END, _PART) for event in events])
    return frame(data, _PART) if data else b""


_FAILURE = (
    frame_header(b":message-type", b"exception")
    + frame_header(b":exception-type", b"ModelStreamError")
    + frame_header(b":content-type", b"application/json")
)


def failure(message: str) -> bytes:
    """Return the frame that ends a stream with an exception of the model."""
    return frame(stream_error(message), _FAILURE)


#: Bytes of an answer that are kept for conversion, and of a worker's error that pass on.
MAX_CONVERTED_BYTES, MAX_ERROR_BYTES = 16 << 20, 8 << 10
#: The status of a full worker, whatever comes of its body.
_FULL: Final = 503
_CUSTOM = b"x-amzn-sagemaker-custom-attributes"
_VARIANT = b"x-amzn-sagemaker-target-variant"
#: Header lines that are SageMaker's to set, and those that announce a session.
_PLATFORM_LINES = (b"x-amzn-requestid:", b"x-amzn-invoked-production-variant:")
_SESSION_LINES = (b"x-amzn-sagemaker-new-session-id:", b"x-warmroute-session:")
#: Not for the worker either.
_REST = frozenset((b"content-type", b"accept"))


class InvocationExchange(Exchange):
    """An invocation's exchange, which wraps the client's own."""

    __slots__ = (
        "_converts",
        "_framed",
        "_held",
        "_holds",
        "_kept",
        "_outer",
        "_size",
        "_status",
        "failed",
        "stateful",
    )

    def __init__(
        self,
        outer: Exchange,
        body: bytes,
        visit: SessionUse | None,
        *,
        framed: bool,
        converts: bool,
    ) -> None:
        """`framed`: answer as an event stream. `converts`: convert a completion to `generation`."""
        super().__init__(outer.line, outer.head, keep=outer.keep)
        self._outer = outer
        self.left = outer.left
        outer.inner = self
        self.identity, self.tenant, self.body = outer.identity, outer.tenant, body
        self.salt, self.trusted = outer.salt, outer.trusted
        self.codings = ()
        self.session = visit
        self._framed = framed
        self._converts = converts and not framed
        self._holds = False
        self._held: list[bytes] = []
        self._size = self._status = 0
        self._kept = b""
        self.stateful = False
        """Whether it is for a worker that keeps sessions itself."""
        self.failed = False
        """Whether the worker's answer was discarded and the client was sent an error instead."""
        outer.add(_ours(outer.headers, outer.identity))

    @property
    def told(self) -> bool:
        """Whether the answer has started for the client: not while it is held back."""
        return self._outer.started and not self.commented

    # What the proxy asks.

    def session_among(self, sessions: SessionTable) -> Any:  # noqa: ANN401 - as overridden
        """Return the use of a session, which is known already.

        If other settings have moved its model to another pool, the session begins there.
        """
        if self.session is not None and not self.session.bound:
            self.session = self.session.among(sessions)
        return self.session

    def passing(self, *, keyed: bool) -> bytes:
        """Return the header lines for the worker, without those meant for SageMaker."""
        del keyed  # AWS signatures and tokens are of no use to a worker
        headers, named = self.headers, self.head.named
        kept = [pair for pair in headers if pair[0] not in CREDENTIALS and pair[0] not in _REST]
        lines = (
            passing_fields(kept, named, keyed=True, steers=self.steers)
            + b"content-type: application/json\r\n"
        )
        return lines + self._for_container() if self.stateful else lines

    def _for_container(self) -> bytes:
        """Return the header lines that SageMaker would pass on to a container that keeps
        sessions."""
        fields = [
            pair
            for pair in self.headers
            if pair[0] in FOR_SAGEMAKER and pair[0].startswith(b"x-amzn")
        ]
        lines = [b"%b: %b\r\n" % pair for pair in fields if pair[0] != AWS_HEADER]
        if self.session is not None:
            own = self.session.own or self.session.id
            lines.append(b"%b: %b\r\n" % (AWS_HEADER, own.encode()))
        return b"".join(lines)

    # What the proxy says.

    def add(self, fields: bytes) -> None:
        """Add header lines to the answer, whatever it will be."""
        self._outer.add(fields)

    def feed_from(self, source: AnswerSource | None) -> None:
        """Set the source of the answer's data."""
        self._outer.feed_from(source)

    def refuse(self, error: Exception) -> None:
        """Answer with an error of the router's."""
        self.started = self.ended = True
        self._outer.add(_custom(self.headers))
        self._outer.refuse(error)  # type: ignore[arg-type]

    def start(
        self, status: int, fields: bytes, length: int | None, data: bytes, *, last: bool
    ) -> None:
        """Start the answer with the first data of the worker or the router."""
        self.started = True
        fields = _without(fields, _PLATFORM_LINES)
        if not fields.startswith(_CUSTOM) and b"\n" + _CUSTOM + b":" not in fields:
            fields += _custom(self.headers)  # else SageMaker would use the worker's own
        if status >= 400 or self._converts:
            self._holds, self._status, self._kept = True, status, fields
            self._hold(data, last)
            return
        if self._framed:
            fields, kind = _typed(fields)
            fields += _framed(kind)
            length, data = None, parts(data)
        self.ended = last
        self._outer.start(status, fields, length, data, last=last)

    def write(self, data: bytes, last: bool) -> None:
        """Continue the answer."""
        if self._holds:
            self._hold(data, last)
            return
        self.ended = last
        self._outer.write(parts(data) if self._framed else data, last)

    def fail(self, event: bytes, message: str) -> None:
        """End a stream with an error, which is an exception if the stream has frames."""
        if not self._outer.started:  # held back, so there is no stream to end
            self.cut()
            return
        self.ended = True
        if self._framed:
            event = failure(message)
        self._outer.write(event, last=True)

    def cut(self) -> None:
        """End an answer whose worker failed midway, with an error where possible."""
        if self.ended:
            return
        self.ended = True
        message = "The worker failed in the middle of its answer."
        if self.left or not self.started:
            self._outer.cut()
        elif self._holds and self._status == _FULL:
            self._give(_is_full())
        elif self._holds:
            self._give(model_error(502, message))
        elif self._framed:
            self._outer.write(failure(message), last=True)
        else:
            self._outer.cut()

    def _hold(self, data: bytes, last: bool) -> None:
        """Keep data of an answer that is sent as a whole, and send it after the last."""
        limit = MAX_CONVERTED_BYTES if self._status < 400 else MAX_ERROR_BYTES
        self._held.append(data[: max(0, limit - self._size)])
        self._size += len(data)
        if not last:
            return
        self.ended = True
        body = b"".join(self._held)
        if self._status == _FULL:
            self._give(_is_full())
        elif self._status >= 400:
            self._give(model_error(self._status, body.decode("utf-8", errors="replace")))
        elif self._size > MAX_CONVERTED_BYTES:
            long = "The worker's answer is too long to be told as `generation`."
            self._give(model_error(502, long))
        else:
            body = as_generation(body)
            self._outer.start(self._status, self._kept, len(body), body, last=True)

    def _give(self, error: AwsError) -> None:
        kept, _ = _typed(self._kept)
        if self._status < 400:
            self.failed = True
            if _SESSION_LINES[0] in kept:  # a session that did not begin after all
                kept = _without(kept, _SESSION_LINES)
        self._outer.answer(error.status, kept + error.fields(), error.body)


def _is_full() -> AwsError:
    """Return the error for a full worker: back pressure, after which clients try again."""
    return aws_error(NoWorker("The worker is full; please try again."))


def _ours(headers: Headers, identity: bytes) -> bytes:
    """Return the header lines of every answer to an invocation (shape InvokeEndpointOutput)."""
    variant = header(headers, _VARIANT) or b"AllTraffic"
    return b"x-amzn-requestid: %b\r\nx-amzn-invoked-production-variant: %b\r\n" % (
        identity,
        variant,
    )


def _custom(headers: Headers) -> bytes:
    """Return the caller's `CustomAttributes` as a header line."""
    custom = header(headers, _CUSTOM)
    return b"%b: %b\r\n" % (_CUSTOM, custom) if custom else b""


def _without(fields: bytes, names: tuple[bytes, ...]) -> bytes:
    """Remove the header lines of these names."""
    if b"x-amzn-" not in fields:
        return fields
    lines = fields.splitlines(keepends=True)
    return b"".join([line for line in lines if not line.startswith(names)])


def answer_session(exchange: Exchange, line: bytes, body: bytes, *, framed: bool) -> None:
    """Answer a call about a session; `line` is the header line that names it."""
    identity = exchange.identity
    fields = _ours(exchange.headers, identity) + _custom(exchange.headers)
    kind, body = b"application/json", body or b"{}"
    typed = _framed(kind) if framed else b"content-type: %b\r\n" % kind
    fields += b"x-request-id: %b\r\n" % identity + line + typed + date_line()
    exchange.answer(200, fields, parts(body) if framed else body)


def _framed(kind: bytes) -> bytes:
    """Return the header lines of an event stream whose parts have a content type."""
    return b"content-type: %b\r\nx-amzn-sagemaker-content-type: %b\r\n" % (CONTENT_TYPE, kind)


def _typed(fields: bytes) -> tuple[bytes, bytes]:
    """Remove the content type from header lines; return the others, and its value."""
    kind, kept = b"application/octet-stream", []
    for line in fields.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        if name == b"content-type":
            kind = value.strip()
        else:
            kept.append(line + b"\r\n")
    return b"".join(kept), kind
