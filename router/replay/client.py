"""Sends one request to the server under test and reads its answer, whatever comes back.

Connections are those that the router has to workers, as a transport for httpx. httpx's own takes
about 100 µs for every event of a stream. An answer has hundreds of them, and the fleet under test
often shares the machine. This one returns all bytes of one read as one chunk, and so leaves more
CPU to the fleet.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from router.replay.plan import NoModel, Options
from router.replay.report import Sample
from router.replay.stream import Answer, Fault, error_message
from router.settings.server import TimeoutSettings
from router.upstream.connection import UpstreamConnection
from router.upstream.errors import Refused, Silent, WorkerError
from router.upstream.pool import Upstream


class LeanTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 with as many connections as there are concurrent requests."""

    def __init__(self, timeouts: TimeoutSettings, trust: ssl.SSLContext | None = None) -> None:
        """`trust` is the context for https, by default one that trusts the system's roots."""
        self._timeouts = timeouts
        self._trust = trust
        self._upstreams: dict[tuple[str, str, int | None], Upstream] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its answer once the body begins."""
        body = await request.aread()
        upstream = self._upstream(request.url)
        try:
            connection = await upstream.ask(_head(request), body)
            head = connection.head
        except WorkerError as error:
            raise _translated(error, request) from error
        stream = _Body(connection, upstream, request)
        return httpx.Response(head.status, headers=head.headers, stream=stream)

    async def aclose(self) -> None:
        """Close all idle connections."""
        for upstream in self._upstreams.values():
            upstream.close()

    def _upstream(self, url: httpx.URL) -> Upstream:
        origin = (url.scheme, url.host, url.port)
        if origin not in self._upstreams:
            tls = None
            if url.scheme == "https":
                tls = self._trust or ssl.create_default_context()
            port = url.port or (443 if tls else 80)
            self._upstreams[origin] = Upstream(url.host, port, tls=tls, timeouts=self._timeouts)
        return self._upstreams[origin]


class _Body(httpx.AsyncByteStream):
    def __init__(
        self, connection: UpstreamConnection, upstream: Upstream, request: httpx.Request
    ) -> None:
        self._connection = connection
        self._upstream = upstream
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while chunk := await self._connection.chunk():
                yield chunk
        except WorkerError as error:
            raise _translated(error, self._request) from error

    async def aclose(self) -> None:
        self._upstream.release(self._connection)


def _translated(error: WorkerError, request: httpx.Request) -> httpx.TransportError:
    if isinstance(error, Refused):
        return httpx.ConnectError(str(error), request=request)
    if isinstance(error, Silent):
        return httpx.ReadTimeout(str(error), request=request)
    return httpx.RemoteProtocolError(f"the server {error}", request=request)


def _head(request: httpx.Request) -> bytes:
    line = b"%b %b HTTP/1.1\r\n" % (request.method.encode(), request.url.raw_path)
    return line + b"".join(b"%b: %b\r\n" % pair for pair in request.headers.raw) + b"\r\n"


_WORKER = "x-warmroute-worker"
_CONNECT_S = 10.0
# Less than the five seconds after which many servers close idle connections, so that no request is
# sent on a connection that is just being closed.
_KEEPALIVE_S = 4.0
_LONGEST_ERROR = 64 * 1024
_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

Message = dict[str, str]


class FrontDoor:
    """An OpenAI server, as seen by a client that measures it."""

    def __init__(self, options: Options) -> None:
        self.model = options.model or ""
        self._options = options
        self._base = options.url.rstrip("/").removesuffix("/v1")
        self._target = self._base + _PATHS[options.endpoint]
        self._client = httpx.AsyncClient(
            headers=_headers(options),
            transport=LeanTransport(
                TimeoutSettings.model_construct(
                    connect=_CONNECT_S,
                    first_byte=options.timeout_s,
                    idle=options.timeout_s,
                    total=None,
                    keepalive=_KEEPALIVE_S,
                ),
                options.trust,
            ),
            trust_env=False,  # no proxy between this client and the server it measures
        )

    async def __aenter__(self) -> Self:
        try:
            self.model = self.model or await self._first_model()
        except BaseException:
            await self._client.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

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
        try:
            async with (
                asyncio.timeout(self._options.timeout_s),
                self._client.stream("POST", self._target, content=body) as response,
            ):
                worker = response.headers.get(_WORKER, "-")
                fault = await _read(response, answer)
        except Exception as error:  # noqa: BLE001 - whatever the server does is a result
            fault = _fault_of(error)
        ended_at = perf_counter()
        if fault:
            return Sample(sent_at, ended_at, answer.first_at, worker, fault=fault)
        ending = answer.finish()
        return Sample(
            sent_at, ended_at, answer.first_at, worker, ending.usage, ending.text, ending.fault
        )

    async def _first_model(self) -> str:
        try:
            response = await self._client.get(f"{self._base}/v1/models", timeout=_CONNECT_S)
            response.raise_for_status()
            return str(response.json()["data"][0]["id"])
        except httpx.HTTPStatusError as error:
            reason = f"it answered {error.response.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            reason = str(error) or type(error).__name__
        except (ValueError, LookupError, TypeError):
            reason = "it names none"
        raise NoModel(f"cannot ask {self._base}/v1/models for a model: {reason}")


async def _read(response: httpx.Response, answer: Answer) -> Fault | None:
    if response.status_code == httpx.codes.OK:
        async for chunk in response.aiter_raw():
            answer.feed(chunk, perf_counter())
        return None
    said = b""
    async for chunk in response.aiter_raw():
        said += chunk
        if len(said) > _LONGEST_ERROR:
            break
    return Fault(f"status {response.status_code}", error_message(said))


def _fault_of(error: Exception) -> Fault:
    message = str(error) or type(error).__name__
    match error:
        case httpx.ConnectError():
            return Fault("connect", message)
        case TimeoutError() | httpx.TimeoutException():
            return Fault("timeout", message)
        case httpx.HTTPError() | httpx.StreamError():
            return Fault("broken stream", message)
        case _:
            return Fault("other", f"{type(error).__name__}: {message}"[:200])


def _headers(options: Options) -> dict[str, str]:
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    if options.api_key:
        headers["authorization"] = f"Bearer {options.api_key}"
    return headers
