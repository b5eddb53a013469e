"""Chunked transfer coding: sizes, extensions, line ends, trailers, and the final chunk."""

from tests.http.raw.request import BODY, EVIL, HIDDEN, LIMIT, WHOLE, chunked, sized
from tests.http.raw.row import BAD, KEPT, SERVED, End, Row, answered, each, refused, row, served

GRAMMAR = "RFC 9112 section 7.1: chunk = chunk-size [ chunk-ext ] CRLF chunk-data CRLF"
OVERFLOW = "RFC 9112 section 7.1: beware of large hexadecimal numerals and of overflow"
EXTENSION = "RFC 9112 section 7.1.1: unknown extensions are ignored"
#: llhttp refuses it: nobody is known to send it, and others were led astray by white space there.
BAD_SPACE = "RFC 9110 section 5.6.3 would have bad white space parsed, and removed"
REASONABLE = "RFC 9112 section 7.1.1: their length is limited, with a 4xx"
LINES = "RFC 9112 section 2.2: lines end in CRLF; a lone CR is invalid"
TRAILERS = "RFC 9110 section 6.5.1: trailers that frame, route or authenticate are not merged"
DROPPED = "RFC 9112 section 7.1.2: trailers may be dropped"
LIKE_HEADERS = "RFC 9112 section 5.1, for trailers as for headers"
TOO_MANY = "RFC 6585 section 5, for what comes after the body as well"
TOO_LARGE = "RFC 9110 section 15.5.14"
NEXT = "RFC 9112 section 6.3: what follows is the next request, and it is none"

_END = b"\r\n" + BODY + b"\r\n0\r\n\r\n"
_DATA = b"d\r\n" + BODY


def _one(size: bytes) -> bytes:
    """A request of one chunk with that size line, and the final chunk."""
    return chunked(size + _END)


def _extended(extension: bytes) -> bytes:
    return _one(b"d" + extension)


def _trailing(lines: bytes) -> bytes:
    return chunked(WHOLE[:-2] + lines + b"\r\n\r\n")


GOOD = {
    "one": WHOLE,
    "upper-case": b"D" + _END,
    "each-byte": b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n",
    "two": b"5\r\n" + BODY[:5] + b"\r\n8\r\n" + BODY[5:] + b"\r\n0\r\n\r\n",
    "leading-zero": b"0d" + _END,
    "three-zeros-at-the-end": _DATA + b"\r\n000\r\n\r\n",
}
EXTENSIONS = [
    *(b";a", b";a=b", b";a=b;c=d", b";a;b", b';a="b"', b';a="b;c"', b';a="b\\"c"', b';a="b c"'),
    b";a=" + b"x" * 1000,
]
BAD_EXTENSIONS = [
    *(b";", b";[=]", b",a", b";a==b", b';a="b', b';a="b"c', b";a\x00", b";a=\x00b", b";a=\x01"),
    *(b";a=\x7f", b";a\nb", b";a=b\nc", b';a="b\nc"', b";a\rb", b";a=b\rc", b';a="b\rc"'),
    *(b";a\r", b";a\tb"),
]
BAD_SIZES = [
    *(b"g", b"", b";a", b"0xd", b"0Xd", b"+d", b"-d", b"-1", b"+0", b"0_d", b" d", b"\td", b"d "),
    *(b"d\t", b"0 d", b"dh", b"d.0", b"d,d", b"d\x00", b"\x0cd", b"\x0bd", b'"d"'),
    b"\xef\xbd\x84",  # a full-width d
]
HUGE_SIZES = [b"1000000000000000d", b"f" * 17, b"f" * 1000]
#: Bodies in which the line end after a size, after the data or at the very end is wrong.
BAD_LINES = {
    "lf-after-size": b"d\n" + BODY + b"\r\n0\r\n\r\n",
    "cr-after-size": b"d\r" + BODY + b"\r\n0\r\n\r\n",
    "cr-cr-lf-after-size": b"d\r\r\n" + BODY + b"\r\n0\r\n\r\n",
    "nothing-after-size": b"d" + BODY + b"\r\n0\r\n\r\n",
    "lf-after-data": _DATA + b"\n0\r\n\r\n",
    "cr-after-data": _DATA + b"\r0\r\n\r\n",
    "nothing-after-data": _DATA + b"0\r\n\r\n",
    "two-bytes-after-data": _DATA + b"XX0\r\n\r\n",
    "data-too-long": _DATA + b"!!\r\n0\r\n\r\n",
    "data-too-short": b"e\r\n" + BODY + b"\r\n0\r\n\r\n",
    "empty-line-first": b"\r\n" + WHOLE,
    "lf-after-last-size": _DATA + b"\r\n0\n\r\n",
    "lf-at-the-end": _DATA + b"\r\n0\r\n\n",
    "cr-at-the-end": _DATA + b"\r\n0\r\n\rX",
    "only-lf": WHOLE.replace(b"\r\n", b"\n"),
    "no-chunks-at-all": BODY,
    "a-request-instead": HIDDEN,
    "size-in-a-second-line": b"d;a\r\n\r\n" + BODY + b"\r\n0\r\n\r\n",
}
BAD_TRAILERS = [
    *(b"x", b": y", b"x y: z", b"x : y", b"x: y\r\n z", b" x: y", b"x: \x00", b"x: \x01"),
    *(b"x: y\rz", b"x: y\nz: 1"),
]
FORBIDDEN_TRAILERS = [
    *(b"content-length: 5", b"transfer-encoding: chunked", b"host: evil", b"authorization: evil"),
    *(b"content-type: text/evil", b"connection: x-evil", b"upgrade: evil", b"expect: evil"),
    *(b"cookie: evil", b"x-request-id: evil"),
]
#: Bodies with too much of what is no content.
OVERHEAD = {
    "extension-of-100-KiB": b"d;a=" + b"x" * (100 << 10) + _END,
    "extensions-in-small-chunks": (b"1;a=" + b"x" * 1000 + b"\r\n \r\n") * 100 + WHOLE,
}
MANY_TRAILERS = {
    "of-100-KiB": WHOLE[:-2] + b"x: " + b"y" * (100 << 10) + b"\r\n\r\n",
    "by-the-thousand": WHOLE[:-2] + b"x: y\r\n" * 1000 + b"\r\n",
}
#: Bodies over the limit: in one chunk, in many, and one that only says so.
LARGE = {
    "one": b"%x\r\n%b\r\n0\r\n\r\n" % (LIMIT + 1, sized(LIMIT + 1)),
    "many": (b"%x\r\n%b\r\n" % (len(EVIL), EVIL)) * 4000 + b"0\r\n\r\n",
}
_AT_LIMIT = chunked(b"%x\r\n%b\r\n0\r\n\r\n" % (LIMIT, sized(LIMIT)))
_ZEROS = _one(b"0" * 40 + b"d")
_LAST_EXTENDED = chunked(_DATA + b"\r\n0;a=b\r\n\r\n")
_HUGE = chunked(b"f" * 16 + b"\r\n" + HIDDEN * 2000)

ROWS: list[Row] = [
    *each("chunk/good", GRAMMAR, chunked, GOOD, KEPT),
    row("chunk/none", GRAMMAR, chunked(b"0\r\n\r\n"), answered(400)),
    *each("chunk/size", GRAMMAR, _one, BAD_SIZES, BAD),
    row("chunk/size-plus-zero-alone", GRAMMAR, chunked(b"+0\r\n\r\n" + HIDDEN), BAD),
    row("chunk/size-of-forty-zeros", OVERFLOW, _ZEROS, KEPT, BAD),
    *each("chunk/size", OVERFLOW, _one, HUGE_SIZES, refused(400, 413)),
    row("chunk/size-16-digits", TOO_LARGE, _HUGE, refused(400, 413)),
    row("chunk/at-the-limit", GRAMMAR, _AT_LIMIT, served(sized(LIMIT), end=End.KEPT)),
    *each("chunk/over-the-limit", TOO_LARGE, chunked, LARGE, refused(413)),
    *each("chunk/extension", EXTENSION, _extended, EXTENSIONS, KEPT),
    row("chunk/extension-on-the-last", EXTENSION, _LAST_EXTENDED, KEPT),
    *each("chunk/space", BAD_SPACE, _extended, [b" ;a=b", b"; a=b", b";a = b"], BAD),
    *each("chunk/extension", GRAMMAR, _extended, BAD_EXTENSIONS, BAD),
    *each("chunk/extension", GRAMMAR, _extended, [b";=b", b";a=", b";;a"], KEPT, BAD),
    *each("chunk", REASONABLE, chunked, OVERHEAD, refused(400, 413, 431)),
    *each("chunk/line", LINES, chunked, BAD_LINES, BAD),
    *each(
        *("chunk/trailer", DROPPED, _trailing, [b"x-sum: 1", b"x-sum: 1\r\nx-sum: 2"], KEPT),
        never=[b"x-sum"],
    ),
    *each("chunk/trailer", TRAILERS, _trailing, FORBIDDEN_TRAILERS, SERVED, BAD, never=[b"evil"]),
    *each(
        *("chunk/bad-trailer", LIKE_HEADERS, lambda line: _trailing(line) + HIDDEN, BAD_TRAILERS),
        BAD,
    ),
    *each("chunk/trailers", TOO_MANY, chunked, MANY_TRAILERS, refused(400, 413, 431)),
    row(
        *("chunk/a-request-after-the-end", GRAMMAR, chunked(WHOLE + chunked(WHOLE))),
        served(BODY, BODY, end=End.KEPT),
    ),
    row("chunk/rubbish-after-the-end", NEXT, chunked(WHOLE + b"X\r\n\r\n"), SERVED.then(BAD)),
]
