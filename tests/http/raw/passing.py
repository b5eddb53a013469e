"""Header fields that the router does not interpret: they reach the worker unchanged."""

from tests.http.raw.request import BODY, get, post
from tests.http.raw.row import End, Row, answered, row, served

UNKNOWN = "RFC 9110 section 5.1: a proxy forwards fields that it does not know"
COOKIES = "RFC 6265 section 5.4, and RFC 9110 section 5.3 for their order"
RANGES = "RFC 9110 section 14.2: Range is for GET; on others it is ignored"
CONDITIONS = "RFC 9110 section 13.2.1: conditions are for the one who has the resource"
TYPES = "RFC 9110 section 8.3: the type of a body is for its reader"
END_TO_END = "RFC 9110 section 7.6.1: all other fields are forwarded"

_MANY_COOKIES = b"; ".join(b"k%d=v%d" % (n, n) for n in range(1000))
_MANY_RANGES = b"bytes=0-," + b",".join(b"5-%d" % n for n in range(1300))

FIELDS = {
    "cookie": (COOKIES, b"cookie", b"a=b"),
    "cookie-pairs": (COOKIES, b"cookie", b"a=1; b=2; c=3"),
    "cookie-empty": (COOKIES, b"cookie", b""),
    "cookie-empty-value": (COOKIES, b"cookie", b"a="),
    "cookie-no-pairs": (COOKIES, b"cookie", b"===;;;"),
    "cookie-special": (COOKIES, b"cookie", b'a="b c,d"; e=f=g'),
    "cookie-thousand": (COOKIES, b"cookie", _MANY_COOKIES),
    "range": (RANGES, b"range", b"bytes=0-10"),
    "range-no-numbers": (RANGES, b"range", b"bytes=abc-xyz"),
    "range-backwards": (RANGES, b"range", b"bytes=9-1"),
    "range-overlapping": (RANGES, b"range", b"bytes=0-,0-,0-"),
    "range-thousand": (RANGES, b"range", _MANY_RANGES),
    "range-unit": (RANGES, b"range", b"pages=1-2"),
    "if-range": (CONDITIONS, b"if-range", b'"a"'),
    "if-none-match": (CONDITIONS, b"if-none-match", b'"a", W/"b"'),
    "if-none-match-any": (CONDITIONS, b"if-none-match", b"*"),
    "if-none-match-no-quotes": (CONDITIONS, b"if-none-match", b"a"),
    "if-match": (CONDITIONS, b"if-match", b'"a"'),
    "if-modified-since": (CONDITIONS, b"if-modified-since", b"Thu, 01 Jan 2099 00:00:00 GMT"),
    "if-modified-since-no-date": (CONDITIONS, b"if-modified-since", b"yesterday"),
    "accept-unknown": (TYPES, b"accept", b"application/x-nonsense"),
    "type-unknown": (TYPES, b"content-type", b"application/x-nonsense"),
    "type-broken": (TYPES, b"content-type", b";;;"),
    "language": (END_TO_END, b"accept-language", b"en, de;q=0"),
    "authorization": (END_TO_END, b"authorization", b"Bearer key"),
    "agent": (END_TO_END, b"user-agent", b"a (b; c) \t d"),
    "cache-control": (END_TO_END, b"cache-control", b"no-store, only-if-cached"),
    "pragma": (END_TO_END, b"pragma", b"no-cache"),
    "forwarded": (END_TO_END, b"forwarded", b"for=192.0.2.1;host=evil"),
    "unknown": (UNKNOWN, b"x-unknown", b"a"),
    "underscore": (UNKNOWN, b"x_y", b"a"),
    "host-like": (UNKNOWN, b"x-host", b"b"),
    "rewrite": (UNKNOWN, b"x-original-url", b"/metrics"),
}

ROWS: list[Row] = [
    *(
        row(
            f"passing/{name}",
            rfc,
            post(field + b": " + value),
            served(BODY, end=End.KEPT),
            carried=[(field, value)],
        )
        for name, (rfc, field, value) in FIELDS.items()
    ),
    row(
        "passing/two-cookies",
        COOKIES,
        post(b"cookie: a=1", b"cookie: b=2"),
        served(BODY, end=End.KEPT),
        carried=[(b"cookie", b"a=1"), (b"cookie", b"b=2")],
    ),
    row(
        "passing/two-types",
        "RFC 9110 section 5.3: a field that is no list comes once",
        post(b"content-type: application/json", b"content-type: text/html"),
        served(BODY),
        answered(400, 415),
    ),
    row(
        "passing/range-of-what-is-ours",
        "RFC 9110 section 14.2: a server may ignore Range",
        get(b"range: bytes=0-1," + b",".join(b"%d-" % n for n in range(1000))),
        answered(200, 416, end=End.KEPT),
    ),
    row(
        "passing/condition-on-what-is-ours",
        "RFC 9110 section 13.1.2: `*` does not fit where there is something",
        get(b"if-none-match: *"),
        answered(200, 304, end=End.KEPT),
    ),
    row(
        "passing/accept-of-what-is-ours",
        "RFC 9110 section 12.5.1: 406, or the one form there is",
        get(b"accept: application/x-nonsense"),
        answered(200, 406, end=End.KEPT),
    ),
]
