"""Asking workers small things, off the request path: probes, their models, their tokenizers.

They go over connections of their own, made and ended as those of requests are.
"""

import asyncio
from typing import NamedTuple

from router.errors import Gone, Refused, Silent, Stale, WorkerError
from router.worker import Worker

#: Bytes of a document that a worker is asked for; vLLM's metrics are some 100 KiB.
LARGEST = 8 << 20


class NoAnswer(Exception):
    """What kept a worker from answering, in words."""


class NotAsked(NoAnswer):
    """We could not ask, for want of descriptors, memory or ports: it says nothing of the worker."""


class Answer(NamedTuple):
    """What a worker said, whole."""

    status: int
    body: bytes

    @property
    def good(self) -> bool:
        """It is what was asked for."""
        return 200 <= self.status < 300


class Inquiries:
    """Asks."""

    async def ask(
        self, worker: Worker, path: str, *, patience: float, body: bytes | None = None
    ) -> Answer:
        """Fetch a small document, all of it within `patience` seconds; with `body`, a JSON text,
        send it there. Raises NoAnswer."""
        try:
            async with asyncio.timeout(patience):
                return await _ask(worker, path, body)
        except (TimeoutError, Silent):
            raise NoAnswer(f"{path} did not answer in time") from None
        except WorkerError as error:
            if isinstance(error, Refused) and error.ours:
                raise NotAsked(f"{path}: {error}") from None
            raise NoAnswer(f"{path}: {error}{_hint(worker, error)}") from None


async def _ask(worker: Worker, path: str, body: bytes | None) -> Answer:
    upstream = worker.upstream.aside()  # a reload may give it another one
    connection = await upstream.ask(_head(worker, path, body), body or b"")
    said = bytearray()
    try:
        while chunk := await connection.chunk():
            said += chunk
            if len(said) > LARGEST:
                raise NoAnswer(f"{path} answered more than {LARGEST} bytes")
        return Answer(connection.head.status, bytes(said))
    finally:
        upstream.release(connection)


def _hint(worker: Worker, error: WorkerError) -> str:
    """Say what else may be behind an error.

    In TLS 1.3 we have shaken hands before a worker looks at what we show, and many close without
    saying what they missed.
    """
    if worker.upstream.tls is not None and isinstance(error, Gone | Stale):
        return " (it may ask for a certificate that it does not get)"
    return ""


def _head(worker: Worker, path: str, body: bytes | None) -> bytes:
    """Write the request line and header fields."""
    return b"%b %b HTTP/1.1\r\nhost: %b\r\naccept: */*\r\n%b%b\r\n" % (
        b"GET" if body is None else b"POST",
        path.encode(),
        worker.host,
        b"authorization: Bearer %b\r\n" % worker.api_key if worker.api_key else b"",
        b""
        if body is None
        else b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body),
    )
