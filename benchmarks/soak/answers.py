"""Answers of the soak's workers, which clients can verify byte for byte.

The client requests the length of the answer in a header field. Every answer contains the id of its
request and a hash of the body that the worker read, so the client can compute the exact answer.
"""

from functools import lru_cache
from typing import NamedTuple

from xxhash import xxh3_64_hexdigest

from benchmarks.harness.stub import MODEL

#: The header field that carries a `Wish`.
FIELD = b"x-soak"
#: Prefix of the request's number in `x-request-id`.
_PREFIX = b"soak-"
_JSON = (
    b'{"id":"%s","object":"chat.completion","created":1722945021,"model":"%s","read":"%s",'
    b'"choices":[{"index":0,"message":{"role":"assistant","content":"%s"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":10,'
    b'"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}'
)
_EVENT = (
    b'data: {"id":"%s","object":"chat.completion.chunk","created":1722945021,"model":"%s",'
    b'"read":"%s","choices":[{"index":0,"delta":{"content":" word %d"},"finish_reason":null}]}\n\n'
)
_LAST = (
    b'data: {"id":"%s","object":"chat.completion.chunk","created":1722945021,"model":"%s",'
    b'"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":10,"total_tokens":%d,'
    b'"prompt_tokens_details":{"cached_tokens":%d}}}\n\ndata: [DONE]\n\n'
)


class Wish(NamedTuple):
    """The answer that a client wants."""

    stream: bool
    length: int
    """Events of a stream; bytes of text otherwise."""

    def line(self) -> bytes:
        """Return it as a header line."""
        return b"%b: %b %d\r\n" % (FIELD, b"stream" if self.stream else b"json", self.length)

    @classmethod
    def read(cls, value: bytes) -> "Wish":
        """Parse the field's value; an empty one means a short JSON answer."""
        kind, _, length = value.partition(b" ")
        return cls(kind == b"stream", int(length or 20))


def identity(number: int) -> bytes:
    """Return the id of a request."""
    return _PREFIX + b"%d" % number


def number_of(identity: bytes) -> int | None:
    """Return the number of the request with this id; None if it is not the soak's."""
    digits = identity.removeprefix(_PREFIX)
    return int(digits) if digits != identity and digits.isdigit() else None


def events(number: int, body: bytes, wish: Wish) -> list[bytes]:
    """Return the events of a stream."""
    name, model, read = identity(number), MODEL.encode(), xxh3_64_hexdigest(body).encode()
    tokens = max(len(body) // 4, 2)
    found = [_EVENT % (name, model, read, place) for place in range(wish.length)]
    found.append(_LAST % (name, model, tokens, tokens + 10, tokens // 2))
    return found


def answer(number: int, body: bytes, wish: Wish) -> bytes:
    """Return the body of the answer to `body`."""
    if wish.stream:
        return b"".join(events(number, body, wish))
    name, model, read = identity(number), MODEL.encode(), xxh3_64_hexdigest(body).encode()
    tokens = max(len(body) // 4, 2)
    text = _text(wish.length)
    return _JSON % (name, model, read, text, tokens, tokens + 10, tokens // 2)


@lru_cache(maxsize=64)
def _text(length: int) -> bytes:
    return (b"and so on, as it was said above, " * (length // 33 + 1))[:length]
