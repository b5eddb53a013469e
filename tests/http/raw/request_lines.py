"""The request line: method, target, version, and the white space between them."""

from tests.http.raw.request import BODY, HIDDEN, HOST, get, head, post, targeted
from tests.http.raw.row import DROPPED, End, Row, answered, refused, row, served

LINE_RULE = "RFC 9112 section 3: an invalid request line is answered with 400"
LENIENT = "RFC 9112 section 3: any white space may be taken for the one space, or refused"
VERSION = "RFC 9112 section 2.3 and RFC 9110 section 15.6.6: HTTP-version, case-sensitive"
MINOR = "RFC 9110 section 6.2: a higher minor version is processed as the highest known"
LINES = "RFC 9112 section 2.2"
LONG = "RFC 9110 section 15.5.15"

_POST = b"POST /v1/completions "

BAD_VERSIONS = {
    "0.9": b"HTTP/0.9",
    "2.0": b"HTTP/2.0",
    "2": b"HTTP/2",
    "3.0": b"HTTP/3.0",
    "9.9": b"HTTP/9.9",
    "0.0": b"HTTP/0.0",
    "1.10": b"HTTP/1.10",
    "11.1": b"HTTP/11.1",
    "leading-zeros": b"HTTP/01.01",
    "no-minor": b"HTTP/1",
    "no-minor-but-a-point": b"HTTP/1.",
    "no-major": b"HTTP/.1",
    "three-numbers": b"HTTP/1.1.1",
    "comma": b"HTTP/1,1",
    "minus": b"HTTP/-1.1",
    "letter": b"HTTP/1.x",
    "letter-after": b"HTTP/1.1x",
    "no-slash": b"HTTP1.1",
    "two-slashes": b"HTTP//1.1",
    "backslash": b"HTTP\\1.1",
    "lower-case": b"http/1.1",
    "mixed-case": b"Http/1.1",
    "short": b"HTP/1.1",
    "long": b"HTTPS/1.1",
    "only-name": b"HTTP",
    "only-number": b"1.1",
    "space-before-slash": b"HTTP /1.1",
    "space-after-slash": b"HTTP/ 1.1",
    "space-before-point": b"HTTP/1 .1",
    "space-after-point": b"HTTP/1. 1",
    "nul-after": b"HTTP/1.1\x00",
    "nul-before": b"\x00HTTP/1.1",
    "full-width": b"HTTP/\xef\xbc\x91.1",
    "another-word": b"evil HTTP/1.1",
    "twice": b"HTTP/1.1 HTTP/1.1",
}

#: White space where there should be none, or other than a single space.
SPACES = {
    "space-first": b" POST /v1/completions HTTP/1.1",
    "tab-first": b"\tPOST /v1/completions HTTP/1.1",
    "two-after-method": b"POST  /v1/completions HTTP/1.1",
    "two-after-target": b"POST /v1/completions  HTTP/1.1",
    "tab-after-method": b"POST\t/v1/completions HTTP/1.1",
    "tab-after-target": b"POST /v1/completions\tHTTP/1.1",
    "vertical-tab": b"POST\x0b/v1/completions HTTP/1.1",
    "form-feed": b"POST /v1/completions\x0cHTTP/1.1",
    "cr-after-method": b"POST\r/v1/completions HTTP/1.1",
    "cr-after-target": b"POST /v1/completions\rHTTP/1.1",
    "space-last": b"POST /v1/completions HTTP/1.1 ",
    "tab-last": b"POST /v1/completions HTTP/1.1\t",
    "cr-last": b"POST /v1/completions HTTP/1.1\r",
}

BROKEN = {
    "only-method": b"POST",
    "method-and-space": b"POST ",
    "no-target": b"POST HTTP/1.1",
    "no-target-two-spaces": b"POST  HTTP/1.1",
    "no-method": b"/v1/completions HTTP/1.1",
    "no-method-but-a-space": b" /v1/completions HTTP/1.1",
    "only-version": b"HTTP/1.1",
    "an-answer": b"HTTP/1.1 200 OK",
    "space-in-target": b"POST /v1/comp letions HTTP/1.1",
    "words-first": b"Extra linePOST /v1/completions HTTP/1.1",
    "control-first": b"\x01POST /v1/completions HTTP/1.1",
    "control-in-method": b"PO\x01ST /v1/completions HTTP/1.1",
    "nul-in-method": b"PO\x00ST /v1/completions HTTP/1.1",
    "no-token-method": b"PO(ST /v1/completions HTTP/1.1",
    "quoted-method": b'"POST" /v1/completions HTTP/1.1',
    "high-byte-method": b"P\xc3\x96ST /v1/completions HTTP/1.1",
    "colon-after-method": b"POST: /v1/completions HTTP/1.1",
    "byte-order-mark": b"\xef\xbb\xbfPOST /v1/completions HTTP/1.1",
}


def _long(size: int) -> bytes:
    """A valid target of that many bytes."""
    return b"/v1/completions?" + b"x" * (size - len(b"/v1/completions?"))


ROWS: list[Row] = [
    row("line/1.1", VERSION, post(), served(BODY, end=End.KEPT)),
    row(
        "line/1.0",
        VERSION,
        post(line=_POST + b"HTTP/1.0"),
        served(BODY, end=End.CLOSED),
    ),
    *(
        row(f"line/version-{name}", VERSION, post(line=_POST + version), refused(400, 505))
        for name, version in BAD_VERSIONS.items()
    ),
    row("line/version-1.2", MINOR, post(line=_POST + b"HTTP/1.2"), refused(400, 505)),
    row("line/version-none", VERSION, b"GET /health/live\r\n\r\n", refused(400, 505)),
    row(
        "line/version-none-but-a-space",
        VERSION,
        b"GET /health/live \r\n\r\n",
        refused(400, 505),
    ),
    row("line/version-none-and-fields", VERSION, post(line=_POST[:-1]), refused(400, 505)),
    *(
        row(
            f"line/protocol-{name}",
            VERSION,
            head(line, HOST),
            refused(400, 405, 501, 505),
            answered(200, 404, 405, 501),
        )
        for name, line in {
            "rtsp": b"GET /health/live RTSP/1.0",
            "rtsp-describe": b"DESCRIBE /health/live RTSP/1.0",
            "icecast": b"SOURCE /health/live ICE/1.0",
        }.items()
    ),
    *(
        row(f"line/space-{name}", LENIENT, post(line=line), refused(400), served(BODY))
        for name, line in SPACES.items()
    ),
    *(
        row(f"line/{name}", LINE_RULE, post(line=line), refused(400, 501))
        for name, line in BROKEN.items()
    ),
    row("line/only-spaces", LINE_RULE, b"   \r\n\r\n", refused(400), DROPPED),
    row(
        "line/bare-lf",
        LINES,
        post().replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n"),
        refused(400),
        served(BODY),
    ),
    row("line/bare-cr", LINES, post().replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r"), refused(400)),
    row("line/all-bare-lf", LINES, post().replace(b"\r\n", b"\n"), refused(400), served(BODY)),
    row("line/all-bare-cr", LINES, post().replace(b"\r\n", b"\r"), refused(400)),
    row("line/lf-cr", LINES, post().replace(b"\r\n", b"\n\r"), refused(400)),
    row(
        "line/empty-line-before",
        "RFC 9112 section 2.2: at least one empty line before a request is ignored",
        b"\r\n" + post(),
        served(BODY, end=End.KEPT),
    ),
    row(
        "line/empty-lines-before",
        "RFC 9112 section 2.2: more than one may be ignored",
        b"\r\n" * 5 + post(),
        served(BODY, end=End.KEPT),
        refused(400),
    ),
    row(
        "line/empty-line-between",
        "RFC 9112 section 2.2: some clients send one after the body",
        post() + b"\r\n" + post(),
        served(BODY, BODY, end=End.KEPT),
    ),
    row("line/lf-before", LINES, b"\n" + post(), refused(400), served(BODY)),
    row("line/cr-before", LINES, b"\r" + post(), refused(400), served(BODY)),
    row(
        "line/8000-bytes",
        "RFC 9112 section 3: request lines of 8000 bytes are supported",
        targeted(_long(8000 - len(b"POST  HTTP/1.1"))),
        served(BODY, end=End.KEPT),
    ),
    row("line/target-at-the-limit", LONG, targeted(_long(8192)), served(BODY, end=End.KEPT)),
    row("line/target-over-the-limit", LONG, targeted(_long(8193)), answered(414)),
    row("line/target-of-100-KiB", LONG, targeted(_long(100 << 10)), answered(414)),
    row("line/target-without-end", LONG, b"POST /" + b"x" * (1 << 20), refused(414)),
    row(
        "line/target-without-end-in-its-authority",
        LONG,
        b"POST http://" + b"x" * (1 << 20),
        refused(400, 414),
    ),
    row(
        "line/method-of-100-KiB",
        "RFC 9112 section 3: a method longer than any is answered with 501",
        post(line=b"A" * (100 << 10) + b" /v1/completions HTTP/1.1"),
        refused(400, 414, 431, 501),
    ),
    row(
        "line/a-bad-request-after-a-good-one",
        LINE_RULE,
        post() + b"NONSENSE\r\n\r\n" + HIDDEN,
        served(BODY).then(refused(400, 501)),
    ),
    row(
        "line/a-good-request-after-a-bad-one",
        "RFC 9112 section 9.3: nobody knows where the next one begins",
        get(target=b"/a b") + HIDDEN,
        refused(400),
    ),
]
