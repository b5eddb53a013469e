"""Request targets: their four forms, their characters, and similar-looking paths."""

from tests.http.raw.request import BODY, HIDDEN, HOST, LENGTH, get, head, post, targeted
from tests.http.raw.row import BAD, SERVED, Row, answered, each, row

FORMS = "RFC 9112 section 3.2: a target that is none of the four forms is invalid: 400"
ABSOLUTE = "RFC 9112 section 3.2.2: the absolute form is accepted"
AUTHORITY = "RFC 9112 section 3.2.3: the authority form is for CONNECT alone"
ASTERISK = "RFC 9112 section 3.2.4: the asterisk is for OPTIONS alone"
CHARACTERS = "RFC 3986 section 3.3 and RFC 9112 section 3.2: no such character in a target"
OTHER_HOST = "RFC 9112 section 3.2.2: the target's host counts, not that of Host"
NO_HOST = "RFC 9112 section 3.2: Host is there even with the absolute form"
ROOT = "RFC 9110 section 4.2.3: an empty path is the root"
URI = "RFC 9110 sections 4.2.1, 4.2.4: an http URI without a host, or with a user, is invalid"
NOT_OURS = "RFC 9110 section 7.4: a target that is not ours is rejected"
SERVER = "RFC 9110 section 9.3.7: a question about the server, not about a resource"
OTHER = "RFC 9110 section 4.2.3: a path is compared as it is; reserved characters stay escaped"
DOTS = "RFC 3986 section 6.2.2.3: whoever sends dot segments has removed them before"
EQUIVALENT = "RFC 3986 section 6.2.2.2: an escaped letter may be taken for the letter"
ESCAPE = "RFC 3986 section 2.1: an escape stays an escape"
UNREAD = "RFC 9112 section 9.3: a body that is not wanted is read, or the connection closed"

QUERIES = [b"/v1/completions?a=b&c", b"/v1/completions?", b"/v1/completions?/../?@:"]
ABSOLUTES = [
    *(b"http://a/v1/completions", b"https://a/v1/completions", b"HTTP://a/v1/completions"),
    *(b"http://a:80/v1/completions", b"http://a/v1/completions?x=y"),
    *(b"http://127.0.0.1:8080/v1/completions", b"http://[::1]:8080/v1/completions"),
]
BAD_ABSOLUTES = [
    *(b"http:///v1/completions", b"http://:80/v1/completions", b"http://u@a/v1/completions"),
    *(b"http://u:p@a/v1/completions", b"http://a:x/v1/completions", b"http://[::1/v1/completions"),
    *(b"http:/a/v1/completions", b"http:a/v1/completions", b"http:\\\\a/v1/completions"),
    *(b"http://a/v1/completions#x", b"://a/v1/completions"),
]
OTHER_SCHEMES = [
    *(b"ftp://a/v1/completions", b"file:///v1/completions", b"ws://a/v1/completions"),
    b"javascript:alert(1)",
]
RELATIVES = [b"v1/completions", b"./v1/completions", b"?x", b"@a/v1/completions"]
BAD_CHARACTERS = [
    *(b"/v1/completions\x00", b"/v1/completions\x01", b"/v1/\x1b[0m", b"/v1/completions\x7f"),
    *(b"/v1/completions?\x00", b"/v1/completions?a=\x02", b"/caf\xe9", b"/caf\xc3\xa9"),
    *(b"/v1/completions?caf\xc3\xa9", b'/v1/completions?"', b"/v1/completions?<a"),
    *(b"/v1/completions?a>", b"/v1/completions?{a}", b"/v1/completions?^", b"/v1/completions?`"),
    *(b"/v1\\completions", b"/v1/completions?\\", b"/v1/completions#a", b"/v1/completions#"),
    b"/v1/completions?a#b",
]
#: Paths that might be mistaken for `/v1/completions`.
OTHER_PATHS = [
    *(b"/", b"//v1/completions", b"/v1//completions", b"/v1/completions/", b"/v1%2fcompletions"),
    *(b"/V1/completions", b"/v1/completions;a=b", b"/v1/completions%00"),
    *(b"/v1/completions%0d%0ax-evil:%201", b"/v1/completions%3fx", b"/v1%c0%afcompletions"),
    *(b"/v1%5ccompletions", b"/v1/completions%zz", b"/v1/completions%2", b"/v1/completions:80"),
    *(b"/v1/completions@evil", b"/http://a/v1/completions"),
]
DOT_SEGMENTS = [
    *(b"/v1/./completions", b"/v1/x/../completions", b"/v1/x/%2e%2e/completions"),
    *(b"/../v1/completions", b"/health/live/../../v1/completions"),
]
_NO_FOUND_HOST = head(b"POST http://a/v1/completions HTTP/1.1", LENGTH) + BODY
_ESCAPED_END = targeted(b"/v1/completions?a=%0d%0ax-evil:%201%0d%0a%0d%0a")
_NOT_FOUND = post(body=HIDDEN, line=b"POST /nothing HTTP/1.1")
_BAD_HIDING = post(body=HIDDEN, line=b"POST /a#b HTTP/1.1")


def _got(target: bytes) -> bytes:
    return get(target=target)


ROWS: list[Row] = [
    row("target/origin", FORMS, post(), SERVED),
    *each("target/query", FORMS, targeted, QUERIES, SERVED),
    *each("target/absolute", ABSOLUTE, targeted, ABSOLUTES, SERVED),
    row(
        *("target/absolute-of-another-host", OTHER_HOST, targeted(b"http://b/v1/completions")),
        *(SERVED, answered(400)),
    ),
    row("target/absolute-without-host-field", NO_HOST, _NO_FOUND_HOST, answered(400)),
    *each(
        *("target/absolute-without-path", ROOT, _got, [b"http://a", b"http://a?/v1/completions"]),
        answered(200, 404),
    ),
    *each("target/bad-absolute", URI, targeted, BAD_ABSOLUTES, answered(400)),
    *each("target/other-scheme", NOT_OURS, targeted, OTHER_SCHEMES, answered(400, 404, 421)),
    *each("target/authority", AUTHORITY, targeted, [b"a:80", b"a", b"[::1]:80"], answered(400)),
    *each("target/relative", FORMS, targeted, RELATIVES, answered(400)),
    *each("target/asterisk", ASTERISK, targeted, [b"*", b"*/v1/completions"], answered(400)),
    row("target/asterisk-get", ASTERISK, get(target=b"*"), answered(400)),
    row(
        *("target/asterisk-options", SERVER, head(b"OPTIONS * HTTP/1.1", HOST)),
        answered(200, 204, 405, 501),
    ),
    *each("target/character", CHARACTERS, targeted, BAD_CHARACTERS, answered(400)),
    *each(
        *("target/other", OTHER, targeted, OTHER_PATHS, answered(400, 404)),
        never=[b"\nx-evil"],
    ),
    *each("target/dots", DOTS, targeted, DOT_SEGMENTS, answered(400, 404)),
    row(
        *("target/escaped-letter", EQUIVALENT, targeted(b"/v1/%63ompletions")),
        *(SERVED, answered(400, 404)),
    ),
    row("target/line-end-in-query", ESCAPE, _ESCAPED_END, SERVED, never=[b"\nx-evil"]),
    row("target/not-found-hides-no-request", UNREAD, _NOT_FOUND, answered(404)),
    row("target/bad-hides-no-request", UNREAD, _BAD_HIDING, BAD, answered(400)),
]
