"""`Expect`: 100 if the body is wanted, otherwise a final answer at once."""

from tests.http.raw.request import (
    BODY,
    CHUNKED,
    HIDDEN,
    HOST,
    LENGTH,
    LINE,
    OLD_LINE,
    WHOLE,
    get,
    head,
    post,
)
from tests.http.raw.row import (
    BAD,
    CLOSED,
    KEPT,
    SERVED,
    End,
    Outcome,
    Row,
    Steps,
    Value,
    Wait,
    answered,
    each,
    refused,
    row,
    served,
)

MEET = "RFC 9110 section 10.1.1: 100 before the body, or the final status"
EARLY = "RFC 9110 section 10.1.1: 100 may be left out when the body has begun to come"
NO_CONTENT = "RFC 9110 section 10.1.1: 100 may be left out when there is no content"
#: The client may send the body all the same, so the connection cannot be reused.
FINAL = "RFC 9110 section 10.1.1: a final status without 100 when that is clear from the head"
UNKNOWN = "RFC 9110 section 10.1.1: another expectation is answered with 417"
UNREAD = "RFC 9112 section 9.3: a body that is not wanted is read, or the connection closed"
LIST = "RFC 9110 section 5.3: two fields are one list, and an empty one expects nothing"
OLD = "RFC 9110 section 10.1.1: in HTTP/1.0 it is ignored; section 15.2: no 1xx there"
CASE = "RFC 9110 section 10.1.1: Expect's value is case-insensitive"

_EXPECT = b"expect: 100-continue"
_HEAD = head(LINE, HOST, LENGTH, _EXPECT)
_CHUNKS = head(LINE, HOST, CHUNKED, _EXPECT)
_OLD = head(OLD_LINE, HOST, LENGTH, _EXPECT)
_CAPITALS = head(LINE, HOST, LENGTH, b"EXPECT: 100-Continue")
_CLOSES = head(LINE, HOST, LENGTH, _EXPECT, b"connection: close")


def _told(name: str, rfc: str, sent: Steps, outcome: Outcome, times: int = 1) -> Row:
    """A row in which the client is told to go on so many times."""
    return row(f"expect/{name}", rfc, sent, outcome, interims=[times])


def _perhaps(name: str, rfc: str, sent: bytes | Steps, *allowed: Outcome) -> Row:
    """A row in which the client may be told to go on."""
    return row(f"expect/{name}", rfc, sent, *allowed, interims=[0, 1])


#: Heads that are refused as they would be without the field.
BAD_HEADS = {
    "host": (b"host: a/b", LENGTH),
    "length": (HOST, b"content-length: -1"),
    "length-and-coding": (HOST, LENGTH, CHUNKED),
}
EXPECTATIONS: list[Value] = [
    *(b"expect: 200-ok", b"expect: 100-continue;a=b", b"expect: 100-continue=yes"),
    *(b"expect: 100-continue, foo", (_EXPECT, b"expect: foo"), (b"expect: foo", _EXPECT)),
]
_TWICE: Steps = [_HEAD, Wait.INTERIM, BODY, Wait.FINAL] * 2
_AND_ANOTHER: Steps = [_HEAD, Wait.INTERIM, BODY + get()]
_AFTER_ANOTHER: Steps = [post() + _HEAD, Wait.FINAL, Wait.INTERIM, BODY]
_USUAL: Steps = [_HEAD, Wait.INTERIM, BODY]
_TOO_LARGE = head(LINE, HOST, b"content-length: 65537", _EXPECT)
_AND_IT_COMES = head(LINE, HOST, b"content-length: 70000", _EXPECT) + HIDDEN * 500
_CODED = head(LINE, HOST, b"transfer-encoding: gzip, chunked", _EXPECT)
_HIDES = head(LINE, HOST, b"content-length: %d" % len(HIDDEN), b"expect: foo") + HIDDEN
_WRONG_METHOD = head(b"PUT /v1/completions HTTP/1.1", HOST, LENGTH, _EXPECT)
_NOT_FOUND = head(b"POST /nothing HTTP/1.1", HOST, LENGTH, _EXPECT)

ROWS: list[Row] = [
    _told("continue", MEET, [_HEAD, Wait.INTERIM, BODY], KEPT),
    _told("pieces", MEET, [_HEAD, Wait.INTERIM, BODY[:4], Wait.SILENCE, BODY[4:]], KEPT),
    _told("chunks", MEET, [_CHUNKS, Wait.INTERIM, WHOLE], KEPT),
    _told("capitals", CASE, [_CAPITALS, Wait.INTERIM, BODY], KEPT),
    _told(
        *("twice-on-a-connection", MEET, _TWICE, served(BODY, BODY, end=End.KEPT)),
        times=2,
    ),
    _told(
        *("and-another-request", MEET, _AND_ANOTHER),
        SERVED.then(answered(200, end=End.KEPT)),
    ),
    _told(
        *("after-another-request", MEET, _AFTER_ANOTHER),
        served(BODY, BODY, end=End.KEPT),
    ),
    _told("and-close", MEET, [_CLOSES, Wait.INTERIM, BODY + HIDDEN], CLOSED),
    _perhaps("body-at-once", EARLY, _HEAD + BODY, KEPT),
    _perhaps("body-at-once-in-chunks", EARLY, _CHUNKS + WHOLE, KEPT),
    _perhaps("nothing-to-come", NO_CONTENT, get(_EXPECT), answered(200, end=End.KEPT)),
    _perhaps(
        *("length-zero", NO_CONTENT, head(LINE, HOST, b"content-length: 0", _EXPECT)),
        answered(400),
    ),
    row("expect/too-large", FINAL, _TOO_LARGE, refused(413)),
    row("expect/too-large-and-it-comes", FINAL, _AND_IT_COMES, refused(413)),
    *each("expect/bad", FINAL, lambda *fields: head(LINE, *fields, _EXPECT), BAD_HEADS, BAD),
    row("expect/unknown-coding", FINAL, _CODED, refused(400, 501)),
    *each(
        *("expect/unknown", UNKNOWN, lambda *fields: head(LINE, HOST, LENGTH, *fields)),
        *(EXPECTATIONS, refused(417)),
    ),
    row("expect/unknown-hides-no-request", UNREAD, _HIDES, refused(417)),
    _perhaps(
        *("twice-the-same", LIST, head(LINE, HOST, LENGTH, _EXPECT, _EXPECT) + BODY),
        *(SERVED, answered(400, 417)),
    ),
    _perhaps(
        *("empty", LIST, head(LINE, HOST, LENGTH, b"expect:") + BODY, SERVED),
        answered(400, 417),
    ),
    row("expect/old-version", OLD, _OLD + BODY, CLOSED),
    row("expect/old-version-waits", OLD, [_OLD, Wait.SILENCE, BODY], CLOSED),
    _perhaps("not-found", MEET, [_NOT_FOUND, Wait.INTERIM, BODY], answered(404)),
    row("expect/wrong-method", FINAL, _WRONG_METHOD, refused(405, 501)),
    row(
        *("expect/not-forwarded", MEET, _USUAL, SERVED),
        interims=[1],
        never=[b"100-continue"],
    ),
]
