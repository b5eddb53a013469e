"""`Content-Length`: which values are numbers, and what happens if there are several."""

from tests.http.raw.request import BODY, HIDDEN, HOST, LENGTH, LIMIT, LINE, head, post, sized
from tests.http.raw.row import End, Row, answered, refused, row, served

INVALID = "RFC 9112 section 6.3, item 5: an invalid length is answered with 400, and closed"
GRAMMAR = "RFC 9110 section 8.6: Content-Length = 1*DIGIT"
OWS = "RFC 9110 section 5.5: white space around a value is not part of it"
LISTS = "RFC 9110 section 8.6: a list of equal lengths is taken as one, or refused"
TOO_LARGE = "RFC 9110 section 15.5.14"


def _lines(*fields: bytes, body: bytes = BODY) -> bytes:
    return head(LINE, HOST, *fields) + body


NOT_NUMBERS = {
    "plus": b"+13",
    "minus": b"-13",
    "minus-one": b"-1",
    "minus-zero": b"-0",
    "minus-huge": b"-123456789123456789123456789",
    "words": b"abc",
    "hex": b"0xd",
    "hex-digits": b"d",
    "octal-prefix": b"0o15",
    "underscore": b"1_3",
    "space-inside": b"1 3",
    "tab-inside": b"1\t3",
    "point": b"13.0",
    "exponent": b"13e0",
    "letter-after": b"13a",
    "semicolon-after": b"13;",
    "parameter": b"13;a=b",
    "comma-after": b"13,",
    "comma-before": b",13",
    "only-comma": b",",
    "quoted": b'"13"',
    "empty": b"",
    "only-space": b"  ",
    "nul-after": b"13\x00",
    "vertical-tab-before": b"\x0b13",
    "form-feed-before": b"\x0c13",
    "no-break-space-before": b"\xa013",
    "arabic-digits": b"\xd9\xa1\xd9\xa3",
    "full-width-digits": b"\xef\xbc\x91\xef\xbc\x93",
    "two-different-in-a-list": b"13, 14",
    "two-different-in-a-list-without-space": b"13,14",
}

NUMBERS = {
    "plain": b"content-length: 13",
    "no-space": b"content-length:13",
    "spaces-before": b"content-length:   13",
    "tab-before": b"content-length:\t13",
    "space-after": b"content-length: 13 ",
    "tab-after": b"content-length: 13\t",
    "upper-case": b"CONTENT-LENGTH: 13",
    "mixed-case": b"cOnTeNt-LeNgTh: 13",
}

ROWS: list[Row] = [
    *(
        row(f"length/{name}", INVALID, _lines(b"content-length: " + value), refused(400))
        for name, value in NOT_NUMBERS.items()
    ),
    *(
        row(f"length/{name}", OWS, _lines(line), served(BODY, end=End.KEPT))
        for name, line in NUMBERS.items()
    ),
    row("length/leading-zeros", GRAMMAR, _lines(b"content-length: 0013"), served(BODY)),
    row(
        "length/leading-zeros-are-not-octal",
        GRAMMAR,
        _lines(b"content-length: 0200", body=sized(200)),
        served(sized(200), end=End.KEPT),
    ),
    row("length/two-zeros", GRAMMAR, _lines(b"content-length: 00", body=b""), answered(400)),
    row("length/zero", GRAMMAR, _lines(b"content-length: 0", body=b""), answered(400)),
    row(
        "length/none",
        "RFC 9112 section 6.3, item 7: a request without either has no body",
        _lines(body=b""),
        answered(400, 411),
    ),
    row(
        "length/none-and-a-request-after-it",
        "RFC 9112 section 6.3, item 7: what follows is the next request",
        _lines(body=post()),
        answered(400).then(served(BODY, end=End.KEPT)),
        refused(400, 411),
    ),
    row("length/at-the-limit", GRAMMAR, post(body=sized(LIMIT)), served(sized(LIMIT))),
    row("length/over-the-limit", TOO_LARGE, post(body=sized(LIMIT + 1)), refused(413)),
    row(
        "length/over-the-limit-and-no-body",
        TOO_LARGE,
        _lines(b"content-length: 65537", body=b""),
        refused(413),
    ),
    row(
        "length/over-the-limit-with-requests-inside",
        TOO_LARGE,
        _lines(b"content-length: %d" % (1000 * len(HIDDEN)), body=1000 * HIDDEN),
        refused(413),
    ),
    *(
        row(
            f"length/{name}",
            "RFC 9110 section 8.6: beware of large decimal numerals and of overflow",
            _lines(b"content-length: " + value),
            refused(400, 413),
        )
        for name, value in {
            "2-to-the-31": b"2147483648",
            "2-to-the-32": b"4294967296",
            "2-to-the-32-and-the-body": b"4294967309",
            "2-to-the-63": b"9223372036854775808",
            "2-to-the-64-less-one": b"18446744073709551615",
            "2-to-the-64": b"18446744073709551616",
            "2-to-the-64-and-the-body": b"18446744073709551629",
            "forty-digits": b"9" * 40,
            "thousand-digits": b"9" * 1000,
        }.items()
    ),
    row(
        "length/twice-the-same",
        LISTS,
        _lines(LENGTH, LENGTH),
        served(BODY, end=End.KEPT),
        refused(400),
    ),
    *(
        row(
            f"length/{name}",
            LISTS,
            _lines(b"content-length: " + value),
            served(BODY, end=End.KEPT),
            refused(400),
        )
        for name, value in {"list-of-two": b"13, 13", "list-of-three": b"13,13,13"}.items()
    ),
    *(
        row(f"length/{name}", INVALID, _lines(*lines, body=BODY + HIDDEN), refused(400))
        for name, lines in {
            "twice-different": (LENGTH, b"content-length: 14"),
            "twice-different-the-shorter-later": (
                b"content-length: %d" % (13 + len(HIDDEN)),
                LENGTH,
            ),
            "twice-and-one-is-zero": (b"content-length: 0", LENGTH),
            "twice-and-one-is-empty": (b"content-length:", LENGTH),
            "twice-and-one-is-no-number": (LENGTH, b"content-length: x"),
            "twice-apart": (LENGTH, b"x: y", b"Content-Length: 14"),
            "space-before-colon": (b"content-length : 13",),
            "twice-and-one-with-space-before-colon": (LENGTH, b"content-length : 5"),
            "folded": (b"content-length:\r\n 13",),
            "folded-in-the-middle": (b"content-length: 1\r\n 3",),
            "tab-in-the-name": (LENGTH, b"content\tlength: 99"),
            "nul-in-the-name": (LENGTH, b"content-length\x00: 99"),
        }.items()
    ),
    row(
        "length/underscore-in-the-name",
        "RFC 9110 section 5.1: another field, which must not be taken for this one",
        _lines(LENGTH, b"content_length: 99"),
        served(BODY, end=End.KEPT),
        answered(400),
    ),
]
