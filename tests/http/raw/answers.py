"""Reads answers from a connection, parsed by httptools."""

import select
import socket
from dataclasses import dataclass, field

import httptools

#: Seconds to wait for an answer or the end; only a limit for tests that hang.
PATIENCE_S = 15.0


@dataclass(slots=True)
class Answer:
    """One answer."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    whole: bool = False

    def values(self, name: bytes) -> list[bytes]:
        """All values of a header field; names are in lower case."""
        return [value for other, value in self.headers if other == name]


class Answers:
    """The answers that come on a connection, and whether it has ended."""

    def __init__(self, client: socket.socket, *, head: bool) -> None:
        self._client = client
        self._poll = select.poll()  # handles descriptors above 1023, unlike select
        self._poll.register(client, select.POLLIN)
        self._head = head
        self._parser = httptools.HttpResponseParser(self)
        self._current: Answer | None = None
        self.final: list[Answer] = []
        self.interims: list[Answer] = []
        self.closed = False
        self.broken: str | None = None
        """Why the bytes received are not valid HTTP, or None."""

    def read(self, *, seconds: float = PATIENCE_S) -> bool:
        """Wait for bytes and parse them; return False if none came in time."""
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
        """Read until there are that many final or that many interim answers, or until the end."""
        while (
            (count is None or len(self.final) < count)
            and (interims is None or len(self.interims) < interims)
            and self.broken is None
            and self.read()
        ):
            pass

    def _feed(self, data: bytes) -> None:
        # Byte by byte, so that after an answer to HEAD the parser is replaced before it expects a
        # body.
        try:
            for byte in data:
                self._parser.feed_data(bytes((byte,)))
        except httptools.HttpParserError as error:
            self.broken = f"{error} in {data[:200]!r}"

    def _end(self) -> None:
        self.closed = True
        current = self._current
        if current is not None and not current.values(b"content-length"):
            self.on_message_complete()  # RFC 9112 section 6.3, item 8: closing ends the body
        elif current is not None:
            self.final.append(current)  # cut off, so `whole` stays False

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Begin an answer."""
        self._current = Answer()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Append a header field."""
        assert self._current is not None
        self._current.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Note the status; end an answer to HEAD here."""
        assert self._current is not None
        self._current.status = self._parser.get_status_code()
        if self._head and self._current.status >= 200:
            self.on_message_complete()
            self._head = False
            self._parser = httptools.HttpResponseParser(self)

    def on_body(self, data: bytes) -> None:
        """Append a piece of the content."""
        assert self._current is not None
        self._current.body += data

    def on_message_complete(self) -> None:
        """End the answer."""
        if self._current is None:
            return  # the answer to HEAD, already ended
        self._current.whole = True
        kind = self.final if self._current.status >= 200 else self.interims
        kind.append(self._current)
        self._current = None
