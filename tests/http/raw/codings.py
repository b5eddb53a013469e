"""`Transfer-Encoding`: only `chunked`, once, in HTTP/1.1, and never with Content-Length."""

from tests.http.raw.request import (
    BODY,
    CHUNKED,
    HIDDEN,
    HOST,
    LENGTH,
    LINE,
    OLD_LINE,
    WHOLE,
    chunked,
    head,
    post,
)
from tests.http.raw.row import BAD, KEPT, Row, answered, each, refused, row

BOTH = "RFC 9112 section 6.1: both is refused, or the length ignored and the connection closed"
LAST = "RFC 9112 section 6.3, item 4: chunked is not the final coding: 400, and closed"
UNKNOWN = "RFC 9112 section 6.1: a coding that is not understood is answered with 501"
NAMES = "RFC 9112 section 7: names of codings are case-insensitive"
OWS = "RFC 9110 section 5.5: white space around a value is not part of it"
#: llhttp refuses a tab after it, though not a space.
TAB = "RFC 9110 section 5.5 would have the tab ignored"
ONCE = "RFC 9112 section 6.1: chunked is applied once"
#: One coding is all that is understood, so a list is refused however it is written.
EMPTY = "RFC 9110 section 5.6.1.2 would have empty elements of a list ignored"
OLD = "RFC 9112 section 6.1: with HTTP/1.0 the framing is faulty"
NAME = "RFC 9112 section 5.1"
OTHER = "RFC 9110 section 5.1: another field, which must not be taken for this one"
NONE = "RFC 9112 section 6.3, item 7: no body; the chunk is not a request"
TE = "RFC 9110 section 10.1.4: TE belongs to this hop and frames nothing"
CASE = "RFC 9110 section 5.1: names of fields are case-insensitive"
TRAILER = "RFC 9110 section 6.6.2: Trailer belongs to the message as it was sent"


def _coded(value: bytes, *fields: bytes, wire: bytes = WHOLE) -> bytes:
    return head(LINE, HOST, b"transfer-encoding:" + value, *fields) + wire


def _length_first(value: bytes) -> bytes:
    return head(LINE, HOST, _FIVE_MORE, b"transfer-encoding:" + value) + b"0\r\n\r\n" + HIDDEN


def _length_last(value: bytes) -> bytes:
    return head(LINE, HOST, b"transfer-encoding:" + value, _FIVE_MORE) + b"0\r\n\r\n" + HIDDEN


def _both(body: bytes, *fields: bytes) -> bytes:
    return head(LINE, HOST, *fields) + body


_FIVE_MORE = b"content-length: %d" % (5 + len(HIDDEN))
_IDENTITY = b"transfer-encoding: identity"
_IN_A_CHUNK = b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)

UNDERSTOOD = [b" chunked", b"chunked", b"\tchunked", b" chunked "]
CASES = [b" Chunked", b" CHUNKED"]
EMPTY_ELEMENTS = [b" , chunked", b" chunked,"]
#: What some servers take for chunked and others do not, or for no coding at all.
NOT_CHUNKED = [
    *(b" chunked;a=b", b' "chunked"', b" 'chunked'", b" xchunked", b" chunkedx", b" chun ked"),
    *(b" identity", b" cow", b" chunked, gzip", b" chunked, identity", b"", b" \x0bchunked"),
    *(b" \x0cchunked", b" \x00chunked", b" chunked\x00", b" chunked\x01", b" chunked\rx"),
    *(b" \xa0chunked", b" \xef\xbd\x83hunked", b" chun\xe2\x84\xaaed"),  # a Kelvin sign
    *(b"\r\n chunked", b" chunked\r\n ", b" chunked\r\n , identity"),
]
OTHERS = [b" gzip, chunked", b" identity, chunked", b" chunked, chunked", b" ,", b" chunked\t"]
#: Values of two fields of that name.
TWO_FIELDS = {
    "chunked-twice": (b" chunked", CHUNKED),
    "chunked-then-identity": (b" chunked", _IDENTITY),
    "identity-then-chunked": (b" identity", CHUNKED),
    "gzip-then-chunked": (b" gzip", CHUNKED),
    "chunked-then-gzip": (b" chunked", b"Transfer-Encoding: gzip"),
    "empty-then-chunked": (b" ", CHUNKED),
    "chunked-then-empty": (b" chunked", b"transfer-encoding:"),
}
#: Bodies after both fields.
BOTH_FIELDS = {
    "and-the-body-of-neither": (BODY, LENGTH, CHUNKED),
    "and-length-zero": (WHOLE, b"content-length: 0", CHUNKED),
    "and-length-too-short": (b"0\r\n\r\n", b"content-length: 4", CHUNKED),
    "and-length-too-long": (b"0\r\n\r\nX", CHUNKED, b"content-length: 30"),
    "and-length-with-plus": (b"0\r\n\r\n" + HIDDEN, b"content-length: +5", CHUNKED),
    "and-length-with-letters": (b"0\r\n\r\n" + HIDDEN, CHUNKED, b"content-length: 5x"),
    "and-length-empty": (WHOLE, CHUNKED, b"content-length:"),
    "and-a-request-in-a-chunk": (_IN_A_CHUNK, CHUNKED, b"content-length: 4"),
    "and-coding-twice": (WHOLE, CHUNKED, _IDENTITY, LENGTH),
    "apart": (WHOLE, b"x: 1", LENGTH, b"y: 2", CHUNKED, b"z: 3"),
}
#: Field names that must not be taken for Transfer-Encoding.
LOOKALIKES = [
    *(b"transfer-encoding : chunked", b"transfer-encoding\t: chunked"),
    *(b" transfer-encoding: chunked", b"transfer-encoding\x00: chunked"),
    *(b"transfer encoding: chunked", b"transfer-encoding chunked"),
    *(b"x: y\ntransfer-encoding: chunked", b"x: y\rtransfer-encoding: chunked"),
]
OLD_ONES = {
    "alone": head(OLD_LINE, HOST, CHUNKED) + WHOLE,
    "kept-alive": head(OLD_LINE, HOST, CHUNKED, b"connection: keep-alive") + WHOLE + HIDDEN,
    "and-length": head(OLD_LINE, HOST, LENGTH, CHUNKED) + BODY + HIDDEN,
}
_UNDERSCORE = b"transfer_encoding: chunked"
_ALL = [*UNDERSTOOD, *CASES, *EMPTY_ELEMENTS, *NOT_CHUNKED, *OTHERS]

ROWS: list[Row] = [
    *each("coding", OWS, _coded, UNDERSTOOD, KEPT),
    *each("coding", NAMES, _coded, CASES, KEPT),
    *each("coding", EMPTY, _coded, EMPTY_ELEMENTS, refused(400, 501)),
    row("coding/trailing-tab", TAB, _coded(b" chunked\t"), refused(400, 501)),
    *each("coding", LAST, _coded, NOT_CHUNKED, refused(400, 501)),
    row("coding/gzip-first", UNKNOWN, _coded(b" gzip, chunked"), refused(501)),
    row("coding/gzip-alone", UNKNOWN, _coded(b" gzip", wire=b""), refused(400, 501)),
    row("coding/identity-first", UNKNOWN, _coded(b" identity, chunked"), refused(400, 501)),
    row("coding/twice", ONCE, _coded(b" chunked, chunked"), refused(400, 501)),
    *each("coding/fields", ONCE, _coded, TWO_FIELDS, refused(400, 501)),
    *each("coding/length-first", BOTH, _length_first, _ALL, refused(400, 501)),
    *each("coding/length-last", BOTH, _length_last, _ALL, refused(400, 501)),
    *each("coding/both", BOTH, _both, BOTH_FIELDS, BAD),
    *each("coding/like", NAME, lambda line: post(line) + HIDDEN, LOOKALIKES, BAD),
    row("coding/underscore", OTHER, post(_UNDERSCORE), KEPT, answered(400)),
    row(
        *("coding/underscore-and-no-length", NONE, head(LINE, HOST, _UNDERSCORE) + WHOLE),
        *(BAD, answered(400).then(BAD)),
    ),
    *each("coding/old", OLD, bytes, OLD_ONES, refused(400, 501)),
    row("coding/te-is-another-field", TE, post(b"te: chunked", b"connection: te"), KEPT),
    row(
        *("coding/upper-case-name", CASE),
        *(head(LINE, HOST, b"TRANSFER-ENCODING: chunked") + WHOLE, KEPT),
    ),
    row("coding/trailers-announced", TRAILER, chunked(WHOLE, b"trailer: x-sum"), KEPT),
]
