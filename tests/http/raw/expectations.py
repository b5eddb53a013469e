"""`Expect`: 100 if the body is wanted, otherwise a final answer at once."""

from tests.http.raw.request import BODY, CHUNKED, HIDDEN, HOST, LENGTH, LINE, WHOLE, get, head, post
from tests.http.raw.row import End, Row, Wait, answered, refused, row, served

MEET = "RFC 9110 section 10.1.1: 100 before the body, or the final status"
EARLY = "RFC 9110 section 10.1.1: 100 may be left out when the body has begun to come"
#: The client may send the body all the same, so the connection cannot be reused.
FINAL = "RFC 9110 section 10.1.1: a final status without 100 when that is clear from the head"
UNKNOWN = "RFC 9110 section 10.1.1: another expectation is answered with 417"
OLD = "RFC 9110 section 10.1.1: in HTTP/1.0 it is ignored; section 15.2: no 1xx there"
CASE = "RFC 9110 section 10.1.1: Expect's value is case-insensitive"

_EXPECT = b"expect: 100-continue"
_OLD = b"POST /v1/completions HTTP/1.0"

ROWS: list[Row] = [
    row(
        "expect/continue",
        MEET,
        [head(LINE, HOST, LENGTH, _EXPECT), Wait.INTERIM, BODY],
        served(BODY, end=End.KEPT),
        interims=[1],
    ),
    row(
        "expect/continue-in-pieces",
        MEET,
        [head(LINE, HOST, LENGTH, _EXPECT), Wait.INTERIM, BODY[:4], Wait.SILENCE, BODY[4:]],
        served(BODY, end=End.KEPT),
        interims=[1],
    ),
    row(
        "expect/continue-chunks",
        MEET,
        [head(LINE, HOST, CHUNKED, _EXPECT), Wait.INTERIM, WHOLE],
        served(BODY, end=End.KEPT),
        interims=[1],
    ),
    row(
        "expect/continue-in-capitals",
        CASE,
        [head(LINE, HOST, LENGTH, b"EXPECT: 100-Continue"), Wait.INTERIM, BODY],
        served(BODY, end=End.KEPT),
        interims=[1],
    ),
    row(
        "expect/continue-twice-on-a-connection",
        MEET,
        (head(LINE, HOST, LENGTH, _EXPECT), Wait.INTERIM, BODY, Wait.FINAL) * 2,
        served(BODY, BODY, end=End.KEPT),
        interims=[2],
    ),
    row(
        "expect/continue-and-another-request",
        MEET,
        [head(LINE, HOST, LENGTH, _EXPECT), Wait.INTERIM, BODY + get()],
        served(BODY).then(answered(200, end=End.KEPT)),
        interims=[1],
    ),
    row(
        "expect/continue-after-another-request",
        MEET,
        [post() + head(LINE, HOST, LENGTH, _EXPECT), Wait.FINAL, Wait.INTERIM, BODY],
        served(BODY, BODY, end=End.KEPT),
        interims=[1],
    ),
    row(
        "expect/continue-and-close",
        MEET,
        [head(LINE, HOST, LENGTH, _EXPECT, b"connection: close"), Wait.INTERIM, BODY + HIDDEN],
        served(BODY, end=End.CLOSED),
        interims=[1],
    ),
    row(
        "expect/body-at-once",
        EARLY,
        head(LINE, HOST, LENGTH, _EXPECT) + BODY,
        served(BODY, end=End.KEPT),
        interims=[0, 1],
    ),
    row(
        "expect/body-at-once-in-chunks",
        EARLY,
        head(LINE, HOST, CHUNKED, _EXPECT) + WHOLE,
        served(BODY, end=End.KEPT),
        interims=[0, 1],
    ),
    row(
        "expect/nothing-to-come",
        "RFC 9110 section 10.1.1: 100 may be left out when there is no content",
        get(_EXPECT),
        answered(200, end=End.KEPT),
        interims=[0, 1],
    ),
    row(
        "expect/length-zero",
        "RFC 9110 section 10.1.1: 100 may be left out when there is no content",
        head(LINE, HOST, b"content-length: 0", _EXPECT),
        answered(400),
        interims=[0, 1],
    ),
    row(
        "expect/too-large",
        FINAL,
        head(LINE, HOST, b"content-length: 65537", _EXPECT),
        refused(413),
    ),
    row(
        "expect/too-large-and-it-comes",
        FINAL,
        head(LINE, HOST, b"content-length: 70000", _EXPECT) + HIDDEN * 500,
        refused(413),
    ),
    row(
        "expect/bad-host",
        FINAL,
        head(LINE, b"host: a/b", LENGTH, _EXPECT),
        refused(400),
    ),
    row(
        "expect/bad-length",
        FINAL,
        head(LINE, HOST, b"content-length: -1", _EXPECT),
        refused(400),
    ),
    row(
        "expect/length-and-coding",
        FINAL,
        head(LINE, HOST, LENGTH, CHUNKED, _EXPECT),
        refused(400),
    ),
    row(
        "expect/unknown-coding",
        FINAL,
        head(LINE, HOST, b"transfer-encoding: gzip, chunked", _EXPECT),
        refused(400, 501),
    ),
    *(
        row(f"expect/{name}", UNKNOWN, head(LINE, HOST, LENGTH, *fields), refused(417))
        for name, fields in {
            "unknown": (b"expect: 200-ok",),
            "unknown-parameter": (b"expect: 100-continue;a=b",),
            "unknown-value": (b"expect: 100-continue=yes",),
            "unknown-in-a-list": (b"expect: 100-continue, foo",),
            "unknown-in-a-second-field": (_EXPECT, b"expect: foo"),
            "unknown-in-the-first-field": (b"expect: foo", _EXPECT),
        }.items()
    ),
    row(
        "expect/unknown-hides-no-request",
        "RFC 9112 section 9.3: a body that is not wanted is read, or the connection closed",
        head(LINE, HOST, b"content-length: %d" % len(HIDDEN), b"expect: foo") + HIDDEN,
        refused(417),
    ),
    row(
        "expect/twice-the-same",
        "RFC 9110 section 5.3: two fields are one list",
        head(LINE, HOST, LENGTH, _EXPECT, _EXPECT) + BODY,
        served(BODY),
        answered(400, 417),
        interims=[0, 1],
    ),
    row(
        "expect/empty",
        "RFC 9110 section 5.6.1.2: an empty list expects nothing",
        head(LINE, HOST, LENGTH, b"expect:") + BODY,
        served(BODY),
        answered(400, 417),
        interims=[0, 1],
    ),
    row(
        "expect/old-version",
        OLD,
        head(_OLD, HOST, LENGTH, _EXPECT) + BODY,
        served(BODY, end=End.CLOSED),
    ),
    row(
        "expect/old-version-waits",
        OLD,
        [head(_OLD, HOST, LENGTH, _EXPECT), Wait.SILENCE, BODY],
        served(BODY, end=End.CLOSED),
    ),
    row(
        "expect/not-found",
        "RFC 9110 section 10.1.1: the final status, or 100 and then the final status",
        [head(b"POST /nothing HTTP/1.1", HOST, LENGTH, _EXPECT), Wait.INTERIM, BODY],
        answered(404),
        interims=[0, 1],
    ),
    row(
        "expect/wrong-method",
        FINAL,
        head(b"PUT /v1/completions HTTP/1.1", HOST, LENGTH, _EXPECT),
        refused(405, 501),
    ),
    row(
        "expect/not-forwarded",
        "RFC 9110 section 10.1.1: it was met here; the body is whole when it is sent on",
        [head(LINE, HOST, LENGTH, _EXPECT), Wait.INTERIM, BODY],
        served(BODY),
        interims=[1],
        never=[b"100-continue"],
    ),
]
