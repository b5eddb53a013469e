"""Chunked transfer coding: sizes, extensions, line ends, trailers, and the final chunk."""

from tests.http.raw.request import BODY, EVIL, HIDDEN, LIMIT, WHOLE, chunked, sized
from tests.http.raw.row import End, Row, answered, refused, row, served

GRAMMAR = "RFC 9112 section 7.1: chunk = chunk-size [ chunk-ext ] CRLF chunk-data CRLF"
OVERFLOW = "RFC 9112 section 7.1: beware of large hexadecimal numerals and of overflow"
EXTENSION = "RFC 9112 section 7.1.1: unknown extensions are ignored"
BAD_SPACE = "RFC 9110 section 5.6.3: bad white space is parsed, and removed"
REASONABLE = "RFC 9112 section 7.1.1: their length is limited, with a 4xx"
LINES = "RFC 9112 section 2.2: lines end in CRLF; a lone CR is invalid"
TRAILERS = "RFC 9110 section 6.5.1: trailers that frame, route or authenticate are not merged"
TOO_MANY = "RFC 6585 section 5, for what comes after the body as well"
TOO_LARGE = "RFC 9110 section 15.5.14"

_END = b"\r\n" + BODY + b"\r\n0\r\n\r\n"


def _one(size: bytes) -> bytes:
    """A request of one chunk with that size line, and the final chunk."""
    return chunked(size + _END)


GOOD = {
    "one": WHOLE,
    "upper-case": b"D" + _END,
    "each-byte": b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n",
    "two": b"5\r\n" + BODY[:5] + b"\r\n8\r\n" + BODY[5:] + b"\r\n0\r\n\r\n",
    "leading-zero": b"0d" + _END,
    "three-zeros-at-the-end": b"d\r\n" + BODY + b"\r\n000\r\n\r\n",
}

EXTENSIONS = {
    "name": b";a",
    "value": b";a=b",
    "two": b";a=b;c=d",
    "two-names": b";a;b",
    "quoted": b';a="b"',
    "quoted-semicolon": b';a="b;c"',
    "quoted-quote": b';a="b\\"c"',
    "quoted-space": b';a="b c"',
    "long": b";a=" + b"x" * 1000,
}

BAD_EXTENSIONS = {
    "only-semicolon": b";",
    "no-token": b";[=]",
    "comma": b",a",
    "two-equals": b";a==b",
    "quote-open": b';a="b',
    "after-the-quote": b';a="b"c',
    "nul": b";a\x00",
    "nul-in-value": b";a=\x00b",
    "control": b";a=\x01",
    "delete": b";a=\x7f",
    "bare-lf": b";a\nb",
    "bare-lf-in-value": b";a=b\nc",
    "bare-lf-in-quotes": b';a="b\nc"',
    "bare-cr": b";a\rb",
    "bare-cr-in-value": b";a=b\rc",
    "bare-cr-in-quotes": b';a="b\rc"',
    "bare-cr-before-the-end": b";a\r",
    "tab-inside": b";a\tb",
}

BAD_SIZES = {
    "not-hex": b"g",
    "empty": b"",
    "only-extension": b";a",
    "prefix": b"0xd",
    "big-prefix": b"0Xd",
    "plus": b"+d",
    "minus": b"-d",
    "minus-one": b"-1",
    "plus-zero": b"+0",
    "underscore": b"0_d",
    "space-before": b" d",
    "tab-before": b"\td",
    "space-after": b"d ",
    "tab-after": b"d\t",
    "space-inside": b"0 d",
    "h-after": b"dh",
    "point": b"d.0",
    "comma": b"d,d",
    "nul": b"d\x00",
    "form-feed": b"\x0cd",
    "vertical-tab": b"\x0bd",
    "quoted": b'"d"',
    "full-width": b"\xef\xbd\x84",
}

#: Bodies in which the line end after a size, after the data or at the very end is wrong.
BAD_LINES = {
    "lf-after-size": b"d\n" + BODY + b"\r\n0\r\n\r\n",
    "cr-after-size": b"d\r" + BODY + b"\r\n0\r\n\r\n",
    "cr-cr-lf-after-size": b"d\r\r\n" + BODY + b"\r\n0\r\n\r\n",
    "nothing-after-size": b"d" + BODY + b"\r\n0\r\n\r\n",
    "lf-after-data": b"d\r\n" + BODY + b"\n0\r\n\r\n",
    "cr-after-data": b"d\r\n" + BODY + b"\r0\r\n\r\n",
    "nothing-after-data": b"d\r\n" + BODY + b"0\r\n\r\n",
    "two-bytes-after-data": b"d\r\n" + BODY + b"XX0\r\n\r\n",
    "data-too-long": b"d\r\n" + BODY + b"!!\r\n0\r\n\r\n",
    "data-too-short": b"e\r\n" + BODY + b"\r\n0\r\n\r\n",
    "empty-line-first": b"\r\n" + WHOLE,
    "lf-after-last-size": b"d\r\n" + BODY + b"\r\n0\n\r\n",
    "lf-at-the-end": b"d\r\n" + BODY + b"\r\n0\r\n\n",
    "cr-at-the-end": b"d\r\n" + BODY + b"\r\n0\r\n\rX",
    "only-lf": WHOLE.replace(b"\r\n", b"\n"),
    "no-chunks-at-all": BODY,
    "a-request-instead": HIDDEN,
    "size-in-a-second-line": b"d;a\r\n\r\n" + BODY + b"\r\n0\r\n\r\n",
}

BAD_TRAILERS = {
    "no-colon": b"x",
    "no-name": b": y",
    "space-in-name": b"x y: z",
    "space-before-colon": b"x : y",
    "folded": b"x: y\r\n z",
    "space-first": b" x: y",
    "nul": b"x: \x00",
    "control": b"x: \x01",
    "bare-cr": b"x: y\rz",
    "bare-lf": b"x: y\nz: 1",
}

FORBIDDEN_TRAILERS = {
    "length": b"content-length: 5",
    "coding": b"transfer-encoding: chunked",
    "host": b"host: evil",
    "authorization": b"authorization: evil",
    "type": b"content-type: text/evil",
    "connection": b"connection: x-evil",
    "upgrade": b"upgrade: evil",
    "expect": b"expect: evil",
    "cookie": b"cookie: evil",
    "model": b"x-request-id: evil",
}

ROWS: list[Row] = [
    *(
        row(f"chunk/{name}", GRAMMAR, chunked(wire), served(BODY, end=End.KEPT))
        for name, wire in GOOD.items()
    ),
    row("chunk/none", GRAMMAR, chunked(b"0\r\n\r\n"), answered(400)),
    *(
        row(f"chunk/size-{name}", GRAMMAR, _one(size), refused(400))
        for name, size in BAD_SIZES.items()
    ),
    row("chunk/size-plus-zero-alone", GRAMMAR, chunked(b"+0\r\n\r\n" + HIDDEN), refused(400)),
    row(
        "chunk/size-of-forty-zeros",
        OVERFLOW,
        _one(b"0" * 40 + b"d"),
        served(BODY, end=End.KEPT),
        refused(400),
    ),
    *(
        row(f"chunk/size-{name}", OVERFLOW, _one(size), refused(400, 413))
        for name, size in {
            "17-digits": b"1000000000000000d",
            "17-digits-of-f": b"f" * 17,
            "thousand-digits": b"f" * 1000,
        }.items()
    ),
    row(
        "chunk/size-16-digits",
        TOO_LARGE,
        chunked(b"f" * 16 + b"\r\n" + HIDDEN * 2000),
        refused(400, 413),
    ),
    row(
        "chunk/at-the-limit",
        GRAMMAR,
        chunked(b"%x\r\n%b\r\n0\r\n\r\n" % (LIMIT, sized(LIMIT))),
        served(sized(LIMIT), end=End.KEPT),
    ),
    row(
        "chunk/over-the-limit",
        TOO_LARGE,
        chunked(b"%x\r\n%b\r\n0\r\n\r\n" % (LIMIT + 1, sized(LIMIT + 1))),
        refused(413),
    ),
    row(
        "chunk/many-over-the-limit",
        TOO_LARGE,
        chunked((b"%x\r\n%b\r\n" % (len(EVIL), EVIL)) * 4000 + b"0\r\n\r\n"),
        refused(413),
    ),
    *(
        row(f"chunk/extension-{name}", EXTENSION, _one(b"d" + ext), served(BODY, end=End.KEPT))
        for name, ext in EXTENSIONS.items()
    ),
    row(
        "chunk/extension-on-the-last",
        EXTENSION,
        chunked(b"d\r\n" + BODY + b"\r\n0;a=b\r\n\r\n"),
        served(BODY, end=End.KEPT),
    ),
    *(
        row(f"chunk/extension-{name}", BAD_SPACE, _one(b"d" + ext), refused(400))
        for name, ext in {
            "space-before": b" ;a=b",
            "space-after-semicolon": b"; a=b",
            "spaces-around-equals": b";a = b",
        }.items()
    ),
    *(
        row(f"chunk/extension-{name}", GRAMMAR, _one(b"d" + ext), refused(400))
        for name, ext in BAD_EXTENSIONS.items()
    ),
    *(
        row(
            f"chunk/extension-{name}",
            GRAMMAR,
            _one(b"d" + ext),
            served(BODY, end=End.KEPT),
            refused(400),
        )
        for name, ext in {
            "no-name": b";=b",
            "no-value": b";a=",
            "two-semicolons": b";;a",
        }.items()
    ),
    row(
        "chunk/extension-of-100-KiB",
        REASONABLE,
        _one(b"d;a=" + b"x" * (100 << 10)),
        refused(400, 413, 431),
    ),
    row(
        "chunk/extensions-of-100-KiB-in-small-chunks",
        REASONABLE,
        chunked((b"1;a=" + b"x" * 1000 + b"\r\n \r\n") * 100 + WHOLE),
        refused(400, 413, 431),
    ),
    *(
        row(f"chunk/line-{name}", LINES, chunked(wire), refused(400))
        for name, wire in BAD_LINES.items()
    ),
    *(
        row(
            f"chunk/trailer-{name}",
            "RFC 9112 section 7.1.2: trailers may be dropped",
            chunked(WHOLE[:-2] + lines + b"\r\n\r\n"),
            served(BODY, end=End.KEPT),
            never=[b"x-sum"],
        )
        for name, lines in {"one": b"x-sum: 1", "two": b"x-sum: 1\r\nx-sum: 2"}.items()
    ),
    *(
        row(
            f"chunk/trailer-{name}",
            TRAILERS,
            chunked(WHOLE[:-2] + line + b"\r\n\r\n"),
            served(BODY),
            refused(400),
            never=[b"evil"],
        )
        for name, line in FORBIDDEN_TRAILERS.items()
    ),
    *(
        row(
            f"chunk/trailer-bad-{name}",
            "RFC 9112 section 5.1, for trailers as for headers",
            chunked(WHOLE[:-2] + line + b"\r\n\r\n" + HIDDEN),
            refused(400),
        )
        for name, line in BAD_TRAILERS.items()
    ),
    row(
        "chunk/trailer-of-100-KiB",
        TOO_MANY,
        chunked(WHOLE[:-2] + b"x: " + b"y" * (100 << 10) + b"\r\n\r\n"),
        refused(400, 413, 431),
    ),
    row(
        "chunk/trailers-by-the-thousand",
        TOO_MANY,
        chunked(WHOLE[:-2] + b"x: y\r\n" * 1000 + b"\r\n"),
        refused(400, 413, 431),
    ),
    row(
        "chunk/a-request-after-the-end",
        GRAMMAR,
        chunked(WHOLE + chunked(WHOLE)),
        served(BODY, BODY, end=End.KEPT),
    ),
    row(
        "chunk/rubbish-after-the-end",
        "RFC 9112 section 6.3: what follows is the next request, and it is none",
        chunked(WHOLE + b"X\r\n\r\n"),
        served(BODY).then(refused(400)),
    ),
]
