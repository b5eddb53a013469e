"""The answer to an invocation, told as SageMaker tells it.

The proxy serves it like any other exchange and knows nothing of it. What it says is passed on to
the client's exchange: as it comes, in frames of an event stream, or, where the whole of it must be
known first (an error, or a text in another dialect), once it is there.
"""

from router.errors import Headers, NoWorker
from router.exchange import Exchange, Source, date_line
from router.headers import CREDENTIALS, FOR_SAGEMAKER, header, passing_fields
from router.sagemaker import frames
from router.sagemaker.errors import LONGEST, AwsError, model_error, stream_error, told
from router.sagemaker.inputs import as_generation
from router.sessions.ids import AWS_HEADER
from router.sessions.sessions import Sessions
from router.sessions.visit import Visit

#: Bytes of an answer that are kept to be told in another dialect.
LARGEST = 16 << 20
_CUSTOM = b"x-amzn-sagemaker-custom-attributes"
_VARIANT = b"x-amzn-sagemaker-target-variant"
_PLATFORM_S = (b"x-amzn-requestid:", b"x-amzn-invoked-production-variant:")
_BEGUN = (b"x-amzn-sagemaker-new-session-id:", b"x-warmroute-session:")
_REST = frozenset((b"content-type", b"accept"))


class Answer(Exchange):
    """An invocation's exchange, in front of the client's own."""

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
        self, outer: Exchange, body: bytes, visit: Visit | None, *, framed: bool, converts: bool
    ) -> None:
        """`framed`: as an event stream. `converts`: a completion is told as `generation`."""
        super().__init__(outer.line, outer.head, keep=outer.keep)
        self._outer = outer
        self.left = outer.left
        outer.inner = self
        self.identity, self.tenant, self.body = outer.identity, outer.tenant, body
        self.salts = outer.salts
        self.part = visit
        self._framed = framed
        self._converts = converts and not framed
        self._holds = False
        self._held: list[bytes] = []
        self._size = self._status = 0
        self._kept = b""
        self.stateful = False
        """It is for a worker that keeps sessions itself."""
        self.failed = False
        """What was there of it could not be told; the client was told an error."""
        outer.add(_ours(outer.headers, outer.identity))

    @property
    def told(self) -> bool:
        """The client has been told: not while the answer is held back."""
        return self._outer.started and not self.commented

    # What the proxy asks.

    def visit(self, sessions: Sessions) -> Visit | None:
        """Return the part in a session that was found out already."""
        del sessions
        return self.part

    def passing(self, *, keyed: bool) -> bytes:
        """Return the header lines for the worker: none of those that are for SageMaker."""
        del keyed  # a signature or a token for AWS opens nothing at a worker
        headers, named = self.headers, self.head.named
        kept = [pair for pair in headers if pair[0] not in CREDENTIALS and pair[0] not in _REST]
        lines = passing_fields(kept, named, keyed=True) + b"content-type: application/json\r\n"
        return lines + self._for_container() if self.stateful else lines

    def _for_container(self) -> bytes:
        """A container that keeps sessions gets what SageMaker would pass on to it."""
        fields = [
            pair
            for pair in self.headers
            if pair[0] in FOR_SAGEMAKER and pair[0].startswith(b"x-amzn")
        ]
        lines = [b"%b: %b\r\n" % pair for pair in fields if pair[0] != AWS_HEADER]
        if self.part is not None:
            own = self.part.own or self.part.id
            lines.append(b"%b: %b\r\n" % (AWS_HEADER, own.encode()))
        return b"".join(lines)

    # What the proxy says.

    def add(self, fields: bytes) -> None:
        """Put header lines into the answer, whatever it will be."""
        self._outer.add(fields)

    def feed_from(self, source: Source | None) -> None:
        """The answer flows from there."""
        self._outer.feed_from(source)

    def refuse(self, error: Exception) -> None:
        """Give an error of ours."""
        self.started = self.ended = True
        self._outer.add(_custom(self.headers))
        self._outer.refuse(error)  # type: ignore[arg-type]

    def start(
        self, status: int, fields: bytes, length: int | None, data: bytes, *, last: bool
    ) -> None:
        """Begin with what the worker, or the router, says first."""
        self.started = True
        fields = _worker_s(fields)
        if not fields.startswith(_CUSTOM) and b"\n" + _CUSTOM + b":" not in fields:
            fields += _custom(self.headers)  # else its own is what SageMaker would pass on
        if status >= 400 or self._converts:
            self._holds, self._status, self._kept = True, status, fields
            self._hold(data, last)
            return
        if self._framed:
            fields, kind = _typed(fields)
            fields += _framed(kind)
            length, data = None, frames.parts(data)
        self.ended = last
        self._outer.start(status, fields, length, data, last=last)

    def write(self, data: bytes, last: bool) -> None:
        """Go on."""
        if self._holds:
            self._hold(data, last)
            return
        self.ended = last
        self._outer.write(frames.parts(data) if self._framed else data, last)

    def fail(self, event: bytes, message: str) -> None:
        """End a stream with an error: as an exception, where there are frames."""
        if not self._outer.started:  # it is held back: there is no stream to end
            self.cut()
            return
        self.ended = True
        if self._framed:
            event = frames.exception("ModelStreamError", stream_error(message))
        self._outer.write(event, last=True)

    def cut(self) -> None:
        """The worker failed in the middle: say so where there is a way to."""
        if self.ended:
            return
        self.ended = True
        message = "The worker failed in the middle of its answer."
        if self.left or not self.started:
            self._outer.cut()
        elif self._holds:
            self._give(model_error(502, message))
        elif self._framed:
            self._outer.write(
                frames.exception("ModelStreamError", stream_error(message)), last=True
            )
        else:
            self._outer.cut()

    def _hold(self, data: bytes, last: bool) -> None:
        """Keep what has to be told as a whole."""
        most = LARGEST if self._status < 400 else LONGEST
        self._held.append(data[: max(0, most - self._size)])
        self._size += len(data)
        if not last:
            return
        self.ended = True
        body = b"".join(self._held)
        if self._status == 503:  # backpressure: ask again, as of a throttled endpoint
            self._give(told(NoWorker("The worker is full; please try again.")))
        elif self._status >= 400:
            self._give(model_error(self._status, body.decode("utf-8", errors="replace")))
        elif self._size > LARGEST:
            self._give(
                model_error(502, "The worker's answer is too long to be told as `generation`.")
            )
        else:
            body = as_generation(body)
            self._outer.start(self._status, self._kept, len(body), body, last=True)

    def _give(self, error: AwsError) -> None:
        kept, _ = _typed(self._kept)
        if self._status < 400:
            self.failed, kept = True, _unannounced(kept)
        self._outer.answer(error.status, kept + error.fields(), error.body)


def _ours(headers: Headers, identity: bytes) -> bytes:
    """Return the header lines of every answer to an invocation (shape InvokeEndpointOutput)."""
    variant = header(headers, _VARIANT) or b"AllTraffic"
    return b"x-amzn-requestid: %b\r\nx-amzn-invoked-production-variant: %b\r\n" % (
        identity,
        variant,
    )


def _custom(headers: Headers) -> bytes:
    """Return the caller's own attributes, as a header line."""
    custom = header(headers, _CUSTOM)
    return b"%b: %b\r\n" % (_CUSTOM, custom) if custom else b""


def _worker_s(fields: bytes) -> bytes:
    """Leave out what a worker says in SageMaker's place."""
    if b"x-amzn-" not in fields:
        return fields
    lines = fields.splitlines(keepends=True)
    return b"".join([line for line in lines if not line.startswith(_PLATFORM_S)])


def _unannounced(fields: bytes) -> bytes:
    """Leave out that a session has begun."""
    if b"x-amzn-sagemaker-new-session-id:" not in fields:
        return fields
    lines = fields.splitlines(keepends=True)
    return b"".join([line for line in lines if not line.startswith(_BEGUN)])


def session_answer(
    identity: bytes, headers: Headers, line: bytes, body: bytes, *, framed: bool
) -> tuple[bytes, bytes]:
    """Return header lines and body of an answer about a session; `line` says which."""
    fields = _ours(headers, identity) + _custom(headers) + b"x-request-id: %b\r\n" % identity
    kind, body = b"application/json", body or b"{}"
    typed = _framed(kind) if framed else b"content-type: %b\r\n" % kind
    return fields + line + typed + date_line(), frames.parts(body) if framed else body


def _framed(kind: bytes) -> bytes:
    """Return the header lines of an event stream whose parts are of a kind."""
    return b"content-type: %b\r\nx-amzn-sagemaker-content-type: %b\r\n" % (
        frames.CONTENT_TYPE,
        kind,
    )


def _typed(fields: bytes) -> tuple[bytes, bytes]:
    """Take the content type out of header lines; return the others, and its value."""
    kind, kept = b"application/octet-stream", []
    for line in fields.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        if name == b"content-type":
            kind = value.strip()
        else:
            kept.append(line + b"\r\n")
    return b"".join(kept), kind
