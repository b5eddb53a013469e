"""Building blocks for raw requests."""

#: The shortest body that the worker gets: 13 bytes, `d` as a chunk size.
BODY = b'{"model":"m"}'
#: A body that must not reach the worker.
EVIL = b'{"model":"m","prompt":"evil"}'
#: `limits.body` of the router under test.
LIMIT = 65536

LINE = b"POST /v1/completions HTTP/1.1"
OLD_LINE = b"POST /v1/completions HTTP/1.0"
HOST = b"host: a"
LENGTH = b"content-length: 13"
CHUNKED = b"transfer-encoding: chunked"
#: The body above in one chunk, and the final chunk.
WHOLE = b"d\r\n%b\r\n0\r\n\r\n" % BODY


def head(*lines: bytes) -> bytes:
    """A head of these lines, and the empty line that ends it."""
    return b"\r\n".join([*lines, b"", b""])


def post(*fields: bytes, body: bytes = BODY, line: bytes = LINE) -> bytes:
    """A valid inference request, except for what is given."""
    return head(line, HOST, b"content-length: %d" % len(body), *fields) + body


def chunked(wire: bytes, *fields: bytes) -> bytes:
    """A request with chunked encoding and these raw bytes as its body."""
    return head(LINE, HOST, CHUNKED, *fields) + wire


def get(*fields: bytes, target: bytes = b"/health/live") -> bytes:
    """A request that the router answers itself."""
    return head(b"GET %b HTTP/1.1" % target, HOST, *fields)


def targeted(target: bytes, *fields: bytes) -> bytes:
    """A valid request, except for its target."""
    return post(*fields, line=b"POST %b HTTP/1.1" % target)


def sized(size: int) -> bytes:
    """A valid body of that many bytes."""
    return b'{"model":"m","prompt":"%b"}' % (b"x" * (size - len(b'{"model":"m","prompt":""}')))


#: A request put where a body should be; it must never be served as a request.
HIDDEN = post(body=EVIL)
