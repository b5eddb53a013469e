"""Small questions to workers off the request path: probes, their models, their tokenizers.

They use connections of their own, which are opened and closed like those of requests.
"""

import asyncio
from typing import NamedTuple

from router.fleet.worker import Worker
from router.upstream.errors import ConnectionLost, Refused, ResponseTimeout, Stale, WorkerError
from router.upstream.pool import NOT_SENT

#: Size limit in bytes of an answer; vLLM's metrics take about 100 KiB.
MAX_ANSWER_BYTES = 8 << 20


class NoAnswer(Exception):
    """A worker gave no usable answer; the message says why."""

    def __init__(self, message: str, *, late: bool = False, refused: bool = False) -> None:
        super().__init__(message)
        self.late = late
        """It took the question, and did not answer in time."""
        self.refused = refused
        """It answered with an error."""


class NotAsked(NoAnswer):
    """The router lacked descriptors, memory or ports to ask: this says nothing of the worker."""


class InquiryAnswer(NamedTuple):
    """A worker's complete answer."""

    status: int
    body: bytes

    @property
    def good(self) -> bool:
        """Whether the status is one of success."""
        return 200 <= self.status < 300


class Inquiries:
    """Asks workers."""

    async def ask(
        self, worker: Worker, path: str, *, patience: float, body: bytes | None = None
    ) -> InquiryAnswer:
        """Fetch a small document completely within `patience` seconds.

        With `body`, a JSON text, POST it to the path. Raises NoAnswer.
        """
        try:
            async with asyncio.timeout(patience):
                return await _ask(worker, path, body)
        except (TimeoutError, ResponseTimeout) as error:
            late = NOT_SENT not in getattr(error.__cause__, "__notes__", ())
            raise NoAnswer(f"{path} did not answer in time", late=late) from None
        except WorkerError as error:
            if isinstance(error, Refused) and error.ours:
                raise NotAsked(f"{path}: {error}") from None
            raise NoAnswer(f"{path}: {error}{_hint(worker, error)}") from None


async def _ask(worker: Worker, path: str, body: bytes | None) -> InquiryAnswer:
    upstream = (
        worker.upstream.control_connections()
    )  # kept in a variable: a reload may replace the worker's
    connection = await upstream.ask(_head(worker, path, body), body or b"")
    answer = bytearray()
    try:
        while chunk := await connection.chunk():
            answer += chunk
            if len(answer) > MAX_ANSWER_BYTES:
                raise NoAnswer(f"{path} answered more than {MAX_ANSWER_BYTES} bytes")
        return InquiryAnswer(connection.head.status, bytes(answer))
    finally:
        upstream.release(connection)


def _hint(worker: Worker, error: WorkerError) -> str:
    """Return another possible cause of an error, or nothing.

    In TLS 1.3 the handshake is done on our side before a worker checks our certificate, and many
    workers then close without an alert that says what was missing.
    """
    if worker.upstream.tls is not None and isinstance(error, ConnectionLost | Stale):
        return " (it may ask for a certificate that it does not get)"
    return ""


def _head(worker: Worker, path: str, body: bytes | None) -> bytes:
    """Write the request line and header fields."""
    return b"%b %b HTTP/1.1\r\nhost: %b\r\naccept: */*\r\naccept-encoding: identity\r\n%b%b\r\n" % (
        b"GET" if body is None else b"POST",
        path.encode(),
        worker.host,
        b"authorization: Bearer %b\r\n" % worker.api_key if worker.api_key else b"",
        b""
        if body is None
        else b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body),
    )
