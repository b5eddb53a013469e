"""Header fields: their names, values, line ends, number and size."""

from tests.http.raw.request import BODY, HIDDEN, HOST, LENGTH, LINE, head, post
from tests.http.raw.row import End, Row, answered, refused, row, served

NAME = "RFC 9110 section 5.1: a field's name is a token"
COLON = "RFC 9112 section 5.1: no white space between name and colon: 400"
VALUE = "RFC 9110 section 5.5: CR, LF, NUL and other controls are invalid in values"
TEXT = "RFC 9110 section 5.5: field-content is visible, space, tab, or above 127"
FOLD = "RFC 9112 section 5.2: obs-fold is refused with 400, or replaced by spaces"
LINES = "RFC 9112 section 2.2: lines end in CRLF; a lone CR is invalid"
FIRST = "RFC 9112 section 2.2: white space before the first field: refused, or the line dropped"
TOO_MUCH = "RFC 6585 section 5: too many fields, or too large: 431"


def _field(line: bytes) -> bytes:
    return post(line) + HIDDEN


BAD_NAMES = {
    "empty": b": y",
    "empty-and-space": b" : y",
    "no-colon": b"x",
    "no-colon-but-words": b"x y z",
    "no-colon-at-the-end": b"x-y",
    "space-inside": b"x y: z",
    "tab-inside": b"x\ty: z",
    "space-before-colon": b"x : y",
    "tab-before-colon": b"x\t: y",
    "vertical-tab-before-colon": b"x\x0b: y",
    "brackets": b"x[]: y",
    "one-bracket": b"x[y: z",
    "parentheses": b"x(): y",
    "quotes": b'"x": y',
    "slash": b"x/y: z",
    "backslash": b"x\\y: z",
    "at": b"x@y: z",
    "comma": b"x,y: z",
    "semicolon": b"x;y: z",
    "equals": b"x=y: z",
    "question": b"x?: y",
    "brace": b"{x}: y",
    "less": b"<x>: y",
    "nul": b"x\x00: y",
    "control": b"x\x01: y",
    "delete": b"x\x7f: y",
    "bare-cr": b"x\ry: z",
    "latin": b"x\xe9: y",
    "utf-8": b"x-t\xc3\xabst: y",
    "byte-order-mark": b"\xef\xbb\xbfx: y",
    "emoji": b"\xf0\x9f\x98\x80: y",
}

BAD_VALUES = {
    "nul": b"x: a\x00b",
    "nul-first": b"x: \x00a",
    "nul-last": b"x: a\x00",
    "bell": b"x: a\x07",
    "backspace": b"x: a\x08b",
    "vertical-tab": b"x: a\x0bb",
    "form-feed": b"x: a\x0cb",
    "escape": b"x: \x1b[31m",
    "delete": b"x: a\x7fb",
    "control-1": b"x: \x01",
    "control-31": b"x: \x1f",
    "bare-cr": b"x: a\rb",
    "bare-cr-and-a-field": b"x: a\ry: b",
    "bare-cr-last": b"x: a\r",
    "bare-cr-only": b"x:\r",
    "in-cookie": b"cookie: a=\x01\x02\x03",
    "nul-in-cookie": b"cookie: a=\x00b",
    "in-authorization": b"authorization: Bearer a\x01",
}

GOOD_VALUES = {
    "plain": (b"x", b"y"),
    "empty": (b"x", b""),
    "tab-inside": (b"x", b"a\tb"),
    "spaces-inside": (b"x", b"a  b"),
    "above-127": (b"x", b"caf\xc3\xa9 \x80\xff"),
    "quotes": (b"x", b'"a\\"b'),
    "colons": (b"x", b"a: b: c"),
    "every-visible": (b"x", bytes(range(0x21, 0x7F))),
    "every-token-character": (b"!#$%&'*+-.^_`|~09az", b"y"),
    "long": (b"x", b"y" * 16000),
    "long-name": (b"x" * 1000, b"y"),
    "number-name": (b"0", b"1"),
}

LINE_ENDS = {
    "lf": b"x: y\n",
    "lf-then-space": b"x: y\n z\r\n",
    "two-lf": b"x: y\n\n",
    "cr": b"x: y\r",
    "cr-cr-lf": b"x: y\r\r\n",
    "lf-cr": b"x: y\n\r",
    "lf-first": b"\nx: y\r\n",
    "cr-first": b"\rx: y\r\n",
    "cr-before-the-last-line": b"x: y\r\n\rz: 1\r\n",
}

ROWS: list[Row] = [
    *(
        row(f"field/name-{name}", COLON if "colon" in name else NAME, _field(line), refused(400))
        for name, line in BAD_NAMES.items()
    ),
    *(
        row(f"field/value-{name}", VALUE, _field(line), refused(400))
        for name, line in BAD_VALUES.items()
    ),
    *(
        row(
            f"field/good-{name}",
            TEXT,
            post(pair[0] + b": " + pair[1]),
            served(BODY, end=End.KEPT),
            carried=[pair],
        )
        for name, pair in GOOD_VALUES.items()
    ),
    row("field/good-no-space", TEXT, post(b"x:y"), served(BODY), carried=[(b"x", b"y")]),
    row(
        "field/good-white-space-around",
        "RFC 9110 section 5.5: white space around a value is not part of it",
        post(b"x: \t y"),
        served(BODY, end=End.KEPT),
        carried=[(b"x", b"y")],
    ),
    row(
        "field/good-white-space-alone",
        "RFC 9112 section 5: a value may be empty",
        post(b"x: \t "),
        served(BODY, end=End.KEPT),
    ),
    row(
        "field/good-mixed-case-name",
        "RFC 9110 section 5.1: names of fields are case-insensitive",
        post(b"X-MiXeD: Y"),
        served(BODY, end=End.KEPT),
        carried=[(b"x-mixed", b"Y")],
    ),
    *(
        row(f"field/folded-{name}", FOLD, _field(line), refused(400))
        for name, line in {
            "space": b"x: y\r\n z",
            "tab": b"x: y\r\n\tz",
            "twice": b"x: y\r\n z\r\n z",
            "to-nothing": b"x: y\r\n ",
            "from-nothing": b"x:\r\n y",
            "to-a-field": b"x: y\r\n transfer-encoding: chunked",
        }.items()
    ),
    *(
        row(
            f"field/line-{name}",
            LINES,
            head(LINE, HOST, LENGTH)[:-2] + end + b"\r\n" + BODY + HIDDEN,
            refused(400),
        )
        for name, end in LINE_ENDS.items()
    ),
    row("field/only-lf", LINES, post().replace(b"a\r\n", b"a\n"), refused(400)),
    row(
        "field/lf-at-the-end-of-the-head",
        LINES,
        head(LINE, HOST, LENGTH)[:-2] + b"\n" + BODY + HIDDEN,
        refused(400),
    ),
    *(
        row(f"field/first-{name}", FIRST, head(LINE, *lines, LENGTH) + BODY + HIDDEN, refused(400))
        for name, lines in {
            "space-and-field": (b" x: y", HOST),
            "tab-and-field": (b"\tx: y", HOST),
            "only-space": (b" ", HOST),
            "space-and-host": (b" host: a",),
        }.items()
    ),
    row(
        "field/100",
        "RFC 6585 section 5: as many as the limit says are taken",
        post(*[b"x-%d: y" % n for n in range(98)]),
        served(BODY, end=End.KEPT),
    ),
    row("field/101", TOO_MUCH, post(*[b"x-%d: y" % n for n in range(99)]), answered(431)),
    row("field/10000", TOO_MUCH, post(*[b"x-%d: y" % n for n in range(10000)]), answered(431)),
    row("field/10000-empty", TOO_MUCH, post(*[b"x:"] * 10000), answered(431)),
    row(
        "field/30-KiB",
        "RFC 6585 section 5: as much as the limit says is taken",
        post(*[b"x-%d: %b" % (n, b"y" * 992) for n in range(31)]),
        served(BODY, end=End.KEPT),
    ),
    row(
        "field/33-KiB",
        TOO_MUCH,
        post(*[b"x-%d: %b" % (n, b"y" * 1024) for n in range(33)]),
        answered(431),
    ),
    row("field/value-of-100-KiB", TOO_MUCH, post(b"x: " + b"y" * (100 << 10)), answered(431)),
    row("field/name-of-100-KiB", TOO_MUCH, post(b"x" * (100 << 10) + b": y"), answered(431)),
    row("field/cookie-of-64-KiB", TOO_MUCH, post(b"cookie: " + b"y" * 65536), answered(431)),
    row(
        "field/value-without-end",
        TOO_MUCH,
        head(LINE, HOST)[:-2] + b"x: " + b"y" * (1 << 20),
        refused(431),
    ),
    row(
        "field/name-without-end",
        TOO_MUCH,
        head(LINE, HOST)[:-2] + b"x" * (1 << 20),
        refused(431),
    ),
    row(
        "field/fields-without-end",
        TOO_MUCH,
        head(LINE, HOST)[:-2] + b"x: y\r\n" * 100_000,
        refused(431),
    ),
    row(
        "field/white-space-without-end",
        TOO_MUCH,
        head(LINE, HOST)[:-2] + b"x:" + b" " * (1 << 20),
        refused(431),
    ),
]
