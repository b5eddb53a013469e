"""Header fields: their names, values, line ends, number and size."""

from tests.http.raw.request import BODY, HIDDEN, HOST, LENGTH, LINE, head, post
from tests.http.raw.row import BAD, KEPT, SERVED, Row, Value, answered, each, refused, row

NAME = "RFC 9110 section 5.1: a field's name is a token; RFC 9112 section 5.1: and then a colon"
VALUE = "RFC 9110 section 5.5: CR, LF, NUL and other controls are invalid in values"
TEXT = "RFC 9110 section 5.5: field-content is visible, space, tab, or above 127"
SPACE = "RFC 9110 section 5.5: white space around a value is not part of it, which may be empty"
CASE = "RFC 9110 section 5.1: names of fields are case-insensitive"
FOLD = "RFC 9112 section 5.2: obs-fold is refused with 400, or replaced by spaces"
LINES = "RFC 9112 section 2.2: lines end in CRLF; a lone CR is invalid"
FIRST = "RFC 9112 section 2.2: white space before the first field: refused, or the line dropped"
ENOUGH = "RFC 6585 section 5: as much as the limit says is taken"
TOO_MUCH = "RFC 6585 section 5: too many fields, or too large: 431"

BAD_NAMES = [
    *(b": y", b" : y", b"x", b"x y z", b"x-y", b"x y: z", b"x\ty: z", b"x : y", b"x\t: y"),
    *(b"x\x0b: y", b"x[]: y", b"x[y: z", b"x(): y", b'"x": y', b"x/y: z", b"x\\y: z", b"x@y: z"),
    *(b"x,y: z", b"x;y: z", b"x=y: z", b"x?: y", b"{x}: y", b"<x>: y", b"x\x00: y", b"x\x01: y"),
    *(b"x\x7f: y", b"x\ry: z", b"x\xe9: y", b"x-t\xc3\xabst: y"),
    *(b"\xef\xbb\xbfx: y", b"\xf0\x9f\x98\x80: y"),  # a byte order mark, an emoji
]
BAD_VALUES = [
    *(b"x: a\x00b", b"x: \x00a", b"x: a\x00", b"x: a\x07", b"x: a\x08b", b"x: a\x0bb"),
    *(b"x: a\x0cb", b"x: \x1b[31m", b"x: a\x7fb", b"x: \x01", b"x: \x1f", b"x: a\rb"),
    *(b"x: a\ry: b", b"x: a\r", b"x:\r", b"cookie: a=\x01\x02\x03", b"cookie: a=\x00b"),
    b"authorization: Bearer a\x01",
]
GOOD = [
    *((b"x", b"y"), (b"x", b""), (b"x", b"a\tb"), (b"x", b"a  b"), (b"x", b"a: b: c")),
    *((b"x", b"caf\xc3\xa9 \x80\xff"), (b"x", b'"a\\"b'), (b"x", bytes(range(0x21, 0x7F)))),
    *((b"!#$%&'*+-.^_`|~09az", b"y"), (b"x", b"y" * 16000), (b"x" * 1000, b"y"), (b"0", b"1")),
]
FOLDED = [
    *(b"x: y\r\n z", b"x: y\r\n\tz", b"x: y\r\n z\r\n z", b"x: y\r\n ", b"x:\r\n y"),
    b"x: y\r\n transfer-encoding: chunked",
]
LINE_ENDS = [
    *(b"x: y\n", b"x: y\n z\r\n", b"x: y\n\n", b"x: y\r", b"x: y\r\r\n", b"x: y\n\r"),
    *(b"\nx: y\r\n", b"\rx: y\r\n", b"x: y\r\n\rz: 1\r\n"),
]
FIRST_LINES: list[Value] = [(b" x: y", HOST), (b"\tx: y", HOST), (b" ", HOST), b" host: a"]
TOO_MANY = {
    "101": [b"x-%d: y" % n for n in range(99)],
    "10000": [b"x-%d: y" % n for n in range(10000)],
    "10000-empty": [b"x:"] * 10000,
    "33-KiB": [b"x-%d: %b" % (n, b"y" * 1024) for n in range(33)],
    "value-of-100-KiB": [b"x: " + b"y" * (100 << 10)],
    "name-of-100-KiB": [b"x" * (100 << 10) + b": y"],
    "cookie-of-64-KiB": [b"cookie: " + b"y" * 65536],
}
ENDLESS = {
    "value": b"x: " + b"y" * (1 << 20),
    "name": b"x" * (1 << 20),
    "fields": b"x: y\r\n" * 100_000,
    "white-space": b"x:" + b" " * (1 << 20),
}
_BEGUN = head(LINE, HOST, LENGTH)[:-2]


def _hiding(line: bytes) -> bytes:
    return post(line) + HIDDEN


def _ending(line: bytes) -> bytes:
    return _BEGUN + line + b"\r\n" + BODY + HIDDEN


def _first(*lines: bytes) -> bytes:
    return head(LINE, *lines, LENGTH) + BODY + HIDDEN


ROWS: list[Row] = [
    *each("field/name", NAME, _hiding, BAD_NAMES, BAD),
    *each("field/value", VALUE, _hiding, BAD_VALUES, BAD),
    *(
        row(f"field/good-{place}", TEXT, post(b": ".join(pair)), KEPT, carried=[pair])
        for place, pair in enumerate(GOOD)
    ),
    row("field/no-space", TEXT, post(b"x:y"), SERVED, carried=[(b"x", b"y")]),
    row("field/white-space-around", SPACE, post(b"x: \t y"), KEPT, carried=[(b"x", b"y")]),
    row("field/white-space-alone", SPACE, post(b"x: \t "), KEPT),
    row("field/mixed-case-name", CASE, post(b"X-MiXeD: Y"), KEPT, carried=[(b"x-mixed", b"Y")]),
    *each("field/folded", FOLD, _hiding, FOLDED, BAD),
    *each("field/line", LINES, _ending, LINE_ENDS, BAD),
    row("field/only-lf", LINES, post().replace(b"a\r\n", b"a\n"), BAD),
    row("field/lf-at-the-end-of-the-head", LINES, _BEGUN + b"\n" + BODY + HIDDEN, BAD),
    *each("field/first", FIRST, _first, FIRST_LINES, BAD),
    row("field/100", ENOUGH, post(*[b"x-%d: y" % n for n in range(98)]), KEPT),
    row("field/30-KiB", ENOUGH, post(*[b"x-%d: %b" % (n, b"y" * 992) for n in range(31)]), KEPT),
    *(
        row(f"field/{name}", TOO_MUCH, post(*lines), answered(431))
        for name, lines in TOO_MANY.items()
    ),
    *each(
        *("field/endless", TOO_MUCH, lambda line: head(LINE, HOST)[:-2] + line, ENDLESS),
        refused(431),
    ),
]
