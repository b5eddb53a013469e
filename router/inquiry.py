"""Asking workers small things, off the request path: probes, their models, their tokenizers."""

import asyncio
import ssl
from collections.abc import Iterable
from typing import NamedTuple

import httpx

from router.fleet import Worker
from router.tls import explain

#: Bytes of a document that a worker is asked for; vLLM's metrics are some 100 KiB.
LARGEST = 8 << 20


class NoAnswer(Exception):
    """What kept a worker from answering, in words."""


class Answer(NamedTuple):
    """What a worker said, whole."""

    status: int
    body: bytes

    @property
    def good(self) -> bool:
        """It is what was asked for."""
        return 200 <= self.status < 300


class Inquiries:
    """Connections to all workers, one client for those that are spoken to with the same TLS."""

    def __init__(self) -> None:
        self._clients: dict[ssl.SSLContext | None, httpx.AsyncClient] = {}

    async def ask(
        self, worker: Worker, path: str, *, patience: float, body: bytes | None = None
    ) -> Answer:
        """Fetch a small document, all of it within `patience` seconds; with `body`, a JSON text,
        send it there. Raises NoAnswer."""
        headers = {b"authorization": b"Bearer " + worker.api_key} if worker.api_key else {}
        if body is not None:
            headers[b"content-type"] = b"application/json"
        # Ended by its own timeout in the middle of a handshake, a connection would stay open until
        # it is collected as garbage.
        connecting = httpx.Timeout(None, connect=0.9 * patience)
        said = b""
        try:
            async with (
                asyncio.timeout(patience),
                self._client(worker.upstream.tls).stream(
                    "GET" if body is None else "POST",
                    worker.url + path,
                    headers=headers,
                    content=body,
                    timeout=connecting,
                ) as answer,
            ):
                async for chunk in answer.aiter_bytes():
                    said += chunk
                    if len(said) > LARGEST:
                        raise NoAnswer(f"{path} answered more than {LARGEST} bytes")
        except (TimeoutError, httpx.TimeoutException):
            raise NoAnswer(f"{path} did not answer in time") from None
        except NoAnswer:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it was, the next question must come
            reason = _why(error, secure=worker.upstream.tls is not None)
            raise NoAnswer(f"{path}: {reason}") from None
        return Answer(answer.status_code, said)

    async def keep(self, workers: Iterable[Worker], *, after: float) -> None:
        """Let go of what none of these is spoken to with, after seconds for what is under way."""
        used = {worker.upstream.tls for worker in workers}
        unused = [self._clients.pop(tls) for tls in set(self._clients).difference(used)]
        if unused:
            await asyncio.sleep(after)
        for client in unused:
            await client.aclose()

    async def close(self) -> None:
        """Let go of all."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    def _client(self, tls: ssl.SSLContext | None) -> httpx.AsyncClient:
        """Return the client for all workers that are spoken to with this."""
        if tls not in self._clients:
            self._clients[tls] = httpx.AsyncClient(
                timeout=None,  # noqa: S113 - a question has one for all of it
                limits=httpx.Limits(max_connections=None),  # or dead workers would block others
                trust_env=False,
                verify=tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            )
        return self._clients[tls]


def _why(error: Exception, *, secure: bool) -> str:
    """Say what went wrong between us and a worker."""
    reason = explain(error) or str(error) or type(error).__name__
    if secure and isinstance(error, httpx.RemoteProtocolError | httpx.ReadError):
        # In TLS 1.3 we have shaken hands before it looks at what we show, and many servers close
        # without saying what they missed.
        reason += " (it may ask for a certificate that it does not get)"
    return reason
