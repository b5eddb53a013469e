"""What a worker answers, as it is read: httptools (llhttp) parses, this keeps what it found.

One reader lives as long as its connection and reads one answer after the other.
"""

import httptools

from router.answer_head import Head
from router.errors import Garbled, Headers

#: What a worker may send until its headers are complete; one read brings up to 256 KiB.
HEAD_LIMIT = 512 * 1024

#: Takes the place of a parser that is not needed any more.
_DEAF = httptools.HttpResponseParser(object())


class AnswerReader:
    """One answer: its head, and what of its body nobody has taken yet."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.spoilt = False
        """More came than was asked for: nothing else may be asked on this connection."""
        self.last = False
        """The worker will close the connection after this answer."""
        self.reset()

    def reset(self) -> None:
        """Begin with another answer."""
        self._headers: Headers = []
        self._head_size = 0
        self._framed = self._coded = False
        self._length: int | None = None
        self._interim = False
        self.head: Head | None = None
        self.chunks: list[bytes] = []
        """What of the body has not been taken."""
        self.unread = 0
        """Bytes of it."""
        self.complete = False
        """The answer's last byte is here."""

    def feed(self, data: bytes) -> Garbled | None:
        """Read on; return what is wrong with it, if anything is.

        (Not raised: whoever keeps it would keep the frames that its traceback leads to.)
        """
        if self.head is None:
            self._head_size += len(data)
            if self._head_size > HEAD_LIMIT:
                return Garbled("sent headers without end")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return Garbled("wants to switch protocols")
        except httptools.HttpParserCallbackError as error:  # what we raised is its context
            return Garbled(f"sent something that is not HTTP ({error.__context__ or error})")
        except httptools.HttpParserError as error:
            return Garbled(f"sent something that is not HTTP ({error})")
        return None

    def again(self, head: Head, body: bytes) -> None:
        """A whole answer whose head was parsed before."""
        self.head = head
        self.complete = True
        if body:
            self.chunks.append(body)

    def take(self) -> bytes:
        """Return all there is of the body; empty if there is nothing yet."""
        chunks = self.chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.unread = 0
        return data

    def end(self) -> bool:
        """The worker has closed the connection; True if that is how its answer ends.

        It is where nothing else tells its end (RFC 9112 section 6.3).
        """
        if self.head is None or self._framed or self.complete:
            return False
        self.complete = True
        return True

    def drop(self) -> None:
        """Nothing more will come. (The parser holds whom it calls.)"""
        self._parser = _DEAF

    @property
    def plain(self) -> bool:
        """A whole answer of which nothing but the length may differ next time."""
        if self.head is None or not self.complete or self.spoilt or self.last:
            return False
        if self._interim or self._length is None:
            return False
        return self.head.status not in {204, 304}

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A message begins; one that nobody asked for spoils the connection, not the answer."""
        if self.complete:
            self.spoilt = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field."""
        if self.head is not None:
            return  # a trailer, or of a message that nobody asked for
        name = name.lower()
        if name == b"content-length":
            self._framed = True
            self._length = int(value)
        elif name == b"transfer-encoding":
            if self._coded or value.strip().lower() != b"chunked":  # RFC 9112 section 6.1
                raise ValueError("a transfer coding that is not understood")
            self._framed = self._coded = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """All header fields are there. Interim answers (1xx) are dropped."""
        if self.complete:
            return
        status = self._parser.get_status_code()
        if not 100 <= status < 600:  # RFC 9110 section 15
            raise ValueError(f"a status of {status}")
        if status >= 200:
            self.head = Head(status, self._headers, self._length)
        else:  # what it tells of itself is not told of the answer
            self._framed, self._coded, self._length, self._interim = False, False, None, True
        self._headers = []

    def on_body(self, data: bytes) -> None:
        """A piece of the body, its framing taken off."""
        if not self.complete:
            self.chunks.append(data)
            self.unread += len(data)

    def on_message_complete(self) -> None:
        """The answer's last byte."""
        if self.head is not None and not self.complete:
            self.complete = True
            self.last = not self._parser.should_keep_alive()
