"""`Transfer-Encoding`: only `chunked`, once, in HTTP/1.1, and never with Content-Length."""

from tests.http.raw.request import (
    BODY,
    CHUNKED,
    HIDDEN,
    HOST,
    LENGTH,
    LINE,
    WHOLE,
    chunked,
    head,
    post,
)
from tests.http.raw.row import End, Row, answered, refused, row, served

BOTH = "RFC 9112 section 6.1: both is refused, or the length ignored and the connection closed"
LAST = "RFC 9112 section 6.3, item 4: chunked is not the final coding: 400, and closed"
UNKNOWN = "RFC 9112 section 6.1: a coding that is not understood is answered with 501"
NAMES = "RFC 9112 section 7: names of codings are case-insensitive"
OWS = "RFC 9110 section 5.5: white space around a value is not part of it"
ONCE = "RFC 9112 section 6.1: chunked is applied once"
EMPTY = "RFC 9110 section 5.6.1.2: empty elements of a list are ignored"
OLD = "RFC 9112 section 6.1: with HTTP/1.0 the framing is faulty"


def _coded(value: bytes, *fields: bytes, wire: bytes = WHOLE) -> bytes:
    return head(LINE, HOST, b"transfer-encoding:" + value, *fields) + wire


#: Spellings of the coding that some servers take for chunked and others do not.
SPELLINGS = {
    "plain": b" chunked",
    "mixed-case": b" Chunked",
    "upper-case": b" CHUNKED",
    "no-space": b"chunked",
    "tab": b"\tchunked",
    "trailing-space": b" chunked ",
    "trailing-tab": b" chunked\t",
    "leading-comma": b" , chunked",
    "trailing-comma": b" chunked,",
    "parameter": b" chunked;a=b",
    "quoted": b' "chunked"',
    "single-quoted": b" 'chunked'",
    "letter-before": b" xchunked",
    "letter-after": b" chunkedx",
    "space-inside": b" chun ked",
    "identity": b" identity",
    "cow": b" cow",
    "gzip-first": b" gzip, chunked",
    "gzip-last": b" chunked, gzip",
    "identity-first": b" identity, chunked",
    "identity-last": b" chunked, identity",
    "twice": b" chunked, chunked",
    "empty": b"",
    "comma": b" ,",
    "vertical-tab": b" \x0bchunked",
    "form-feed": b" \x0cchunked",
    "nul-before": b" \x00chunked",
    "nul-after": b" chunked\x00",
    "control-after": b" chunked\x01",
    "bare-cr-after": b" chunked\rx",
    "no-break-space": b" \xa0chunked",
    "full-width-letter": b" \xef\xbd\x83hunked",
    "kelvin-sign": b" chun\xe2\x84\xaaed",
    "folded": b"\r\n chunked",
    "folded-after": b" chunked\r\n ",
    "folded-other": b" chunked\r\n , identity",
}
_UNDERSTOOD = {
    "plain": OWS,
    "mixed-case": NAMES,
    "upper-case": NAMES,
    "no-space": OWS,
    "tab": OWS,
    "trailing-space": OWS,
}
_OTHER_THAN_CHUNKED_LAST = [
    name
    for name in SPELLINGS
    if name not in {*_UNDERSTOOD, "trailing-tab", "gzip-first", "identity-first", "twice"}
    and not name.endswith("comma")
]

#: Field names that must not be taken for Transfer-Encoding.
LOOKALIKES = {
    "space-before-colon": b"transfer-encoding : chunked",
    "tab-before-colon": b"transfer-encoding\t: chunked",
    "space-first": b" transfer-encoding: chunked",
    "nul-after-name": b"transfer-encoding\x00: chunked",
    "space-in-name": b"transfer encoding: chunked",
    "no-colon": b"transfer-encoding chunked",
    "bare-lf-before": b"x: y\ntransfer-encoding: chunked",
    "bare-cr-before": b"x: y\rtransfer-encoding: chunked",
}

ROWS: list[Row] = [
    *(
        row(f"coding/{name}", rfc, _coded(SPELLINGS[name]), served(BODY, end=End.KEPT))
        for name, rfc in _UNDERSTOOD.items()
    ),
    *(
        row(f"coding/{name}", EMPTY, _coded(SPELLINGS[name]), refused(400, 501))
        for name in ("leading-comma", "trailing-comma")
    ),
    row("coding/trailing-tab", OWS, _coded(SPELLINGS["trailing-tab"]), refused(400, 501)),
    *(
        row(f"coding/{name}", LAST, _coded(SPELLINGS[name]), refused(400, 501))
        for name in _OTHER_THAN_CHUNKED_LAST
    ),
    row("coding/gzip-first", UNKNOWN, _coded(b" gzip, chunked"), refused(501)),
    row("coding/gzip-alone", UNKNOWN, _coded(b" gzip", wire=b""), refused(400, 501)),
    row("coding/identity-first", UNKNOWN, _coded(b" identity, chunked"), refused(400, 501)),
    row("coding/twice", ONCE, _coded(b" chunked, chunked"), refused(400, 501)),
    *(
        row(f"coding/fields-{name}", rfc, _coded(b" " + one, other), refused(400, 501))
        for name, rfc, one, other in [
            ("chunked-twice", ONCE, b"chunked", CHUNKED),
            ("chunked-then-identity", LAST, b"chunked", b"transfer-encoding: identity"),
            ("identity-then-chunked", UNKNOWN, b"identity", CHUNKED),
            ("gzip-then-chunked", UNKNOWN, b"gzip", CHUNKED),
            ("chunked-then-gzip", LAST, b"chunked", b"Transfer-Encoding: gzip"),
            ("empty-then-chunked", EMPTY, b"", CHUNKED),
            ("chunked-then-empty", EMPTY, b"chunked", b"transfer-encoding:"),
        ]
    ),
    *(
        row(
            f"coding/both-{name}-{order}",
            BOTH,
            head(LINE, HOST, *lines) + b"0\r\n\r\n" + HIDDEN,
            refused(400, 501),
        )
        for name, value in SPELLINGS.items()
        for order, lines in {
            "length-first": (
                b"content-length: %d" % (5 + len(HIDDEN)),
                b"transfer-encoding:" + value,
            ),
            "length-last": (
                b"transfer-encoding:" + value,
                b"content-length: %d" % (5 + len(HIDDEN)),
            ),
        }.items()
    ),
    *(
        row(f"coding/both-{name}", BOTH, head(LINE, HOST, *lines) + body, refused(400))
        for name, lines, body in [
            ("and-the-body-of-neither", (LENGTH, CHUNKED), BODY),
            ("and-length-zero", (b"content-length: 0", CHUNKED), WHOLE),
            ("and-length-too-short", (b"content-length: 4", CHUNKED), b"0\r\n\r\n"),
            ("and-length-too-long", (CHUNKED, b"content-length: 30"), b"0\r\n\r\nX"),
            ("and-length-with-plus", (b"content-length: +5", CHUNKED), b"0\r\n\r\n" + HIDDEN),
            ("and-length-with-letters", (CHUNKED, b"content-length: 5x"), b"0\r\n\r\n" + HIDDEN),
            ("and-length-empty", (CHUNKED, b"content-length:"), WHOLE),
            (
                "and-a-request-in-a-chunk",
                (CHUNKED, b"content-length: 4"),
                b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN),
            ),
            ("and-coding-twice", (CHUNKED, b"transfer-encoding: identity", LENGTH), WHOLE),
            ("apart", (b"x: 1", LENGTH, b"y: 2", CHUNKED, b"z: 3"), WHOLE),
        ]
    ),
    *(
        row(
            f"coding/{name}",
            "RFC 9112 section 5.1",
            head(LINE, HOST, LENGTH, line) + BODY + HIDDEN,
            refused(400),
        )
        for name, line in LOOKALIKES.items()
    ),
    row(
        "coding/underscore-in-the-name",
        "RFC 9110 section 5.1: another field, which must not be taken for this one",
        post(b"transfer_encoding: chunked"),
        served(BODY, end=End.KEPT),
        answered(400),
    ),
    row(
        "coding/underscore-in-the-name-and-no-length",
        "RFC 9112 section 6.3, item 7: no body; the chunk is not a request",
        head(LINE, HOST, b"transfer_encoding: chunked") + WHOLE,
        refused(400),
        answered(400).then(refused(400)),
    ),
    row(
        "coding/old-version",
        OLD,
        head(b"POST /v1/completions HTTP/1.0", HOST, CHUNKED) + WHOLE,
        refused(400, 501),
    ),
    row(
        "coding/old-version-kept-alive",
        OLD,
        head(b"POST /v1/completions HTTP/1.0", HOST, CHUNKED, b"connection: keep-alive")
        + WHOLE
        + HIDDEN,
        refused(400, 501),
    ),
    row(
        "coding/old-version-and-length",
        OLD,
        head(b"POST /v1/completions HTTP/1.0", HOST, LENGTH, CHUNKED) + BODY + HIDDEN,
        refused(400, 501),
    ),
    row(
        "coding/te-is-another-field",
        "RFC 9110 section 10.1.4: TE belongs to this hop and frames nothing",
        post(b"te: chunked", b"connection: te"),
        served(BODY, end=End.KEPT),
    ),
    row(
        "coding/upper-case-name",
        "RFC 9110 section 5.1: names of fields are case-insensitive",
        head(LINE, HOST, b"TRANSFER-ENCODING: chunked") + WHOLE,
        served(BODY, end=End.KEPT),
    ),
    row(
        "coding/and-trailers-announced",
        "RFC 9110 section 6.6.2: Trailer belongs to the message as it was sent",
        chunked(WHOLE, b"trailer: x-sum"),
        served(BODY, end=End.KEPT),
    ),
]
