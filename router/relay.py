"""From a worker's answer to the client: every byte as it came, as it comes."""

from collections.abc import Callable

import msgspec

from router.connection import Connection
from router.errors import Headers, WorkerError
from router.exchange import Send, answer_headers, header
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

    def __init__(
        self, endpoint: Endpoint, connection: Connection, on_first_byte: Callable[[int], None]
    ) -> None:
        self._endpoint = endpoint
        self._connection = connection
        self._on_first_byte = on_first_byte
        self._tail = UsageTail()

    async def run(self, send: Send, added: Headers) -> None:
        """Relay it whole. Raises WorkerError before the first byte, CutShort after it."""
        connection = self._connection
        head = await connection.head()
        chunk = await connection.chunk()
        self._on_first_byte(head.status)
        headers = answer_headers(head.status, head.headers, added)
        await send({"type": "http.response.start", "status": head.status, "headers": headers})
        add = self._tail.add
        try:
            while True:
                add(chunk)
                last = connection.finished
                await send({"type": "http.response.body", "body": chunk, "more_body": not last})
                if last:
                    return
                chunk = await connection.chunk()
        except WorkerError as error:
            if header(headers, b"content-type").startswith(b"text/event-stream"):
                event = self._error_event(error, chunk)
                await send({"type": "http.response.body", "body": event, "more_body": False})
            raise CutShort(error) from None

    def usage(self) -> Usage:
        """What the worker reported, once the answer has passed."""
        return self._tail.read()

    def _error_event(self, error: WorkerError, last: bytes) -> bytes:
        """An error in the stream's own shape, in place of `[DONE]`.

        OpenAI's clients raise on a data object with the key `error`; the event streams of
        `/v1/responses` and `/v1/messages` name their events.
        """
        body: dict[str, object] = {
            "error": {
                "message": f"The worker failed in the middle of its answer: it {error}.",
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
        return text if last.endswith(b"\n\n") else b"\n\n" + text
