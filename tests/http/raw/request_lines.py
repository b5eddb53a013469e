"""The request line: method, target, version, and the white space between them."""

from tests.http.raw.request import BODY, HIDDEN, HOST, get, head, post, targeted
from tests.http.raw.row import (
    BAD,
    CLOSED,
    DROPPED,
    KEPT,
    SERVED,
    End,
    Row,
    answered,
    each,
    refused,
    row,
    served,
)

LINE_RULE = "RFC 9112 section 3: an invalid request line is answered with 400"
LENIENT = "RFC 9112 section 3: any white space may be taken for the one space, or refused"
VERSION = "RFC 9112 section 2.3 and RFC 9110 section 15.6.6: HTTP-version, case-sensitive"
#: There is no such version; who sends it is testing what two readers make of it.
MINOR = "RFC 9110 section 6.2 would have a higher minor version processed as the highest known"
#: llhttp takes the names RTSP and ICE for HTTP/1.0 and does not tell; nothing but a proper request
#: of our own ever reaches a worker.
PROTOCOL = "RFC 9112 section 3 would have 400"
LINES = "RFC 9112 section 2.2"
EMPTY_LINES = "RFC 9112 section 2.2: empty lines before a request, one or more, are ignored"
SUPPORTED = "RFC 9112 section 3: request lines of 8000 bytes are supported"
LONG = "RFC 9110 section 15.5.15"
METHOD = "RFC 9112 section 3: a method longer than any is answered with 501"
CLOSE = "RFC 9112 section 9.3: nobody knows where the next one begins"

BAD_VERSIONS = [
    *(b"HTTP/0.9", b"HTTP/2.0", b"HTTP/2", b"HTTP/3.0", b"HTTP/9.9", b"HTTP/0.0", b"HTTP/1.10"),
    *(b"HTTP/11.1", b"HTTP/01.01", b"HTTP/1", b"HTTP/1.", b"HTTP/.1", b"HTTP/1.1.1", b"HTTP/1,1"),
    *(b"HTTP/-1.1", b"HTTP/1.x", b"HTTP/1.1x", b"HTTP1.1", b"HTTP//1.1", b"HTTP\\1.1"),
    *(b"http/1.1", b"Http/1.1", b"HTP/1.1", b"HTTPS/1.1", b"HTTP", b"1.1", b"HTTP /1.1"),
    *(b"HTTP/ 1.1", b"HTTP/1 .1", b"HTTP/1. 1", b"HTTP/1.1\x00", b"\x00HTTP/1.1"),
    *(b"HTTP/\xef\xbc\x91.1", b"evil HTTP/1.1", b"HTTP/1.1 HTTP/1.1"),
]
NO_VERSION = {
    "at-all": b"GET /health/live\r\n\r\n",
    "but-a-space": b"GET /health/live \r\n\r\n",
    "and-fields": post(line=b"POST /v1/completions"),
}
PROTOCOLS = [b"GET /health/live RTSP/1.0", b"DESCRIBE /health/live RTSP/1.0"]
PROTOCOLS += [b"SOURCE /health/live ICE/1.0"]
#: White space where there should be none, or other than a single space.
SPACES = [
    *(b" POST /v1/completions HTTP/1.1", b"\tPOST /v1/completions HTTP/1.1"),
    *(b"POST  /v1/completions HTTP/1.1", b"POST /v1/completions  HTTP/1.1"),
    *(b"POST\t/v1/completions HTTP/1.1", b"POST /v1/completions\tHTTP/1.1"),
    *(b"POST\x0b/v1/completions HTTP/1.1", b"POST /v1/completions\x0cHTTP/1.1"),
    *(b"POST\r/v1/completions HTTP/1.1", b"POST /v1/completions\rHTTP/1.1"),
    *(b"POST /v1/completions HTTP/1.1 ", b"POST /v1/completions HTTP/1.1\t"),
    b"POST /v1/completions HTTP/1.1\r",
]
BROKEN = [
    *(b"POST", b"POST ", b"POST HTTP/1.1", b"POST  HTTP/1.1", b"/v1/completions HTTP/1.1"),
    *(b" /v1/completions HTTP/1.1", b"HTTP/1.1", b"HTTP/1.1 200 OK"),
    *(b"POST /v1/comp letions HTTP/1.1", b"Extra linePOST /v1/completions HTTP/1.1"),
    *(b"\x01POST /v1/completions HTTP/1.1", b"PO\x01ST /v1/completions HTTP/1.1"),
    *(b"PO\x00ST /v1/completions HTTP/1.1", b"PO(ST /v1/completions HTTP/1.1"),
    *(b'"POST" /v1/completions HTTP/1.1', b"P\xc3\x96ST /v1/completions HTTP/1.1"),
    *(b"POST: /v1/completions HTTP/1.1", b"\xef\xbb\xbfPOST /v1/completions HTTP/1.1"),
]
#: Whole requests with other line ends.
CR = {
    "line": post().replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r"),
    "all": post().replace(b"\r\n", b"\r"),
    "lf-cr": post().replace(b"\r\n", b"\n\r"),
}
LF = {
    "line": post().replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n"),
    "all": post().replace(b"\r\n", b"\n"),
    "before": b"\n" + post(),
    "cr-before": b"\r" + post(),
}


def _line(line: bytes) -> bytes:
    return post(line=line)


def _versioned(version: bytes) -> bytes:
    return post(line=b"POST /v1/completions " + version)


def _long(size: int) -> bytes:
    """A request with a valid target of that many bytes."""
    return targeted(b"/v1/completions?" + b"x" * (size - len(b"/v1/completions?")))


ROWS: list[Row] = [
    row("line/1.1", VERSION, post(), KEPT),
    row("line/1.0", VERSION, _versioned(b"HTTP/1.0"), CLOSED),
    *each("line/version", VERSION, _versioned, BAD_VERSIONS, refused(400, 505)),
    row("line/version-1.2", MINOR, _versioned(b"HTTP/1.2"), refused(400, 505)),
    *each("line/no-version", VERSION, bytes, NO_VERSION, refused(400, 505)),
    *each(
        *("line/protocol", PROTOCOL, lambda line: head(line, HOST), PROTOCOLS),
        *(refused(400, 405, 501, 505), answered(200, 404, 405, 501)),
    ),
    *each("line/space", LENIENT, _line, SPACES, BAD, SERVED),
    *each("line/broken", LINE_RULE, _line, BROKEN, refused(400, 501)),
    row("line/only-spaces", LINE_RULE, b"   \r\n\r\n", BAD, DROPPED),
    *each("line/cr", LINES, bytes, CR, BAD),
    *each("line/lf", LINES, bytes, LF, BAD, SERVED),
    row("line/empty-line-before", EMPTY_LINES, b"\r\n" + post(), KEPT),
    row("line/empty-lines-before", EMPTY_LINES, b"\r\n" * 5 + post(), KEPT, BAD),
    row(
        *("line/empty-line-between", EMPTY_LINES, post() + b"\r\n" + post()),
        served(BODY, BODY, end=End.KEPT),
    ),
    row("line/8000-bytes", SUPPORTED, _long(8000 - len(b"POST  HTTP/1.1")), KEPT),
    row("line/target-at-the-limit", LONG, _long(8192), KEPT),
    row("line/target-over-the-limit", LONG, _long(8193), answered(414)),
    row("line/target-of-100-KiB", LONG, _long(100 << 10), answered(414)),
    row("line/target-without-end", LONG, b"POST /" + b"x" * (1 << 20), refused(414)),
    row(
        *("line/target-without-end-in-its-authority", LONG, b"POST http://" + b"x" * (1 << 20)),
        refused(400, 414),
    ),
    row(
        *(
            "line/method-of-100-KiB",
            METHOD,
            _line(b"A" * (100 << 10) + b" /v1/completions HTTP/1.1"),
        ),
        refused(400, 414, 431, 501),
    ),
    row(
        *("line/a-bad-request-after-a-good-one", LINE_RULE),
        *(post() + b"NONSENSE\r\n\r\n" + HIDDEN, SERVED.then(refused(400, 501))),
    ),
    row("line/a-good-request-after-a-bad-one", CLOSE, get(target=b"/a b") + HIDDEN, BAD),
]
