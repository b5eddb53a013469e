"""`Connection`: keeping, closing, and the fields that it may name. `Upgrade`: always ignored."""

from tests.http.raw.request import (
    BODY,
    HIDDEN,
    HOST,
    LENGTH,
    LINE,
    WHOLE,
    chunked,
    get,
    head,
    post,
)
from tests.http.raw.row import End, Row, Wait, answered, row, served

CLOSE = "RFC 9112 section 9.6: after `close` nothing more is processed"
PERSIST = "RFC 9112 section 9.3: persistent unless somebody says otherwise"
OLD = "RFC 9112 section 9.3: HTTP/1.0 closes, unless keep-alive was asked for and granted"
NAMED = "RFC 9110 section 7.6.1: fields that Connection names end here"
END_TO_END = "RFC 9110 section 7.6.1: a field meant for all recipients must not be named"
HOP = "RFC 9110 section 7.6.1: fields of one hop are not forwarded, named or not"
UPGRADE = "RFC 9110 section 7.8: Upgrade may be ignored, and is not forwarded"
LIST = "RFC 9110 section 5.6.1.2: empty elements of a list are ignored"

_OLD = b"POST /v1/completions HTTP/1.0"

WEBSOCKET = (
    b"connection: Upgrade",
    b"upgrade: websocket",
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    b"sec-websocket-version: 13",
)
H2C = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABk")

CLOSING = {
    "close": (b"connection: close",),
    "upper-case": (b"CONNECTION: CLOSE",),
    "white-space": (b"connection: \t close ",),
    "in-a-list": (b"connection: x-y, close",),
    "first-in-a-list": (b"connection: close,x-y",),
    "among-empty": (b"connection: , close ,",),
    "second-field": (b"connection: x-y", b"connection: close"),
    "first-field": (b"connection: close", b"connection: x-y"),
    "and-keep-alive": (b"connection: keep-alive, close",),
    "before-keep-alive": (b"connection: close, keep-alive",),
}

KEEPING = {
    "nothing": (),
    "keep-alive": (b"connection: keep-alive",),
    "mixed-case": (b"Connection: Keep-Alive",),
    "another": (b"connection: x-y",),
    "empty": (b"connection:",),
    "closes-by-half": (b"connection: closed",),
    "in-another-field": (b"x-connection: close",),
}

#: Fields that must not be forwarded, with the Connection fields that name them, if any.
DROPPED = {
    "named": (b"connection: x-evil", b"x-evil: evil"),
    "named-in-capitals": (b"connection: X-EVIL", b"x-evil: evil"),
    "named-with-space": (b"connection: a ,\tx-evil\t, b", b"x-evil: evil"),
    "named-later": (b"x-evil: evil", b"connection: x-evil"),
    "named-twice": (b"connection: x-a", b"connection: x-evil", b"x-evil: evil", b"x-a: evil"),
    "named-with-close": (b"connection: close, x-evil", b"x-evil: evil"),
    "keep-alive": (b"keep-alive: timeout=evil",),
    "proxy-connection": (b"proxy-connection: evil",),
    "proxy-authorization": (b"proxy-authorization: evil",),
    "te": (b"te: trailers;q=evil",),
    "trailer": (b"trailer: evil",),
    "upgrade": (b"upgrade: evil/1.0",),
    "http2-settings": (b"connection: http2-settings", b"http2-settings: evil"),
}

UPGRADES = {
    "websocket": WEBSOCKET,
    "h2c": H2C,
    "unknown": (b"connection: upgrade", b"upgrade: made-up/1.0"),
    "several": (b"connection: upgrade", b"upgrade: websocket, h2c"),
    "two-fields": (b"connection: upgrade", b"upgrade: h2c", b"upgrade: websocket"),
    "websocket-of-another-version": (*WEBSOCKET[:3], b"sec-websocket-version: 99"),
    "tls": (b"connection: upgrade", b"upgrade: TLS/1.0"),
}

ROWS: list[Row] = [
    *(
        row(
            f"connection/closing-{name}",
            LIST if "among" in name else CLOSE,
            post(*fields) + HIDDEN,
            served(BODY, end=End.CLOSED),
        )
        for name, fields in CLOSING.items()
    ),
    row(
        "connection/closing-after-get",
        CLOSE,
        get(b"connection: close") + HIDDEN,
        answered(200, end=End.CLOSED),
    ),
    row(
        "connection/closing-and-rubbish",
        CLOSE,
        post(b"connection: close") + b"\x00rubbish\r\n\r\n",
        served(BODY, end=End.CLOSED),
    ),
    *(
        row(
            f"connection/keeping-{name}",
            PERSIST,
            post(*fields),
            served(BODY, end=End.KEPT),
        )
        for name, fields in KEEPING.items()
    ),
    row(
        "connection/proxy-connection-means-nothing-certain",
        "RFC 9112 appendix C.2.2: it is no standard field",
        post(b"proxy-connection: close"),
        served(BODY),
    ),
    *(
        row(
            f"connection/old-{name}",
            OLD,
            head(_OLD, HOST, b"content-length: 13", *fields) + BODY,
            served(BODY, end=end),
        )
        for name, fields, end in [
            ("closes", (), End.CLOSED),
            ("closes-when-told", (b"connection: close",), End.CLOSED),
            ("may-be-kept", (b"connection: keep-alive",), End.EITHER),
            ("closes-after-both", (b"connection: keep-alive, close",), End.CLOSED),
            ("is-not-kept-for-a-proxy", (b"proxy-connection: keep-alive",), End.CLOSED),
        ]
    ),
    row(
        "connection/old-and-a-second-request",
        OLD,
        head(_OLD, HOST, b"content-length: 13") + BODY + HIDDEN,
        served(BODY, end=End.CLOSED),
    ),
    *(
        row(
            f"connection/drops-{name}",
            NAMED if "named" in name else HOP,
            post(*fields),
            served(BODY),
            never=[b"evil"],
        )
        for name, fields in DROPPED.items()
    ),
    *(
        row(
            f"connection/names-{name}",
            END_TO_END,
            post(b"authorization: Bearer key", b"connection: " + value),
            answered(400),
        )
        for name, value in {
            "host": b"host",
            "length": b"content-length",
            "coding": b"transfer-encoding",
            "authorization": b"authorization",
            "authorization-in-capitals": b"AUTHORIZATION",
            "authorization-in-a-list": b"close, x-y,\tAuthorization",
            "length-after-close": b"close,content-length",
            "host-among-empty": b",,host,,",
        }.items()
    ),
    row(
        "connection/names-authorization-in-a-second-field",
        END_TO_END,
        post(b"authorization: k", b"connection: close", b"connection: authorization"),
        answered(400),
    ),
    row(
        "connection/names-authorization-in-the-first-field",
        END_TO_END,
        post(b"connection: authorization", b"authorization: k", b"connection: close"),
        answered(400),
    ),
    row(
        "connection/names-a-field-that-is-not-there",
        END_TO_END,
        post(b"connection: transfer-encoding"),
        answered(400),
    ),
    *(
        row(
            f"connection/upgrade-{name}",
            UPGRADE,
            post(*fields),
            served(BODY, end=End.CLOSED),
            never=[b"http2-settings"],
        )
        for name, fields in UPGRADES.items()
    ),
    *(
        row(
            f"connection/upgrade-{name}-and-another-request",
            UPGRADE,
            post(*fields) + HIDDEN,
            served(BODY, end=End.CLOSED),
        )
        for name, fields in {"websocket": WEBSOCKET, "h2c": H2C}.items()
    ),
    *(
        row(
            f"connection/upgrade-{name}-by-get",
            UPGRADE,
            get(*fields) + b"\x81\x85\x00\x00\x00\x00hello",
            answered(200, end=End.CLOSED),
        )
        for name, fields in {"websocket": WEBSOCKET, "h2c": H2C}.items()
    ),
    row(
        "connection/upgrade-with-chunks",
        UPGRADE,
        chunked(WHOLE + HIDDEN, *H2C),
        served(BODY, end=End.CLOSED),
    ),
    row(
        "connection/upgrade-with-bad-chunks",
        UPGRADE,
        chunked(b"x" + WHOLE + HIDDEN, *H2C),
        answered(400, end=End.CLOSED),
    ),
    row(
        "connection/upgrade-that-waits-for-100",
        UPGRADE,
        [head(LINE, HOST, LENGTH, b"expect: 100-continue", *H2C), Wait.INTERIM, BODY],
        served(BODY, end=End.CLOSED),
        interims=[1],
    ),
    row(
        "connection/upgrade-with-too-large-a-body",
        UPGRADE,
        head(LINE, HOST, b"content-length: 65537", *H2C) + HIDDEN,
        answered(413, end=End.CLOSED),
    ),
    row(
        "connection/upgrade-after-another-request",
        UPGRADE,
        post() + post(*WEBSOCKET) + HIDDEN,
        served(BODY, BODY, end=End.CLOSED),
    ),
    row(
        "connection/upgrade-where-post-belongs",
        UPGRADE,
        get(*WEBSOCKET, target=b"/v1/completions"),
        answered(405, 501),
    ),
    row(
        "connection/upgrade-to-nothing",
        UPGRADE,
        post(b"connection: upgrade", b"upgrade:"),
        served(BODY),
    ),
    row(
        "connection/upgrade-not-announced",
        UPGRADE,
        post(*WEBSOCKET[1:]),
        served(BODY),
    ),
    row(
        "connection/upgrade-announced-and-missing",
        UPGRADE,
        post(b"connection: upgrade"),
        served(BODY),
    ),
    row(
        "connection/upgrade-in-the-old-version",
        "RFC 9110 section 7.8: Upgrade in HTTP/1.0 is ignored",
        head(_OLD, HOST, b"content-length: 13", *WEBSOCKET) + BODY,
        served(BODY, end=End.CLOSED),
    ),
]
