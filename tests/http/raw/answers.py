"""What comes back on a connection, as httptools understands it."""

import select
import socket
from dataclasses import dataclass, field

import httptools

#: Seconds that an answer or an end may take; a limit for what hangs, not a measure.
PATIENCE_S = 15.0


@dataclass(slots=True)
class Answer:
    """One answer."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    whole: bool = False

    def values(self, name: bytes) -> list[bytes]:
        """All values of a field; names are in lower case."""
        return [value for other, value in self.headers if other == name]


class Answers:
    """Reads answers from a connection, and notices its end."""

    def __init__(self, client: socket.socket, *, head: bool) -> None:
        self._client = client
        self._poll = select.poll()  # knows descriptors above 1023, unlike select
        self._poll.register(client, select.POLLIN)
        self._head = head
        self._parser = httptools.HttpResponseParser(self)
        self._current: Answer | None = None
        self.final: list[Answer] = []
        self.interims: list[Answer] = []
        self.closed = False
        self.broken: str | None = None
        """What came is no HTTP."""

    def read(self, *, seconds: float = PATIENCE_S) -> bool:
        """Wait for something to come, and take it; False if nothing did."""
        if self.closed:
            return False
        if not self._poll.poll(seconds * 1000):
            return False
        try:
            data = self._client.recv(65536)
        except ConnectionError:
            data = b""
        if data:
            self._feed(data)
        else:
            self._end()
        return True

    def read_until(self, count: int | None = None, *, interims: int | None = None) -> None:
        """Read until there are that many final answers, or so many interim ones; or the end."""
        while (
            (count is None or len(self.final) < count)
            and (interims is None or len(self.interims) < interims)
            and self.broken is None
            and self.read()
        ):
            pass

    def _feed(self, data: bytes) -> None:
        # Byte by byte: a parser that thinks of a body after an answer to HEAD is exchanged in time.
        try:
            for byte in data:
                self._parser.feed_data(bytes((byte,)))
        except httptools.HttpParserError as error:
            self.broken = f"{error} in {data[:200]!r}"

    def _end(self) -> None:
        self.closed = True
        current = self._current
        if current is not None and not current.values(b"content-length"):
            self.on_message_complete()  # RFC 9112 section 6.3, item 8: the end is the end
        elif current is not None:
            self.final.append(current)  # cut off, and so not whole

    # What the parser calls.

    def on_message_begin(self) -> None:
        """An answer begins."""
        self._current = Answer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field."""
        assert self._current is not None
        self._current.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is there."""
        assert self._current is not None
        self._current.status = self._parser.get_status_code()
        if self._head and self._current.status >= 200:
            self.on_message_complete()
            self._head = False
            self._parser = httptools.HttpResponseParser(self)

    def on_body(self, data: bytes) -> None:
        """A piece of the content."""
        assert self._current is not None
        self._current.body += data

    def on_message_complete(self) -> None:
        """The answer has ended."""
        if self._current is None:
            return  # of an answer to HEAD, which ended before
        self._current.whole = True
        kind = self.final if self._current.status >= 200 else self.interims
        kind.append(self._current)
        self._current = None
