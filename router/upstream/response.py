"""A worker's response: its head, and the parser that reads one after the other.

httptools (llhttp) parses the bytes; the parser keeps the result. There is one per connection.
"""

import httptools

from router.api.errors import Headers
from router.http.headers import answer_fields, header
from router.upstream.errors import ProtocolError


class ResponseHead:
    """Status and headers of an answer, names in lower case.

    Immutable, because it is reused for answers with an equal head.
    """

    __slots__ = ("_fields", "dated", "headers", "length", "redirects", "status", "stream")

    def __init__(self, status: int, headers: Headers, length: int | None) -> None:
        self.status = status
        self.headers = headers
        self.redirects = 300 <= status < 400 and status != 304
        """It sends the client elsewhere (RFC 9110 section 15.4), which would lead around us."""
        self.length = length
        """`Content-Length`, if given. A reused head keeps that of the answer it was parsed from."""
        kind, coding = header(headers, b"content-type"), header(headers, b"content-encoding")
        plain = coding.lower() in {b"", b"identity"}
        self.stream = plain and kind.lower().startswith(b"text/event-stream")
        """It is a stream of server-sent events without compression, so events can be read."""
        self.dated = bool(header(headers, b"date"))
        self._fields: bytes | None = None

    def fields(self) -> bytes:
        """Return the header lines for the client; built once for all answers with this head."""
        if self._fields is None:
            self._fields = answer_fields(self.headers)
        return self._fields


#: Bytes that a worker may send without one of a body: headers, trailers, or what else frames a
#: chunk, of which the parser keeps some. One read brings up to 256 KiB.
MAX_HEAD_BYTES = 512 * 1024

#: Replaces the parser of a closed connection.
_CLOSED = httptools.HttpResponseParser(object())


class ResponseParser:
    """One answer at a time: its head, and the part of its body that was not taken yet."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.spoilt = False
        """The worker sent more than one answer: the connection must not be used again."""
        self.last = False
        """The worker will close the connection after this answer."""
        self.reset()

    def reset(self) -> None:
        """Prepare for the next answer."""
        self._headers: Headers = []
        self._framing = 0
        self._framed = self._coded = False
        self._length: int | None = None
        self._interim = False
        self.head: ResponseHead | None = None
        self.chunks: list[bytes] = []
        """Pieces of the body that were not taken yet."""
        self.unread = 0
        """Their size in bytes."""
        self.complete = False
        """The last byte of the answer has arrived."""

    def feed(self, data: bytes) -> ProtocolError | None:
        """Parse more bytes; return what is wrong with them, if anything is.

        The error is returned, not raised: a kept error would keep the frames of its traceback.
        """
        self._framing += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return ProtocolError("wants to switch protocols")
        except httptools.HttpParserCallbackError as error:  # our own error is its context
            return ProtocolError(f"sent something that is not HTTP ({error.__context__ or error})")
        except httptools.HttpParserError as error:
            return ProtocolError(f"sent something that is not HTTP ({error})")
        return ProtocolError("sent headers without end") if self._framing > MAX_HEAD_BYTES else None

    def again(self, head: ResponseHead, body: bytes) -> None:
        """Take a whole answer whose head equals one that was parsed before."""
        self.head = head
        self.complete = True
        if body:
            self.chunks.append(body)

    def take(self) -> bytes:
        """Return the part of the body that has arrived since the last call; it may be empty."""
        chunks = self.chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.unread = 0
        return data

    def end(self) -> bool:
        """Note that the worker closed the connection; return whether that ends the answer.

        It does if nothing else marks the end of the body (RFC 9112 section 6.3).
        """
        if self.head is None or self._framed or self.complete:
            return False
        self.complete = True
        return True

    def drop(self) -> None:
        """Let go of the parser, which holds a reference to this reader: nothing more will come."""
        self._parser = _CLOSED

    @property
    def plain(self) -> bool:
        """Whether the answer is whole and its head fit to be recognised next time.

        Only the length of the body may differ then.
        """
        if self.head is None or not self.complete or self.spoilt or self.last:
            return False
        if self._interim or self._length is None:
            return False
        return self.head.status not in {204, 304}

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Begin a message; an unsolicited one spoils the connection, but not the answer."""
        if self.complete:
            self.spoilt = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header field."""
        if self.head is not None:
            return  # a trailer, or part of an unsolicited message
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
        """Finish the head. Interim answers (1xx) are dropped."""
        if self.complete:
            return
        status = self._parser.get_status_code()
        if not 100 <= status < 600:  # RFC 9110 section 15
            raise ValueError(f"a status of {status}")
        if status >= 200:
            self.head = ResponseHead(status, self._headers, self._length)
        else:  # the framing of an interim answer is not that of the final one
            self._framed, self._coded, self._length, self._interim = False, False, None, True
        self._headers = []

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body, without its framing."""
        self._framing = 0
        if not self.complete:
            self.chunks.append(data)
            self.unread += len(data)

    def on_message_complete(self) -> None:
        """Finish the answer: its last byte has arrived."""
        if self.head is not None and not self.complete:
            self.complete = True
            self.last = not self._parser.should_keep_alive()
