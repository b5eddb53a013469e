"""From a worker's answer to the client: every byte as it came, as it comes."""

import asyncio

import msgspec

from router.connection import Connection
from router.errors import Headers, WorkerError
from router.exchange import Exchange, date_line
from router.headers import answer_fields, header
from router.openai import Endpoint, Prompted
from router.usage import Usage, UsageTail


class CutShort(Exception):
    """The worker failed in the middle of its answer; the client has been told, or cut off."""

    def __init__(self, error: WorkerError) -> None:
        super().__init__(str(error))
        self.error = error


class Relay:
    """One answer on its way through.

    The status is held back until the first byte of the body is there: a worker that dies while
    it computes the prompt still gives the client a proper status.
    """

    __slots__ = ("_add", "_endpoint", "_events", "_exchange", "_last", "_tail")

    def __init__(self, endpoint: Endpoint, exchange: Exchange) -> None:
        self._endpoint = endpoint
        self._exchange = exchange
        self._tail = UsageTail()
        self._add = self._tail.add
        self._events = False
        self._last = b""

    def begin(self, connection: Connection, added: bytes) -> bool:
        """Relay what is there, with `added` header lines; return whether that is all."""
        head, exchange = connection.head, self._exchange
        fields = answer_fields(head.headers)
        if b"date: " not in fields:  # RFC 9110 section 6.6.1
            added += date_line()
        self._last = data = connection.first()
        self._add(data)
        last = connection.finished
        exchange.start(head.status, fields + added, head.length, data, last=last)
        self._events = not last and _is_stream(head.headers)
        return last

    async def flow(self, connection: Connection) -> None:
        """Relay the rest. Raises CutShort."""
        exchange = self._exchange
        exchange.feed_from(connection)
        try:
            await connection.flow(self._pass)
        except WorkerError as error:
            if self._events:
                self.fail(f"The worker failed in the middle of its answer: it {error}.")
            raise CutShort(error) from None
        except asyncio.CancelledError:
            if self._events and not exchange.left:
                self.fail("The router was stopped in the middle of this answer.")
            raise

    def _pass(self, data: bytes, last: bool) -> None:
        self._last = data
        self._add(data)
        self._exchange.write(data, last)

    def usage(self) -> Usage:
        """What the worker reported, once the answer has passed."""
        return self._tail.read()

    def fail(self, message: str) -> None:
        """End the stream with an error in its own shape, in place of `[DONE]`.

        OpenAI's clients raise on a data object with the key `error`; the event streams of
        `/v1/responses` and `/v1/messages` name their events.
        """
        body: dict[str, object] = {
            "error": {
                "message": message,
                "type": "server_error",
                "param": None,
                "code": "worker_failed",
            }
        }
        named = self._endpoint.prompted in (Prompted.MESSAGES, Prompted.RESPONSES)
        if named:
            body = {"type": "error", **body}
        text = b"data: " + msgspec.json.encode(body) + b"\n\n"
        if named:
            text = b"event: error\n" + text
        text = text if self._last.endswith(b"\n\n") else b"\n\n" + text
        self._exchange.write(text, last=True)


def _is_stream(headers: Headers) -> bool:
    return header(headers, b"content-type").startswith(b"text/event-stream")
