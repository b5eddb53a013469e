"""Pipelined requests, partial requests, and bytes that are not HTTP at all."""

from tests.http.raw.request import BODY, HIDDEN, HOST, LENGTH, LINE, WHOLE, chunked, get, head, post
from tests.http.raw.row import (
    BAD,
    DROPPED,
    KEPT,
    SERVED,
    End,
    Outcome,
    Row,
    Steps,
    Wait,
    answered,
    each,
    refused,
    row,
    served,
)

ORDER = "RFC 9112 section 9.3.2: answers come in the order of the requests"
NEXT = "RFC 9112 section 6.3: what follows a body is the next request"
WHOLE_ONLY = "RFC 9112 section 8: half a request is none, and is waited for"
NO_HTTP = "RFC 9112 section 3: an invalid request line is answered with 400, or not at all"
CLOSE = "RFC 9112 section 9.6: after `close` nothing more is processed"
BODY_IS_BODY = "RFC 9112 section 6.3: a body is a body, whatever it says"
READ_WHOLE = "RFC 9112 section 9.3: a body that cannot be understood was read whole"
EMPTY_LINE = "RFC 9112 section 2.2: at least one empty line before a request is ignored"


def _numbered(count: int) -> list[bytes]:
    return [b'{"model":"m","n":%d}' % n for n in range(count)]


def _ids(count: int) -> list[bytes]:
    return [b"number-%d" % n for n in range(count)]


def _name(n: int) -> bytes:
    return b"x-request-id: number-%d" % n


def _pipelined(bodies: list[bytes]) -> bytes:
    return b"".join(post(_name(n), body=body) for n, body in enumerate(bodies))


def _cut(name: str, request: bytes, at: int, outcome: Outcome) -> Row:
    return row(name, WHOLE_ONLY, [request[:at], Wait.SILENCE, request[at:]], outcome)


_SHORT = get(b"empty:")
#: Where a short request is cut: within and after each part of its line and of its fields.
_CUTS = (1, 4, 16, 17, 21, 25, 26, 27, 29, 32, 33, 34, 35, 36, 44, 45)
_CHUNK_CUTS = (1, 2, 3, 9, 16, len(WHOLE) - 4, len(WHOLE) - 1)

GARBAGE = {
    "tls": bytes.fromhex("16030100c8010000c40303") + bytes(range(1, 190)),
    "tls-short": b"\x16\x03\x01",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "http2-as-1.1": b"PRI * HTTP/1.1\r\nhost: a\r\n\r\n",
    "nul": b"\x00" * 64,
    "high": b"\xff" * 64,
    "every-byte": bytes(range(256)),
    "every-byte-backwards": bytes(range(255, -1, -1)),
    "proxy-protocol-1": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + HIDDEN,
    "proxy-protocol-2": bytes.fromhex("0d0a0d0a000d0a515549540a21110000") + HIDDEN,
    "ssh": b"SSH-2.0-client\r\n",
    "smtp": b"EHLO a\r\n",
    "redis": b"*1\r\n$4\r\nPING\r\n",
    "memcached": b"get x\r\n",
    "ftp": b"USER anonymous\r\n",
    "sip": b"REGISTER sip:a SIP/2.0\r\n\r\n",
    "words": b"nonsense\r\n\r\n",
    "json": BODY,
    "utf-16": b"\xff\xfe" + "POST /v1/completions HTTP/1.1\r\n\r\n".encode("utf-16-le"),
    "websocket-frame": b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58",
    "an-answer": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    "a-chunk": WHOLE,
}
_AFTER = {name: GARBAGE[name] for name in ("tls", "http2", "nul", "proxy-protocol-1")}
_UNKNOWN = refused(400, 405, 501, 505)

_EMPTY: Steps = [b"\r\n", Wait.SILENCE, get()]
_TWENTY = _numbered(20)
_LIKE_A_REQUEST = b'{"model":"m","prompt":"POST / HTTP/1.1\\r\\n\\r\\n"}'
_TURNS = post(_name(0)) + get(_name(1)) + post(_name(2)) + get(_name(3))
_ERRORS = post(_name(0)) + get(_name(1), target=b"/nothing") + post(_name(2))
_NO_BODY = head(LINE, HOST, b"content-length: 0") + b"X\r\n\r\n" + HIDDEN
_LAST_BAD = post() + post() + head(LINE, HOST, LENGTH, b"x y: z") + BODY + HIDDEN

ROWS: list[Row] = [
    row(
        *("many/two", ORDER, _pipelined(_TWENTY[:2]), served(*_TWENTY[:2], end=End.KEPT)),
        ids=_ids(2),
    ),
    row(
        *("many/twenty", ORDER, _pipelined(_TWENTY), served(*_TWENTY, end=End.KEPT)),
        ids=_ids(20),
    ),
    row(
        *("many/twenty-and-one-closes", CLOSE),
        _pipelined(_TWENTY[:10]) + post(b"connection: close") + HIDDEN * 9,
        served(*_TWENTY[:10], BODY, end=End.CLOSED),
    ),
    row(
        *("many/quick-ones-wait-for-slow-ones", ORDER, _TURNS),
        SERVED.then(answered(200)).then(SERVED).then(answered(200, end=End.KEPT)),
        ids=_ids(4),
    ),
    row(
        *("many/errors-wait-their-turn", ORDER, _ERRORS),
        SERVED.then(answered(404)).then(KEPT),
        ids=_ids(3),
    ),
    row(
        *("many/as-many-errors-as-may-wait", ORDER),
        post() + get(target=b"/nothing") * 255 + post(),
        SERVED.then(Outcome((frozenset({404}),) * 255, (), End.EITHER)).then(KEPT),
    ),
    row("many/a-bad-one-last", ORDER, _LAST_BAD, served(BODY, BODY).then(BAD)),
    row(
        *("many/chunks-and-lengths", NEXT, (chunked(WHOLE) + post()) * 2),
        served(BODY, BODY, BODY, BODY, end=End.KEPT),
    ),
    row("many/two-in-turn", ORDER, [get(), Wait.FINAL, post()], answered(200).then(KEPT)),
    row(
        *("many/rubbish-after-the-length", NEXT, post() + b"XX\r\n\r\n" + HIDDEN),
        SERVED.then(refused(400, 501)),
    ),
    row(
        *("many/one-byte-after-length-zero", NEXT, _NO_BODY),
        *(answered(400).then(refused(400, 501)), BAD),
    ),
    row(
        *("many/a-request-as-body", BODY_IS_BODY, post(body=_LIKE_A_REQUEST)),
        served(_LIKE_A_REQUEST, end=End.KEPT),
    ),
    row("many/a-bad-body-hides-no-request", BODY_IS_BODY, post(body=HIDDEN), answered(400)),
    row(
        *("many/a-bad-body-and-then-a-good-one", READ_WHOLE, post(body=b"{") + post()),
        *(answered(400).then(KEPT), BAD),
    ),
    *(_cut(f"half/{_SHORT[:at]!r}", _SHORT, at, answered(200, end=End.KEPT)) for at in _CUTS),
    _cut("half/body", post(), -1, KEPT),
    *(_cut(f"half/chunk-{at}", chunked(WHOLE), len(chunked(b"")) + at, KEPT) for at in _CHUNK_CUTS),
    row("half/only-an-empty-line", EMPTY_LINE, _EMPTY, answered(200, end=End.KEPT)),
    row("half/nothing", WHOLE_ONLY, [Wait.SILENCE, get()], answered(200, end=End.KEPT)),
    *each("garbage", NO_HTTP, bytes, GARBAGE, _UNKNOWN, DROPPED),
    *each(
        *("garbage/after-a-request", NO_HTTP, lambda data: post() + data, _AFTER),
        *(SERVED.then(_UNKNOWN), served(BODY, end=End.CLOSED)),
    ),
]
