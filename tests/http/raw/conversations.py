"""Pipelined requests, partial requests, and bytes that are not HTTP at all."""

from tests.http.raw.request import (
    BODY,
    HIDDEN,
    HOST,
    LENGTH,
    LINE,
    WHOLE,
    chunked,
    get,
    head,
    post,
)
from tests.http.raw.row import DROPPED, End, Outcome, Row, Wait, answered, refused, row, served

ORDER = "RFC 9112 section 9.3.2: answers come in the order of the requests"
NEXT = "RFC 9112 section 6.3: what follows a body is the next request"
WHOLE_ONLY = "RFC 9112 section 8: half a request is none, and is waited for"
NO_HTTP = "RFC 9112 section 3: an invalid request line is answered with 400, or not at all"


def _numbered(count: int) -> list[bytes]:
    return [b'{"model":"m","n":%d}' % n for n in range(count)]


def _name(n: int) -> bytes:
    return b"x-request-id: number-%d" % n


def _pipelined(bodies: list[bytes]) -> bytes:
    return b"".join(post(_name(n), body=body) for n, body in enumerate(bodies))


#: A short request to be cut at the places below.
_SHORT = get(b"empty:")
_CUTS = {
    "method": b"G",
    "method-and-space": b"GET ",
    "target": b"GET /health/live",
    "target-and-space": b"GET /health/live ",
    "protocol": b"GET /health/live HTTP",
    "version": b"GET /health/live HTTP/1.1",
    "line-and-cr": b"GET /health/live HTTP/1.1\r",
    "line": b"GET /health/live HTTP/1.1\r\n",
    "name": b"GET /health/live HTTP/1.1\r\nho",
    "colon": b"GET /health/live HTTP/1.1\r\nhost:",
    "space": b"GET /health/live HTTP/1.1\r\nhost: ",
    "value": b"GET /health/live HTTP/1.1\r\nhost: a",
    "value-and-cr": b"GET /health/live HTTP/1.1\r\nhost: a\r",
    "field": b"GET /health/live HTTP/1.1\r\nhost: a\r\n",
    "fields": b"GET /health/live HTTP/1.1\r\nhost: a\r\nempty:\r\n",
    "fields-and-cr": b"GET /health/live HTTP/1.1\r\nhost: a\r\nempty:\r\n\r",
}
_CHUNK_CUTS = (b"d", b"d\r", b"d\r\n", b"d\r\n" + BODY[:6], b"d\r\n" + BODY, WHOLE[:-4], WHOLE[:-1])

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

_TWENTY = _numbered(20)

ROWS: list[Row] = [
    row(
        "many/two",
        ORDER,
        _pipelined(_numbered(2)),
        served(*_numbered(2), end=End.KEPT),
        ids=[b"number-0", b"number-1"],
    ),
    row(
        "many/twenty",
        ORDER,
        _pipelined(_TWENTY),
        served(*_TWENTY, end=End.KEPT),
        ids=[b"number-%d" % n for n in range(20)],
    ),
    row(
        "many/twenty-and-one-closes",
        "RFC 9112 section 9.6: after `close` nothing more is processed",
        _pipelined(_TWENTY[:10]) + post(b"connection: close") + HIDDEN * 9,
        served(*_TWENTY[:10], BODY, end=End.CLOSED),
    ),
    row(
        "many/quick-ones-wait-for-slow-ones",
        ORDER,
        post(_name(0)) + get(_name(1)) + post(_name(2)) + get(_name(3)),
        served(BODY).then(answered(200)).then(served(BODY)).then(answered(200, end=End.KEPT)),
        ids=[b"number-0", b"number-1", b"number-2", b"number-3"],
    ),
    row(
        "many/errors-wait-their-turn",
        ORDER,
        post(_name(0)) + get(_name(1), target=b"/nothing") + post(_name(2)),
        served(BODY).then(answered(404)).then(served(BODY, end=End.KEPT)),
        ids=[b"number-0", b"number-1", b"number-2"],
    ),
    row(
        "many/as-many-errors-as-may-wait",
        ORDER,
        post() + get(target=b"/nothing") * 255 + post(),
        served(BODY)
        .then(Outcome((frozenset({404}),) * 255, (), End.EITHER))
        .then(served(BODY, end=End.KEPT)),
    ),
    row(
        "many/a-bad-one-last",
        ORDER,
        post() + post() + head(LINE, HOST, LENGTH, b"x y: z") + BODY + HIDDEN,
        served(BODY, BODY).then(refused(400)),
    ),
    row(
        "many/chunks-and-lengths",
        NEXT,
        chunked(WHOLE) + post() + chunked(WHOLE) + post(),
        served(BODY, BODY, BODY, BODY, end=End.KEPT),
    ),
    row(
        "many/two-in-turn",
        "RFC 9112 section 9.3",
        [get(), Wait.FINAL, post()],
        answered(200).then(served(BODY, end=End.KEPT)),
    ),
    row(
        "many/rubbish-after-the-length",
        NEXT,
        post() + b"XX\r\n\r\n" + HIDDEN,
        served(BODY).then(refused(400, 501)),
    ),
    row(
        "many/one-byte-after-length-zero",
        NEXT,
        head(LINE, HOST, b"content-length: 0") + b"X\r\n\r\n" + HIDDEN,
        answered(400).then(refused(400, 501)),
        refused(400),
    ),
    row(
        "many/a-request-as-body",
        "RFC 9112 section 6.3: a body is a body, whatever it says",
        post(body=b'{"model":"m","prompt":"POST / HTTP/1.1\\r\\n\\r\\n"}'),
        served(b'{"model":"m","prompt":"POST / HTTP/1.1\\r\\n\\r\\n"}', end=End.KEPT),
    ),
    row(
        "many/a-bad-body-hides-no-request",
        "RFC 9112 section 6.3: a body is a body, whatever it says",
        post(body=HIDDEN),
        answered(400),
    ),
    row(
        "many/a-bad-body-and-then-a-good-one",
        "RFC 9112 section 9.3: a body that cannot be understood was read whole",
        post(body=b"{") + post(),
        answered(400).then(served(BODY, end=End.KEPT)),
        refused(400),
    ),
    *(
        row(
            f"half/{name}",
            WHOLE_ONLY,
            [cut, Wait.SILENCE, _SHORT.removeprefix(cut)],
            answered(200, end=End.KEPT),
        )
        for name, cut in _CUTS.items()
    ),
    row(
        "half/body",
        WHOLE_ONLY,
        [post()[:-1], Wait.SILENCE, post()[-1:]],
        served(BODY, end=End.KEPT),
    ),
    *(
        row(
            f"half/chunk-{place}",
            WHOLE_ONLY,
            [chunked(cut), Wait.SILENCE, WHOLE.removeprefix(cut)],
            served(BODY, end=End.KEPT),
        )
        for place, cut in enumerate(_CHUNK_CUTS)
    ),
    row(
        "half/only-an-empty-line",
        "RFC 9112 section 2.2: at least one empty line before a request is ignored",
        [b"\r\n", Wait.SILENCE, get()],
        answered(200, end=End.KEPT),
    ),
    row(
        "half/nothing",
        WHOLE_ONLY,
        [Wait.SILENCE, get()],
        answered(200, end=End.KEPT),
    ),
    *(
        row(f"garbage/{name}", NO_HTTP, data, refused(400, 405, 501, 505), DROPPED)
        for name, data in GARBAGE.items()
    ),
    *(
        row(
            f"garbage/after-a-request-{name}",
            NO_HTTP,
            post() + GARBAGE[name],
            served(BODY).then(refused(400, 405, 501, 505)),
            served(BODY, end=End.CLOSED),
        )
        for name in ("tls", "http2", "nul", "proxy-protocol-1")
    ),
]
