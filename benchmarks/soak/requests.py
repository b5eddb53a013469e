"""What the soak's clients send, and the answer that each request must get, byte for byte.

A client asks for the length of its answer in a header field. Every answer contains the id of its
request and a hash of the body that the worker read, so the client can compute the exact answer.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from random import Random
from typing import NamedTuple

from xxhash import xxh3_64_hexdigest

from benchmarks.harness.bodies import chat_bodies
from benchmarks.harness.stub import MODEL

#: The header field that carries a `WantedAnswer`.
ANSWER_FIELD = b"x-soak"
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
#: Body sizes in bytes, of which one is drawn for each small or large request.
SMALL_BYTES, LARGE_BYTES = (400, 1_500, 4_000, 8_700, 20_000), (35_000, 100_000, 261_000)
#: A conversation that has grown beyond this many bytes is replaced by a new one.
MAX_CONVERSATION_BYTES = 60_000
#: `limits.body` of the soak's router, and a body above it.
MAX_BODY_BYTES, OVERSIZE_BYTES = 1 << 20, (1 << 20) + 4096
_PATH = "/v1/chat/completions"


class WantedAnswer(NamedTuple):
    """The answer that a client wants."""

    stream: bool
    length: int
    """Events of a stream; bytes of text otherwise."""

    def field(self) -> bytes:
        """Return it as a header line."""
        return b"%b: %b %d\r\n" % (ANSWER_FIELD, b"stream" if self.stream else b"json", self.length)

    @classmethod
    def read(cls, value: bytes) -> "WantedAnswer":
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


def events(number: int, body: bytes, wanted: WantedAnswer) -> list[bytes]:
    """Return the events of a stream."""
    name, model, read = identity(number), MODEL.encode(), xxh3_64_hexdigest(body).encode()
    tokens = max(len(body) // 4, 2)
    pieces = [_EVENT % (name, model, read, place) for place in range(wanted.length)]
    pieces.append(_LAST % (name, model, tokens, tokens + 10, tokens // 2))
    return pieces


def answer(number: int, body: bytes, wanted: WantedAnswer) -> bytes:
    """Return the body of the answer to `body`."""
    if wanted.stream:
        return b"".join(events(number, body, wanted))
    name, model, read = identity(number), MODEL.encode(), xxh3_64_hexdigest(body).encode()
    tokens = max(len(body) // 4, 2)
    text = _text(wanted.length)
    return _JSON % (name, model, read, text, tokens, tokens + 10, tokens // 2)


@lru_cache(maxsize=64)
def _text(length: int) -> bytes:
    return (b"and so on, as it was said above, " * (length // 33 + 1))[:length]


class SoakRequest(NamedTuple):
    """A request that must be answered."""

    number: int
    body: bytes
    wanted: WantedAnswer
    fields: bytes = b""
    """Additional header lines."""

    def head(self, framing: bytes | None = None) -> bytes:
        """Return the request line and header fields."""
        if framing is None:
            framing = b"content-length: %d\r\n" % len(self.body)
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: soak\r\nX-Request-Id: %b\r\n"
            b"Content-Type: application/json\r\nAuthorization: Bearer sk-soak\r\n%b%b%b\r\n"
            % (identity(self.number), self.wanted.field(), self.fields, framing)
        )

    def chunked(self, pieces: int) -> list[bytes]:
        """Return the whole request, with the body in at most `pieces` chunks."""
        size = max(1, -(-len(self.body) // pieces))
        parts = [self.body[start : start + size] for start in range(0, len(self.body), size)]
        chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
        return [self.head(b"transfer-encoding: chunked\r\n"), *chunks, b"0\r\n\r\n"]

    def whole(self) -> list[bytes]:
        """Return the whole request."""
        return [self.head(), self.body]


class SoakRequests:
    """Makes requests, each with its own number."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._numbers = count(1)

    @property
    def random(self) -> Random:
        """Return the random generator that all requests are drawn from."""
        return self._random

    def request(
        self,
        sizes: Sequence[int] = SMALL_BYTES,
        wanted: WantedAnswer | None = None,
        fields: bytes = b"",
    ) -> SoakRequest:
        """Make a request of one of these sizes."""
        if wanted is None:
            wanted = WantedAnswer(stream=False, length=self._random.choice((20, 400, 3000)))
        number = next(self._numbers)
        body = chat_bodies(self._random.choice(sizes), 1, number, stream=wanted.stream)[0]
        return SoakRequest(number, body, wanted, fields)

    def stream(self, sizes: Sequence[int] = SMALL_BYTES, fields: bytes = b"") -> SoakRequest:
        """Make a request for a stream."""
        return self.request(
            sizes, WantedAnswer(stream=True, length=self._random.randint(5, 60)), fields
        )

    def turn(self, talk: "SoakConversation") -> SoakRequest:
        """Make a conversation's next turn."""
        stream = self._random.random() < 0.5
        wanted = WantedAnswer(stream=stream, length=self._random.randint(5, 40) if stream else 200)
        return SoakRequest(next(self._numbers), talk.body(self._random, stream=stream), wanted)

    def bad(self) -> bytes:
        """Return an invalid request; the router must answer with an error."""
        return self._random.choice(_BAD)

    def unknown_model(self) -> bytes:
        """Return a valid request for a model that no worker serves."""
        model = f"nobody/{self._random.randrange(1 << 30)}"
        return _post(b'{"model":"%b","messages":[]}' % model.encode())

    def oversize(self) -> list[bytes]:
        """Return a request whose body is too long, with its length in the head or chunked."""
        piece = b"x" * 65536
        if self._random.random() < 0.5:
            head = b"POST %b HTTP/1.1\r\nHost: soak\r\nContent-Length: %d\r\n\r\n"
            return [
                head % (_PATH.encode(), OVERSIZE_BYTES),
                *[piece] * (OVERSIZE_BYTES // len(piece)),
            ]
        head = b"POST %b HTTP/1.1\r\nHost: soak\r\nTransfer-Encoding: chunked\r\n\r\n"
        return [
            head % _PATH.encode(),
            *[b"10000\r\n%b\r\n" % piece] * (OVERSIZE_BYTES // 65536 + 1),
        ]


class SoakConversation:
    """A conversation that grows by a question and an answer every turn, then starts over."""

    def __init__(self, place: int) -> None:
        self._place = place
        self._count = 0
        self._parts: list[bytes] = []

    def body(self, random: Random, *, stream: bool) -> bytes:
        """Return the next turn's request."""
        if not self._parts or sum(map(len, self._parts)) > MAX_CONVERSATION_BYTES:
            self._count += 1
            name = b"Conversation %d.%d. " % (self._place, self._count)
            self._parts = [_message(b"system", name + b"You are a helpful assistant. " * 20)]
        else:
            self._parts.append(_message(b"assistant", _prose(random, 600)))
        self._parts.append(_message(b"user", _prose(random, random.choice((100, 1000, 8000)))))
        return b'{"model":"%b","messages":[%b],"max_tokens":256%b}' % (
            MODEL.encode(),
            b",".join(self._parts),
            b',"stream":true,"stream_options":{"include_usage":true}' if stream else b"",
        )


def _message(role: bytes, text: bytes) -> bytes:
    return b'{"role":"%b","content":"%b"}' % (role, text)


def _prose(random: Random, length: int) -> bytes:
    """Return text that was never sent before."""
    return b"%032x it is said, " % random.getrandbits(128) * (length // 48 + 1)


def _post(body: bytes, fields: bytes = b"", path: str = _PATH) -> bytes:
    head = b"POST %b HTTP/1.1\r\nHost: soak\r\nContent-Length: %d\r\n%b\r\n"
    return head % (path.encode(), len(body), fields) + body


_BAD = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET /nothing HTTP/1.1\r\nHost: soak\r\n\r\n",
    b"GET /v1/chat/completions HTTP/1.1\r\nHost: soak\r\n\r\n",
    b"GARBAGE\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: soak\r\nContent-Length: 3\r\n"
    b"Content-Length: 4\r\n\r\nabcd",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: soak\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"zz\r\n\r\n",
    _post(b'{"model": "never ends'),
    _post(b"[]"),
    _post(b'{"messages":[{"role":"user","content":"hi"}],"n":100000}'),
    _post(b"{}", b"x-large: %b\r\n" % (b"x" * 40_000)),
    _post(b"{}", path=f"/v1/chat/completions?{'x' * 10_000}"),
    _post(b"{}", b"".join(b"x-%d: y\r\n" % number for number in range(200))),
)
