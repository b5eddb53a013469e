"""`Connection`: keeping, closing, and the fields that it may name. `Upgrade`: always ignored."""

from tests.http.raw.request import (
    BODY,
    HIDDEN,
    HOST,
    LENGTH,
    LINE,
    OLD_LINE,
    WHOLE,
    chunked,
    get,
    head,
    post,
)
from tests.http.raw.row import (
    CLOSED,
    KEPT,
    SERVED,
    End,
    Row,
    Value,
    Wait,
    answered,
    each,
    row,
    served,
)

CLOSE = "RFC 9112 section 9.6: after `close` nothing more is processed"
PERSIST = "RFC 9112 section 9.3: persistent unless somebody says otherwise"
OLD = "RFC 9112 section 9.3: HTTP/1.0 closes, unless keep-alive was asked for and granted"
#: Without its length, its host or its key a request is another one.
END_TO_END = "RFC 9110 section 7.6.1: a field meant for all recipients must not be named"
HOP = "RFC 9110 section 7.6.1: fields of one hop are not forwarded, and what Connection names"
#: What follows may be another protocol's, so the connection is closed.
UPGRADE = "RFC 9110 section 7.8: Upgrade may be ignored, and is not forwarded"
OLD_UPGRADE = "RFC 9110 section 7.8: Upgrade in HTTP/1.0 is ignored"
NO_STANDARD = "RFC 9112 appendix C.2.2: it is no standard field"

WEBSOCKET = (
    *(b"connection: Upgrade", b"upgrade: websocket"),
    *(b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==", b"sec-websocket-version: 13"),
)
H2C = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABk")
_SWITCHES = {"websocket": WEBSOCKET, "h2c": H2C}

CLOSING: list[Value] = [
    *(b"connection: close", b"CONNECTION: CLOSE", b"connection: \t close "),
    *(b"connection: x-y, close", b"connection: close,x-y", b"connection: , close ,"),
    *((b"connection: x-y", b"connection: close"), (b"connection: close", b"connection: x-y")),
    *(b"connection: keep-alive, close", b"connection: close, keep-alive"),
]
KEEPING: list[Value] = [
    *((), b"connection: keep-alive", b"Connection: Keep-Alive", b"connection: x-y"),
    *(b"connection:", b"connection: closed", b"x-connection: close"),
]
#: Fields that must not be forwarded, with the Connection fields that name them, if any.
DROPPED: list[Value] = [
    (b"connection: x-evil", b"x-evil: evil"),
    (b"connection: X-EVIL", b"x-evil: evil"),
    (b"connection: a ,\tx-evil\t, b", b"x-evil: evil"),
    (b"x-evil: evil", b"connection: x-evil"),
    (b"connection: x-a", b"connection: x-evil", b"x-evil: evil", b"x-a: evil"),
    (b"connection: close, x-evil", b"x-evil: evil"),
    *(b"keep-alive: timeout=evil", b"proxy-connection: evil", b"proxy-authorization: evil"),
    *(b"te: trailers;q=evil", b"trailer: evil", b"upgrade: evil/1.0"),
    (b"connection: http2-settings", b"http2-settings: evil"),
]
UPGRADES = {
    **_SWITCHES,
    "unknown": (b"connection: upgrade", b"upgrade: made-up/1.0"),
    "several": (b"connection: upgrade", b"upgrade: websocket, h2c"),
    "two-fields": (b"connection: upgrade", b"upgrade: h2c", b"upgrade: websocket"),
    "websocket-of-another-version": (*WEBSOCKET[:3], b"sec-websocket-version: 99"),
    "tls": (b"connection: upgrade", b"upgrade: TLS/1.0"),
}
NOT_QUITE_UPGRADES: dict[str, Value] = {
    "to-nothing": (b"connection: upgrade", b"upgrade:"),
    "not-announced": WEBSOCKET[1:],
    "announced-and-missing": b"connection: upgrade",
}
NAMED = [
    *(b"host", b"content-length", b"transfer-encoding", b"authorization", b"AUTHORIZATION"),
    *(b"close, x-y,\tAuthorization", b"close,content-length", b",,host,,"),
]
NAMED_APART: list[Value] = [
    (b"authorization: k", b"connection: close", b"connection: authorization"),
    (b"connection: authorization", b"authorization: k", b"connection: close"),
    b"connection: transfer-encoding",
]
OLD_CLOSING: list[Value] = [
    *((), b"connection: close", b"connection: keep-alive, close"),
    b"proxy-connection: keep-alive",
]
_WAITS = head(LINE, HOST, LENGTH, b"expect: 100-continue", *H2C)
_TOO_LARGE = head(LINE, HOST, b"content-length: 65537", *H2C) + HIDDEN


def _old(*fields: bytes) -> bytes:
    return head(OLD_LINE, HOST, LENGTH, *fields) + BODY


def _hiding(*fields: bytes) -> bytes:
    return post(*fields) + HIDDEN


def _get_switched(*fields: bytes) -> bytes:
    return get(*fields) + b"\x81\x85\x00\x00\x00\x00hello"


def _naming(value: bytes) -> bytes:
    return post(b"authorization: Bearer key", b"connection: " + value)


ROWS: list[Row] = [
    *each("connection/closing", CLOSE, _hiding, CLOSING, CLOSED),
    row(
        *("connection/closing-after-get", CLOSE, get(b"connection: close") + HIDDEN),
        answered(200, end=End.CLOSED),
    ),
    row(
        *("connection/closing-and-rubbish", CLOSE),
        *(post(b"connection: close") + b"\x00rubbish\r\n\r\n", CLOSED),
    ),
    *each("connection/keeping", PERSIST, post, KEEPING, KEPT),
    row("connection/proxy-connection", NO_STANDARD, post(b"proxy-connection: close"), SERVED),
    *each("connection/old", OLD, _old, OLD_CLOSING, CLOSED),
    row("connection/old-may-be-kept", OLD, _old(b"connection: keep-alive"), SERVED),
    row("connection/old-and-a-second-request", OLD, _old() + HIDDEN, CLOSED),
    *each("connection/drops", HOP, post, DROPPED, SERVED, never=[b"evil"]),
    *each("connection/names", END_TO_END, _naming, NAMED, answered(400)),
    *each("connection/names", END_TO_END, post, NAMED_APART, answered(400)),
    *each("connection/upgrade", UPGRADE, post, UPGRADES, CLOSED, never=[b"http2-settings"]),
    *each("connection/upgrade-and-another-request", UPGRADE, _hiding, _SWITCHES, CLOSED),
    *each(
        *("connection/upgrade-by-get", UPGRADE, _get_switched, _SWITCHES),
        answered(200, end=End.CLOSED),
    ),
    row("connection/upgrade-with-chunks", UPGRADE, chunked(WHOLE + HIDDEN, *H2C), CLOSED),
    row(
        *("connection/upgrade-with-bad-chunks", UPGRADE, chunked(b"x" + WHOLE + HIDDEN, *H2C)),
        answered(400, end=End.CLOSED),
    ),
    row("connection/upgrade-waits", UPGRADE, [_WAITS, Wait.INTERIM, BODY], CLOSED, interims=[1]),
    row("connection/upgrade-too-large", UPGRADE, _TOO_LARGE, answered(413, end=End.CLOSED)),
    row(
        *("connection/upgrade-after-another-request", UPGRADE, post() + _hiding(*WEBSOCKET)),
        served(BODY, BODY, end=End.CLOSED),
    ),
    row(
        *("connection/upgrade-where-post-belongs", UPGRADE),
        *(get(*WEBSOCKET, target=b"/v1/completions"), answered(405, 501)),
    ),
    *each("connection/upgrade", UPGRADE, post, NOT_QUITE_UPGRADES, SERVED),
    row("connection/upgrade-in-the-old-version", OLD_UPGRADE, _old(*WEBSOCKET), CLOSED),
]
