"""`Content-Length`: which values are numbers, and what happens if there are several."""

from tests.http.raw.request import BODY, HIDDEN, HOST, LENGTH, LIMIT, LINE, head, post, sized
from tests.http.raw.row import (
    BAD,
    KEPT,
    SERVED,
    End,
    Row,
    Value,
    answered,
    each,
    refused,
    row,
    served,
)

INVALID = "RFC 9112 section 6.3, item 5: an invalid length is answered with 400, and closed"
GRAMMAR = "RFC 9110 section 8.6: Content-Length = 1*DIGIT"
OWS = "RFC 9110 section 5.5: white space around a value is not part of it"
LISTS = "RFC 9110 section 8.6: a list of equal lengths is taken as one, or refused"
OVERFLOW = "RFC 9110 section 8.6: beware of large decimal numerals and of overflow"
NONE = "RFC 9112 section 6.3, item 7: a request without either has no body"
TOO_LARGE = "RFC 9110 section 15.5.14"
OTHER = "RFC 9110 section 5.1: another field, which must not be taken for this one"


def _lines(*fields: bytes, body: bytes = BODY) -> bytes:
    return head(LINE, HOST, *fields) + body


def _length(value: bytes, body: bytes = BODY) -> bytes:
    return _lines(b"content-length: " + value, body=body)


def _hiding(*fields: bytes) -> bytes:
    return _lines(*fields, body=BODY + HIDDEN)


NOT_NUMBERS = [
    *(b"+13", b"-13", b"-1", b"-0", b"-123456789123456789123456789", b"abc", b"0xd", b"d"),
    *(b"0o15", b"1_3", b"1 3", b"1\t3", b"13.0", b"13e0", b"13a", b"13;", b"13;a=b", b"13,"),
    *(b",13", b",", b'"13"', b"", b"  ", b"13\x00", b"\x0b13", b"\x0c13", b"\xa013"),
    *(b"\xd9\xa1\xd9\xa3", b"\xef\xbc\x91\xef\xbc\x93", b"13, 14", b"13,14"),
]
NUMBERS = [
    *(b"content-length: 13", b"content-length:13", b"content-length:   13"),
    *(b"content-length:\t13", b"content-length: 13 ", b"content-length: 13\t"),
    *(b"CONTENT-LENGTH: 13", b"cOnTeNt-LeNgTh: 13"),
]
#: Powers of two, and what they would leave of a body's length if they overflowed.
HUGE = [
    *(b"2147483648", b"4294967296", b"4294967309", b"9223372036854775808"),
    *(b"18446744073709551615", b"18446744073709551616", b"18446744073709551629"),
    *(b"9" * 40, b"9" * 1000, b"0" * 5000 + b"5"),
]
SEVERAL: list[Value] = [
    *((LENGTH, b"content-length: 14"), (b"content-length: %d" % (13 + len(HIDDEN)), LENGTH)),
    *((b"content-length: 0", LENGTH), (b"content-length:", LENGTH)),
    *((LENGTH, b"content-length: x"), (LENGTH, b"x: y", b"Content-Length: 14")),
    *(b"content-length : 13", (LENGTH, b"content-length : 5"), b"content-length:\r\n 13"),
    *(b"content-length: 1\r\n 3", (LENGTH, b"content\tlength: 99")),
    (LENGTH, b"content-length\x00: 99"),
]
OVER_THE_LIMIT = {
    "by-one": post(body=sized(LIMIT + 1)),
    "and-no-body": _length(b"65537", b""),
    "with-requests-inside": _length(b"%d" % (1000 * len(HIDDEN)), 1000 * HIDDEN),
}
_OCTAL = _length(b"0200", sized(200))

ROWS: list[Row] = [
    *each("length", INVALID, _length, NOT_NUMBERS, BAD),
    *each("length", OWS, _lines, NUMBERS, KEPT),
    row("length/leading-zeros", GRAMMAR, _length(b"0013"), SERVED),
    row("length/zeros-are-not-octal", GRAMMAR, _OCTAL, served(sized(200), end=End.KEPT)),
    row("length/two-zeros", GRAMMAR, _length(b"00", b""), answered(400)),
    row("length/zero", GRAMMAR, _length(b"0", b""), answered(400)),
    row("length/none", NONE, _lines(body=b""), answered(400, 411)),
    row(
        *("length/none-and-a-request-after-it", NONE, _lines(body=post())),
        *(answered(400).then(KEPT), refused(400, 411)),
    ),
    row("length/at-the-limit", GRAMMAR, post(body=sized(LIMIT)), served(sized(LIMIT))),
    *each("length/over-the-limit", TOO_LARGE, bytes, OVER_THE_LIMIT, refused(413)),
    *each("length", OVERFLOW, _length, HUGE, refused(400, 413)),
    row("length/twice-the-same", LISTS, _lines(LENGTH, LENGTH), KEPT, BAD),
    *each("length", LISTS, _length, [b"13, 13", b"13,13,13"], KEPT, BAD),
    *each("length", INVALID, _hiding, SEVERAL, BAD),
    row("length/underscore", OTHER, _lines(LENGTH, b"content_length: 99"), KEPT, answered(400)),
]
