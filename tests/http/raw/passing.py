"""Header fields that the router does not interpret: they reach the worker unchanged."""

from tests.http.raw.request import get, post
from tests.http.raw.row import KEPT, SERVED, End, Row, answered, each, row

COOKIES = "RFC 6265 section 5.4, and RFC 9110 section 5.3 for their order"
RANGES = "RFC 9110 section 14.2: Range is for GET; on others it is ignored"
CONDITIONS = "RFC 9110 section 13.2.1: conditions are for the one who has the resource"
TYPES = "RFC 9110 section 8.3: the type of a body is for its reader"
END_TO_END = "RFC 9110 sections 5.1, 7.6.1: all other fields are forwarded, known or not"
ONCE = "RFC 9110 section 5.3: a field that is no list comes once"
OURS = "RFC 9110 sections 12.5.1, 13.1.2, 14.2: of what is ours there is one form, and all of it"

_MANY_COOKIES = b"; ".join(b"k%d=v%d" % (n, n) for n in range(1000))
_MANY_RANGES = b"bytes=0-," + b",".join(b"5-%d" % n for n in range(1300))
_SMALL_RANGES = b"range: bytes=0-1," + b",".join(b"%d-" % n for n in range(1000))

VALUES: list[tuple[str, bytes, tuple[bytes, ...]]] = [
    (COOKIES, b"cookie", (b"a=b", b"a=1; b=2; c=3", b"", b"a=", b"===;;;")),
    (COOKIES, b"cookie", (b'a="b c,d"; e=f=g', _MANY_COOKIES)),
    (RANGES, b"range", (b"bytes=0-10", b"bytes=abc-xyz", b"bytes=9-1", b"bytes=0-,0-,0-")),
    (RANGES, b"range", (_MANY_RANGES, b"pages=1-2")),
    (CONDITIONS, b"if-range", (b'"a"',)),
    (CONDITIONS, b"if-none-match", (b'"a", W/"b"', b"*", b"a")),
    (CONDITIONS, b"if-match", (b'"a"',)),
    (CONDITIONS, b"if-modified-since", (b"Thu, 01 Jan 2099 00:00:00 GMT", b"yesterday")),
    (TYPES, b"accept", (b"application/x-nonsense",)),
    (TYPES, b"content-type", (b"application/x-nonsense", b";;;")),
    (END_TO_END, b"accept-language", (b"en, de;q=0",)),
    (END_TO_END, b"authorization", (b"Bearer key",)),
    (END_TO_END, b"user-agent", (b"a (b; c) \t d",)),
    (END_TO_END, b"cache-control", (b"no-store, only-if-cached",)),
    (END_TO_END, b"pragma", (b"no-cache",)),
    (END_TO_END, b"forwarded", (b"for=192.0.2.1;host=evil",)),
    (END_TO_END, b"x-unknown", (b"a",)),
    (END_TO_END, b"x_y", (b"a",)),
    (END_TO_END, b"x-host", (b"b",)),
    (END_TO_END, b"x-original-url", (b"/metrics",)),
]
_TWO_TYPES = post(b"content-type: application/json", b"content-type: text/html")

ROWS: list[Row] = [
    *(
        row(f"passing/{field!r}-{value[:30]!r}", rfc, sent, KEPT, carried=[(field, value)])
        for rfc, field, values in VALUES
        for value in values
        for sent in [post(field + b": " + value)]
    ),
    row(
        *("passing/two-cookies", COOKIES, post(b"cookie: a=1", b"cookie: b=2"), KEPT),
        carried=[(b"cookie", b"a=1"), (b"cookie", b"b=2")],
    ),
    row("passing/two-types", ONCE, _TWO_TYPES, SERVED, answered(400, 415)),
    *each("passing/range", OURS, get, [_SMALL_RANGES], answered(200, 416, end=End.KEPT)),
    *each("passing", OURS, get, [b"if-none-match: *"], answered(200, 304, end=End.KEPT)),
    *each(
        *("passing", OURS, get, [b"accept: application/x-nonsense"]),
        answered(200, 406, end=End.KEPT),
    ),
]
