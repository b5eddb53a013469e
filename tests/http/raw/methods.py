"""Methods: known and unknown ones, and bodies where none is expected."""

from tests.http.raw.request import BODY, CHUNKED, HIDDEN, HOST, LENGTH, WHOLE, get, head, post
from tests.http.raw.row import KEPT, End, Row, answered, each, row

ALLOW = "RFC 9110 section 15.5.6: 405 names the methods that are allowed"
UNKNOWN = "RFC 9110 section 9.1: 501 for an unknown method, 405 for one that is not allowed"
CASE = "RFC 9110 section 9.1: methods are case-sensitive, and only in the request line"
#: What follows may be meant for another server, so the connection is closed.
TUNNEL = "RFC 9110 section 9.3.6: who is no proxy may refuse CONNECT"
ECHO = "RFC 9110 section 9.3.8: TRACE, if it is answered, must not tell secrets"
NO_CONTENT = "RFC 9110 section 9.3.2: an answer to HEAD has no content"
CONTENT = "RFC 9110 section 9.3.1: content of GET means nothing; it may be refused"
UNREAD = "RFC 9112 section 9.3: a body that is not wanted is read, or the connection closed"
OPTIONS = "RFC 9110 section 9.3.7"

_PATH = b" /v1/completions HTTP/1.1"
_LIVE = b" /health/live HTTP/1.1"
_HIDDEN_LENGTH = b"content-length: %d" % len(HIDDEN)

#: Methods that llhttp knows but this server does not use.
OTHERS = b"GET PUT DELETE PATCH PROPFIND MKCOL COPY LOCK SEARCH PURGE LINK NOTIFY SUBSCRIBE".split()
NO_METHODS = b"FOO GETS PO X CONNECTED G3T HTTP M-POST !#$%&'*+-.^_`|~".split()
MISSPELLED = [b"post", b"Post", b"POSt", b"get"]
CONNECTS = {
    "authority": (b"a:443",),
    "authority-and-length": (b"a:443", _HIDDEN_LENGTH),
    "path": (b"/v1/completions",),
    "absolute": (b"http://a/v1/completions",),
    "no-port": (b"a",),
}
TRACES = {
    "live": (b"", b"TRACE" + _LIVE, HOST, b"authorization: evil", b"cookie: evil"),
    "body": (HIDDEN, b"TRACE" + _PATH, HOST, _HIDDEN_LENGTH),
}
#: Bodies and fields of GET.
CONTENTS = {
    "length-zero": (b"", b"content-length: 0"),
    "body": (BODY, LENGTH),
    "a-request-as-body": (HIDDEN, _HIDDEN_LENGTH),
    "chunks": (WHOLE, CHUNKED),
    "a-request-as-chunk": (b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN), CHUNKED),
}
HEADS = [
    row("method/head", NO_CONTENT, head(b"HEAD" + _LIVE, HOST), answered(200), head=True),
    row(
        *("method/head-where-post-belongs", NO_CONTENT, head(b"HEAD" + _PATH, HOST)),
        answered(405, 501),
        head=True,
    ),
    row(
        *("method/head-of-nothing", NO_CONTENT, head(b"HEAD /nothing HTTP/1.1", HOST)),
        answered(404),
        head=True,
    ),
    row(
        *("method/head-with-body", UNREAD, head(b"HEAD" + _LIVE, HOST, _HIDDEN_LENGTH) + HIDDEN),
        answered(200, 400),
        head=True,
    ),
    row(
        *("method/post-after-head", NO_CONTENT),
        head(b"HEAD" + _LIVE, HOST, b"connection: close") + HIDDEN,
        answered(200, end=End.CLOSED),
        head=True,
    ),
]


def _posted(method: bytes) -> bytes:
    return post(line=method + _PATH)


def _live(method: bytes) -> bytes:
    return post(line=method + _LIVE)


def _connect(target: bytes, *fields: bytes) -> bytes:
    return head(b"CONNECT " + target + b" HTTP/1.1", HOST, *fields) + HIDDEN


def _get(body: bytes, *fields: bytes) -> bytes:
    return get(*fields) + body


_CUT = head(b"GET" + _LIVE, HOST, b"content-length: %d" % len(HIDDEN[:-40])) + HIDDEN[:-40]
_OVERRIDDEN = (b"x-http-method-override: POST", b"x-method-override: POST")
_LAST_TRACE = head(b"TRACE" + _LIVE, HOST, b"max-forwards: 0")
_OPTIONS_BODY = head(b"OPTIONS" + _PATH, HOST, _HIDDEN_LENGTH) + HIDDEN
_PUT_HIDING = head(b"PUT" + _PATH, HOST, _HIDDEN_LENGTH) + HIDDEN

ROWS: list[Row] = [
    row("method/get", UNKNOWN, get(), answered(200, end=End.KEPT)),
    row("method/post", UNKNOWN, post(), KEPT),
    *each("method/where-post-belongs", ALLOW, _posted, OTHERS, answered(405, 501)),
    *each(
        *("method/where-get-belongs", ALLOW, _live, b"POST PUT DELETE PATCH".split()),
        answered(405, 501),
    ),
    *each("method/none", UNKNOWN, _posted, NO_METHODS, answered(400, 405, 501)),
    *each("method/case", CASE, _posted, MISSPELLED, answered(400, 405, 501)),
    *each("method/connect", TUNNEL, _connect, CONNECTS, answered(400, 405, 501, end=End.CLOSED)),
    *each(
        *("method/trace", ECHO, lambda body, *lines: head(*lines) + body, TRACES),
        answered(400, 405, 501),
        never=[b"evil"],
    ),
    row("method/trace-of-the-last", "RFC 9110 section 7.6.2", _LAST_TRACE, answered(400, 405, 501)),
    *HEADS,
    row("method/options", OPTIONS, head(b"OPTIONS" + _PATH, HOST), answered(200, 204, 405, 501)),
    row("method/options-with-body", UNREAD, _OPTIONS_BODY, answered(200, 204, 400, 405, 501)),
    *each("method/get-with", CONTENT, _get, CONTENTS, answered(200, 400)),
    row("method/get-whose-body-needs-the-next-request", UNREAD, _CUT, answered(200, 400)),
    row("method/wrong-with-a-request-as-body", UNREAD, _PUT_HIDING, answered(405, 501)),
    row(
        *("method/overridden", CASE, get(*_OVERRIDDEN, target=b"/v1/completions")),
        answered(405, 501),
    ),
]
