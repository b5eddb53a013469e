"""Request targets: their four forms, their characters, and similar-looking paths."""

from tests.http.raw.request import BODY, HIDDEN, HOST, LENGTH, get, head, post, targeted
from tests.http.raw.row import Row, answered, refused, row, served

FORMS = "RFC 9112 section 3.2: a target that is none of the four forms is invalid: 400"
ABSOLUTE = "RFC 9112 section 3.2.2: the absolute form is accepted"
AUTHORITY = "RFC 9112 section 3.2.3: the authority form is for CONNECT alone"
ASTERISK = "RFC 9112 section 3.2.4: the asterisk is for OPTIONS alone"
CHARACTERS = "RFC 3986 section 3.3 and RFC 9112 section 3.2: no such character in a target"
HTTP_URI = "RFC 9110 section 4.2.1: an http URI without a host is invalid"
USER = "RFC 9110 section 4.2.4: user information in a URI is an error"
OTHER = "RFC 9110 section 4.2.3: a path is compared as it is; reserved characters stay escaped"
DOTS = "RFC 3986 section 6.2.2.3: whoever sends dot segments has removed them before"
EQUIVALENT = "RFC 3986 section 6.2.2.2: an escaped letter may be taken for the letter"

_FOUND = (200,)
_NOT_FOUND = (400, 404)

BAD_CHARACTERS = {
    "nul": b"/v1/completions\x00",
    "control": b"/v1/completions\x01",
    "escape": b"/v1/\x1b[0m",
    "delete": b"/v1/completions\x7f",
    "nul-in-query": b"/v1/completions?\x00",
    "control-in-query": b"/v1/completions?a=\x02",
    "latin": b"/caf\xe9",
    "utf-8": b"/caf\xc3\xa9",
    "utf-8-in-query": b"/v1/completions?caf\xc3\xa9",
    "quote": b'/v1/completions?"',
    "less": b"/v1/completions?<a",
    "greater": b"/v1/completions?a>",
    "brace": b"/v1/completions?{a}",
    "caret": b"/v1/completions?^",
    "backtick": b"/v1/completions?`",
    "backslash": b"/v1\\completions",
    "backslash-in-query": b"/v1/completions?\\",
    "fragment": b"/v1/completions#a",
    "empty-fragment": b"/v1/completions#",
    "fragment-after-query": b"/v1/completions?a#b",
}

#: Paths that might be mistaken for `/v1/completions`.
OTHER_PATHS = {
    "root": b"/",
    "two-slashes": b"//v1/completions",
    "two-slashes-inside": b"/v1//completions",
    "slash-after": b"/v1/completions/",
    "escaped-slash": b"/v1%2fcompletions",
    "upper-case": b"/V1/completions",
    "parameter": b"/v1/completions;a=b",
    "nul": b"/v1/completions%00",
    "line-end": b"/v1/completions%0d%0ax-evil:%201",
    "question-mark": b"/v1/completions%3fx",
    "overlong-slash": b"/v1%c0%afcompletions",
    "escaped-backslash": b"/v1%5ccompletions",
    "no-escape": b"/v1/completions%zz",
    "half-escape": b"/v1/completions%2",
    "colon": b"/v1/completions:80",
    "at": b"/v1/completions@evil",
    "a-uri": b"/http://a/v1/completions",
}

DOT_SEGMENTS = {
    "one": b"/v1/./completions",
    "two": b"/v1/x/../completions",
    "escaped": b"/v1/x/%2e%2e/completions",
    "above-root": b"/../v1/completions",
    "to-another": b"/health/live/../../v1/completions",
}

ROWS: list[Row] = [
    row("target/origin", FORMS, post(), served(BODY)),
    row("target/query", FORMS, targeted(b"/v1/completions?a=b&c"), served(BODY)),
    row("target/empty-query", FORMS, targeted(b"/v1/completions?"), served(BODY)),
    row("target/query-of-a-path", FORMS, targeted(b"/v1/completions?/../?@:"), served(BODY)),
    *(
        row(f"target/absolute-{name}", ABSOLUTE, targeted(target), served(BODY))
        for name, target in {
            "http": b"http://a/v1/completions",
            "https": b"https://a/v1/completions",
            "upper-case-scheme": b"HTTP://a/v1/completions",
            "port": b"http://a:80/v1/completions",
            "query": b"http://a/v1/completions?x=y",
            "address": b"http://127.0.0.1:8080/v1/completions",
            "ipv6": b"http://[::1]:8080/v1/completions",
        }.items()
    ),
    row(
        "target/absolute-of-another-host",
        "RFC 9112 section 3.2.2: the target's host counts, not that of Host",
        targeted(b"http://b/v1/completions"),
        served(BODY),
        answered(400),
    ),
    row(
        "target/absolute-without-host-field",
        "RFC 9112 section 3.2: Host is there even with the absolute form",
        head(b"POST http://a/v1/completions HTTP/1.1", LENGTH) + BODY,
        answered(400),
    ),
    row(
        "target/absolute-without-path",
        "RFC 9110 section 4.2.3: an empty path is the root",
        get(target=b"http://a"),
        answered(*_FOUND, 404),
    ),
    row(
        "target/absolute-without-path-but-query",
        "RFC 9110 section 4.2.3: an empty path is the root",
        get(target=b"http://a?/v1/completions"),
        answered(*_FOUND, 404),
    ),
    *(
        row(f"target/absolute-{name}", rfc, targeted(target), answered(400))
        for name, rfc, target in [
            ("no-host", HTTP_URI, b"http:///v1/completions"),
            ("only-port", HTTP_URI, b"http://:80/v1/completions"),
            ("user", USER, b"http://u@a/v1/completions"),
            ("user-and-password", USER, b"http://u:p@a/v1/completions"),
            ("bad-port", FORMS, b"http://a:x/v1/completions"),
            ("bad-address", FORMS, b"http://[::1/v1/completions"),
            ("one-slash", FORMS, b"http:/a/v1/completions"),
            ("no-slashes", FORMS, b"http:a/v1/completions"),
            ("backslashes", FORMS, b"http:\\\\a/v1/completions"),
            ("fragment", FORMS, b"http://a/v1/completions#x"),
            ("no-scheme", FORMS, b"://a/v1/completions"),
        ]
    ),
    *(
        row(
            f"target/absolute-{name}",
            "RFC 9110 section 7.4: a target that is not ours is rejected",
            targeted(target),
            answered(400, 404, 421),
        )
        for name, target in {
            "ftp": b"ftp://a/v1/completions",
            "file": b"file:///v1/completions",
            "websocket": b"ws://a/v1/completions",
            "javascript": b"javascript:alert(1)",
        }.items()
    ),
    *(
        row(f"target/authority-{name}", AUTHORITY, targeted(target), answered(400))
        for name, target in {"and-port": b"a:80", "only-host": b"a", "ipv6": b"[::1]:80"}.items()
    ),
    *(
        row(f"target/relative-{name}", FORMS, targeted(target), answered(400))
        for name, target in {
            "path": b"v1/completions",
            "dot": b"./v1/completions",
            "query": b"?x",
            "at": b"@a/v1/completions",
        }.items()
    ),
    row("target/asterisk-post", ASTERISK, targeted(b"*"), answered(400)),
    row("target/asterisk-get", ASTERISK, get(target=b"*"), answered(400)),
    row("target/asterisk-and-more", FORMS, targeted(b"*/v1/completions"), answered(400)),
    row(
        "target/asterisk-options",
        "RFC 9110 section 9.3.7: a question about the server, not about a resource",
        head(b"OPTIONS * HTTP/1.1", HOST),
        answered(200, 204, 405, 501),
    ),
    *(
        row(f"target/character-{name}", CHARACTERS, targeted(target), answered(400))
        for name, target in BAD_CHARACTERS.items()
    ),
    *(
        row(
            f"target/other-{name}",
            OTHER,
            targeted(target),
            answered(*_NOT_FOUND),
            never=[b"\nx-evil"],
        )
        for name, target in OTHER_PATHS.items()
    ),
    *(
        row(f"target/dots-{name}", DOTS, targeted(target), answered(*_NOT_FOUND))
        for name, target in DOT_SEGMENTS.items()
    ),
    row(
        "target/escaped-letter",
        EQUIVALENT,
        targeted(b"/v1/%63ompletions"),
        served(BODY),
        answered(*_NOT_FOUND),
    ),
    row(
        "target/line-end-in-query",
        "RFC 3986 section 2.1: an escape stays an escape",
        targeted(b"/v1/completions?a=%0d%0ax-evil:%201%0d%0a%0d%0a"),
        served(BODY),
        never=[b"\nx-evil"],
    ),
    row(
        "target/what-is-not-found-hides-no-request",
        "RFC 9112 section 9.3: a body that is not wanted is read, or the connection closed",
        post(body=HIDDEN, line=b"POST /nothing HTTP/1.1"),
        answered(404),
    ),
    row(
        "target/what-is-bad-hides-no-request",
        "RFC 9112 section 9.3: a body that is not wanted is read, or the connection closed",
        post(body=HIDDEN, line=b"POST /a#b HTTP/1.1"),
        refused(400),
        answered(400),
    ),
]
