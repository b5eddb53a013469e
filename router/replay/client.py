"""Sends one request to the server under test and reads its answer, whatever comes back.

Connections are those that the router has to workers. httpx's own take about 100 µs for every event
of a stream. An answer has hundreds of them, and the fleet under test often shares the machine.
"""

import asyncio
import ssl
from base64 import b64encode
from time import perf_counter
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import msgspec

from router import __version__
from router.http.headers import header
from router.replay.plan import NoModel, Options
from router.replay.report import Sample
from router.replay.stream import Answer, Fault, error_message
from router.settings.server import TimeoutSettings
from router.upstream.connection import UpstreamConnection
from router.upstream.errors import Refused, ResponseTimeout, WorkerError
from router.upstream.pool import Upstream

CONNECT_TIMEOUT_S = 10.0
#: Less than the five seconds after which many servers close idle connections, so that no request is
#: sent on a connection that is just being closed.
KEEPALIVE_S = 4.0
MAX_ERROR_BYTES = 64 * 1024
_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

Message = dict[str, str]


class ReplayClient:
    """A client of an OpenAI server, which it measures."""

    def __init__(self, options: Options) -> None:
        self.model = options.model or ""
        self._options = options
        url = urlsplit(options.url.rstrip("/").removesuffix("/v1"))
        self._base = url.geturl()
        self._prefix = url.path
        tls = None
        if url.scheme == "https":
            tls = options.trust or ssl.create_default_context()
        host, port = url.hostname or "", url.port or (443 if tls else 80)
        timeouts = TimeoutSettings.model_construct(
            connect=CONNECT_TIMEOUT_S,
            first_byte=options.timeout_s,
            idle=options.timeout_s,
            total=None,
            keepalive=KEEPALIVE_S,
        )
        self._upstream = Upstream(host, port, tls=tls, timeouts=timeouts)
        netloc = url.netloc.rpartition("@")[2]
        fields = {
            "host": netloc if netloc.isascii() else netloc.encode("idna").decode(),
            "user-agent": f"warmroute/{__version__}",
            "accept": "*/*",
            "accept-encoding": "identity",
            "content-type": "application/json",
        }
        if options.api_key:
            fields["authorization"] = f"Bearer {options.api_key}"
        elif url.username is not None:
            user = f"{unquote(url.username)}:{unquote(url.password or '')}"
            fields["authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())

    async def __aenter__(self) -> Self:
        try:
            self.model = self.model or await self._first_model()
        except BaseException:
            self._upstream.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._upstream.close()

    def body(self, messages: list[Message], max_tokens: int) -> bytes:
        """Return the body of a request with these messages."""
        options = self._options
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": options.max_tokens or max(1, max_tokens),
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if options.endpoint == "chat":
            body["messages"] = messages
        else:
            body["prompt"] = "\n\n".join(message["content"] for message in messages)
        if options.ignore_eos:
            body["ignore_eos"] = True
        if options.stream_interval is not None:
            body["stream_interval"] = options.stream_interval
        return msgspec.json.encode(body)

    async def send(self, body: bytes, *, collect: bool = False) -> Sample:
        """Send a request and read its answer; raises nothing except when cancelled."""
        answer = Answer(collect=collect)
        sent_at = perf_counter()
        worker = "-"
        fault: Fault | None = None
        connection: UpstreamConnection | None = None
        try:
            async with asyncio.timeout(self._options.timeout_s):
                connection = await self._ask("POST", _PATHS[self._options.endpoint], body)
                name = header(connection.head.headers, b"x-warmroute-worker")
                worker = name.decode("latin-1") or "-"
                fault = await _read(connection, answer)
        except Exception as error:  # noqa: BLE001 - whatever the server does is a result
            fault = _fault_of(error)
        finally:
            if connection is not None:
                self._upstream.release(connection)
        ended_at = perf_counter()
        if fault:
            return Sample(sent_at, ended_at, answer.first_at, worker, fault=fault)
        ending = answer.finish()
        return Sample(
            sent_at, ended_at, answer.first_at, worker, ending.usage, ending.text, ending.fault
        )

    async def _ask(self, method: str, path: str, body: bytes = b"") -> UpstreamConnection:
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._fields}"
        return await self._upstream.ask(
            f"{head}content-length: {len(body)}\r\n\r\n".encode("latin-1"), body
        )

    async def _first_model(self) -> str:
        connection: UpstreamConnection | None = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                connection = await self._ask("GET", "/v1/models")
                body = await _read_all(connection, None)
            if connection.head.status == 200:
                return str(msgspec.json.decode(body)["data"][0]["id"])
            reason = f"it answered {connection.head.status}"
        except (WorkerError, OSError) as error:
            reason = _fault_of(error).message
        except (ValueError, LookupError, TypeError):
            reason = "it names none"
        finally:
            if connection is not None:
                self._upstream.release(connection)
        raise NoModel(f"cannot ask {self._base}/v1/models for a model: {reason}")


async def _read(connection: UpstreamConnection, answer: Answer) -> Fault | None:
    status = connection.head.status
    if status == 200:
        while chunk := await connection.chunk():
            answer.feed(chunk, perf_counter())
        return None
    body = await _read_all(connection, MAX_ERROR_BYTES)
    return Fault(f"status {status}", error_message(body))


async def _read_all(connection: UpstreamConnection, limit: int | None) -> bytes:
    """Read the body, or as much of it as makes it longer than the limit."""
    body = b""
    while (limit is None or len(body) <= limit) and (chunk := await connection.chunk()):
        body += chunk
    return body


def _fault_of(error: Exception) -> Fault:
    message = str(error) or type(error).__name__
    match error:
        case Refused():
            return Fault("connect", message)
        case TimeoutError() | ResponseTimeout():
            return Fault("timeout", message)
        case WorkerError():
            return Fault("broken stream", f"the server {message}")
        case _:
            return Fault("other", f"{type(error).__name__}: {message}"[:200])
