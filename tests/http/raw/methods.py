"""Methods: known and unknown ones, and bodies where none is expected."""

from tests.http.raw.request import BODY, CHUNKED, HIDDEN, HOST, LENGTH, WHOLE, get, head, post
from tests.http.raw.row import End, Row, answered, row, served

ALLOW = "RFC 9110 section 15.5.6: 405 names the methods that are allowed"
UNKNOWN = "RFC 9110 section 9.1: 501 for an unknown method, 405 for one that is not allowed"
CASE = "RFC 9110 section 9.1: methods are case-sensitive"
TUNNEL = "RFC 9110 section 9.3.6: who is no proxy may refuse CONNECT"
ECHO = "RFC 9110 section 9.3.8: TRACE, if it is answered, must not tell secrets"
NO_CONTENT = "RFC 9110 section 9.3.2: an answer to HEAD has no content"
CONTENT = "RFC 9110 section 9.3.1: content of GET means nothing; it may be refused"
UNREAD = "RFC 9112 section 9.3: a body that is not wanted is read, or the connection closed"

_PATH = b" /v1/completions HTTP/1.1"
_LIVE = b" /health/live HTTP/1.1"
_HIDDEN_LENGTH = b"content-length: %d" % len(HIDDEN)

#: Methods that llhttp knows but this server does not use.
OTHERS = b"PUT DELETE PATCH PROPFIND MKCOL COPY LOCK SEARCH PURGE LINK NOTIFY SUBSCRIBE".split()
#: Words that are not methods.
WORDS = {
    "unknown": b"FOO",
    "longer": b"GETS",
    "shorter": b"PO",
    "letter": b"X",
    "like-connect": b"CONNECTED",
    "digit": b"G3T",
    "protocol": b"HTTP",
    "hyphen": b"M-POST",
    "symbols": b"!#$%&'*+-.^_`|~",
}

ROWS: list[Row] = [
    row("method/get", UNKNOWN, get(), answered(200, end=End.KEPT)),
    *(
        row(
            f"method/{method.decode().lower()}-where-post-belongs",
            ALLOW,
            post(line=method + _PATH),
            answered(405, 501),
        )
        for method in (b"GET", *OTHERS)
    ),
    *(
        row(
            f"method/{method.decode().lower()}-where-get-belongs",
            ALLOW,
            post(line=method + _LIVE),
            answered(405, 501),
        )
        for method in (b"POST", b"PUT", b"DELETE", b"PATCH")
    ),
    *(
        row(f"method/word-{name}", UNKNOWN, post(line=word + _PATH), answered(400, 405, 501))
        for name, word in WORDS.items()
    ),
    *(
        row(f"method/case-{word.decode()}", CASE, post(line=word + _PATH), answered(400, 405, 501))
        for word in (b"post", b"Post", b"POSt", b"get")
    ),
    *(
        row(
            f"method/connect-{name}",
            TUNNEL,
            head(b"CONNECT " + target + b" HTTP/1.1", HOST, *fields) + HIDDEN,
            answered(400, 405, 501, end=End.CLOSED),
        )
        for name, target, fields in [
            ("authority", b"a:443", ()),
            ("authority-and-length", b"a:443", (_HIDDEN_LENGTH,)),
            ("path", b"/v1/completions", ()),
            ("absolute", b"http://a/v1/completions", ()),
            ("no-port", b"a", ()),
        ]
    ),
    row(
        "method/trace",
        ECHO,
        head(b"TRACE" + _LIVE, HOST, b"authorization: evil", b"cookie: evil"),
        answered(400, 405, 501),
        never=[b"evil"],
    ),
    row(
        "method/trace-with-body",
        ECHO,
        head(b"TRACE" + _PATH, HOST, _HIDDEN_LENGTH) + HIDDEN,
        answered(400, 405, 501),
        never=[b"evil"],
    ),
    row(
        "method/trace-of-the-last",
        "RFC 9110 section 7.6.2: Max-Forwards of zero is answered here",
        head(b"TRACE" + _LIVE, HOST, b"max-forwards: 0"),
        answered(400, 405, 501),
    ),
    row("method/head", NO_CONTENT, head(b"HEAD" + _LIVE, HOST), answered(200), head=True),
    row(
        "method/head-where-post-belongs",
        NO_CONTENT,
        head(b"HEAD" + _PATH, HOST),
        answered(405, 501),
        head=True,
    ),
    row(
        "method/head-of-nothing",
        NO_CONTENT,
        head(b"HEAD /nothing HTTP/1.1", HOST),
        answered(404),
        head=True,
    ),
    row(
        "method/head-with-body",
        UNREAD,
        head(b"HEAD" + _LIVE, HOST, _HIDDEN_LENGTH) + HIDDEN,
        answered(200, 400),
        head=True,
    ),
    row(
        "method/options",
        "RFC 9110 section 9.3.7",
        head(b"OPTIONS" + _PATH, HOST),
        answered(200, 204, 405, 501),
    ),
    row(
        "method/options-with-body",
        UNREAD,
        head(b"OPTIONS" + _PATH, HOST, _HIDDEN_LENGTH) + HIDDEN,
        answered(200, 204, 400, 405, 501),
    ),
    *(
        row(
            f"method/{name}",
            CONTENT,
            head(b"GET" + _LIVE, HOST, *fields) + body,
            answered(200, 400),
        )
        for name, fields, body in [
            ("get-with-length-zero", (b"content-length: 0",), b""),
            ("get-with-body", (LENGTH,), BODY),
            ("get-with-a-request-as-body", (_HIDDEN_LENGTH,), HIDDEN),
            ("get-with-chunks", (CHUNKED,), WHOLE),
            (
                "get-with-a-request-as-chunk",
                (CHUNKED,),
                b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN),
            ),
        ]
    ),
    row(
        "method/get-whose-body-needs-the-next-request-to-be-one",
        UNREAD,
        head(b"GET" + _LIVE, HOST, b"content-length: %d" % len(HIDDEN[:-40])) + HIDDEN[:-40],
        answered(200, 400),
    ),
    row(
        "method/wrong-with-a-request-as-body",
        UNREAD,
        head(b"PUT" + _PATH, HOST, _HIDDEN_LENGTH) + HIDDEN,
        answered(405, 501),
    ),
    row(
        "method/overridden",
        "RFC 9110 section 9.1: the method is in the request line, and nowhere else",
        get(b"x-http-method-override: POST", b"x-method-override: POST", target=b"/v1/completions"),
        answered(405, 501),
    ),
    row(
        "method/post-after-head",
        NO_CONTENT,
        head(b"HEAD" + _LIVE, HOST, b"connection: close") + HIDDEN,
        answered(200, end=End.CLOSED),
        head=True,
    ),
    row("method/post", UNKNOWN, post(), served(BODY, end=End.KEPT)),
]
