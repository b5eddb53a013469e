"""Pieces that raw requests are made of."""

#: A request that the worker gets, as short as can be: `d` in chunk sizes.
BODY = b'{"model":"m"}'
#: A body that must not reach the worker.
EVIL = b'{"model":"m","prompt":"evil"}'
#: `limits.body` of the router under test.
LIMIT = 65536

LINE = b"POST /v1/completions HTTP/1.1"
HOST = b"host: a"
LENGTH = b"content-length: 13"
CHUNKED = b"transfer-encoding: chunked"
#: The body above in one chunk, and the end.
WHOLE = b"d\r\n%b\r\n0\r\n\r\n" % BODY


def head(*lines: bytes) -> bytes:
    """Lines, and the empty one."""
    return b"\r\n".join([*lines, b"", b""])


def post(*fields: bytes, body: bytes = BODY, line: bytes = LINE) -> bytes:
    """A proper request, but for what is given."""
    return head(line, HOST, b"content-length: %d" % len(body), *fields) + body


def chunked(wire: bytes, *fields: bytes) -> bytes:
    """A request whose body is told in chunks, as they are on the wire."""
    return head(LINE, HOST, CHUNKED, *fields) + wire


def get(*fields: bytes, target: bytes = b"/health/live") -> bytes:
    """A request that the router answers by itself."""
    return head(b"GET %b HTTP/1.1" % target, HOST, *fields)


def targeted(target: bytes, *fields: bytes) -> bytes:
    """A proper request, but for its target."""
    return post(*fields, line=b"POST %b HTTP/1.1" % target)


def sized(size: int) -> bytes:
    """A body of that many bytes that the router takes."""
    return b'{"model":"m","prompt":"%b"}' % (b"x" * (size - len(b'{"model":"m","prompt":""}')))


#: A request that hides where a body should be.
HIDDEN = post(body=EVIL)
