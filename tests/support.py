"""A router on real sockets, and workers that misbehave on demand."""

import asyncio
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol

import httpx
import uvloop

from router.app import Application, create_app
from router.fleet.worker import Worker
from router.http.server import Server, bind
from router.http.tls import door_context
from router.settings.model import Settings
from router.settings.server import ShutdownSettings
from router.settings.types import Address


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until the condition holds; fail if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


class Router:
    """A complete router in its own thread, on a free port."""

    def __init__(self, settings: dict[str, Any]) -> None:
        parsed = Settings.model_validate(settings)
        listener = bind(Address("127.0.0.1", 0))
        tls = door_context(parsed.tls) if parsed.tls else None
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        self.port = int(listener.getsockname()[1])
        operators = [bind(parsed.admin.listen)] if parsed.admin.listen else []
        self.admin_port = int(operators[0].getsockname()[1]) if operators else 0
        self.door: Application = create_app(parsed)
        if tls is not None:
            self.door.metrics.add(tls.metrics)
        self.server = Server(self.door, ShutdownSettings.model_construct(delay=0.0), tls)
        self.thread = threading.Thread(
            target=lambda: uvloop.run(self.server.serve([listener], operators)), daemon=True
        )
        self.thread.start()
        until(self.server.started.is_set)
        self.http = httpx.Client(base_url=self.url, timeout=20)

    def stop(self) -> None:
        self.http.close()
        self.server.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()

    def worker(self, place: int = 0) -> Worker:
        """Return one of the fleet's workers, for inspection."""
        return list(self.door.fleet.workers)[place]

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the router's event loop and wait for it to return."""

        async def called() -> None:
            function()

        loop = self.server.loop
        assert loop is not None
        asyncio.run_coroutine_threadsafe(called(), loop).result(20)

    def metric(self, name: str, **labels: str) -> float:
        """The value of one series; 0 if it is not there."""
        return self.door.metrics.registry.get_sample_value(name, labels) or 0.0

    def idle(self) -> bool:
        """Whether nothing is booked on any worker."""
        loads = [worker.load for worker in self.door.fleet.workers]
        return all(load.in_flight == 0 and load.kv_tokens == 0 for load in loads)


def head(path: str, length: int, *fields: bytes) -> bytes:
    """The request line and header fields of a POST."""
    lines = [b"POST %b HTTP/1.1" % path.encode(), b"host: x", b"content-length: %d" % length]
    return b"\r\n".join([*lines, *fields, b"", b""])


def send(port: int, data: bytes) -> socket.socket:
    """Open a new connection and send bytes: whole requests or parts of them."""
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.sendall(data)
    return client


def post(port: int, path: str, body: bytes, *fields: bytes) -> socket.socket:
    """Send a complete request on a new connection and return its socket."""
    return send(port, head(path, len(body), *fields) + body)


def read_all(client: socket.socket) -> bytes:
    """Read until the other side closes."""
    pieces = []
    while piece := client.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def error_of(reply: httpx.Response) -> dict[str, Any]:
    """The error object of an answer: OpenAI's four fields and no more.

    Of other shapes it is the same: Anthropic's leaves out fields without a value, Cohere's and
    Ollama's have the message alone.
    """
    body: dict[str, Any] = reply.json()
    error = body.pop("error", None)
    empty: dict[str, Any] = {"param": None, "code": None}
    if "request_id" in body:
        assert body == {"type": "error", "request_id": reply.headers["request-id"]}
        error = {**empty, **error}
    elif not isinstance(error, dict):
        told = body if error is None else {**body, "message": error}
        assert set(told) in ({"message"}, {"message", "id"})
        return {**empty, "message": told["message"], "type": None}
    else:
        assert not body
    assert set(error) == {"message", "type", "param", "code"}
    return error


Action = bytes | float | str | Callable[[], bool]
"""What a stub does next: write bytes, sleep (float, seconds), `close`, `reset`, `hang up` (close
the sending side only), `stall` forever, or wait until a function returns true."""

JSON = b'{"id":"x","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1}}'
OK: list[Action] = [
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(JSON)
    + JSON
]


class Stub:
    """A worker that answers probes normally and all other requests by a script."""

    def __init__(
        self,
        script: list[Action] | None = None,
        model: str = "m",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.script: list[Action] = OK if script is None else script
        self.requests: list[bytes] = []
        self.probes: list[bytes] = []
        self.closed_by_peer = 0
        self.connections = 0
        self.close_next = False
        """Close the connection at the next request instead of answering it."""
        self.well = True
        """Whether `/health` answers 200; otherwise 500."""
        self.busy = False
        """Let probes wait for their answers."""
        self.script_of: dict[bytes, list[Action]] = {}
        """Other scripts, by a part of the request."""
        models = b'{"object":"list","data":[{"id":"%b"}]}' % model.encode()
        self.fixed = {
            b"/health": b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"/v1/models": b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(models) + models,
            b"/metrics": b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            b"/openapi.json": b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
        }
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._tls = tls
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.thread.start()
        self._ready.wait(10)

    def tells(self, path: str, document: object) -> None:
        """Answer questions at this path with a document from now on."""
        body = json.dumps(document).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.fixed[path.encode()] = head + body

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting = await asyncio.start_server(
            self._accept, sock=self._listener, ssl=self._tls
        )
        self._ready.set()
        await self._over.wait()
        self._accepting.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ")[1]
                if path == b"/health":
                    self.probes.append(head)
                if path in self.fixed:
                    await self._answer_probe(path, writer)
                    continue
                length = next(
                    int(line[15:])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                )
                self.requests.append(head + await reader.readexactly(length))
                if self.close_next:
                    self.close_next = False
                    return
                gone = asyncio.create_task(self._notice(reader))
                try:
                    for action in self._script_for(self.requests[-1]):
                        if not await self._act(action, writer):
                            return
                except ConnectionError:
                    self.closed_by_peer += not gone.done()  # the write fails before the read
                    raise
                finally:
                    gone.cancel()
                    await asyncio.gather(gone, return_exceptions=True)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer_probe(self, path: bytes, writer: asyncio.StreamWriter) -> None:
        while self.busy:  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.005)
        if path == b"/health" and not self.well:
            writer.write(b"HTTP/1.1 500 Ill\r\ncontent-length: 0\r\n\r\n")
        else:
            writer.write(self.fixed[path])

    def _script_for(self, request: bytes) -> list[Action]:
        scripts = (script for part, script in self.script_of.items() if part in request)
        return list(next(scripts, self.script))

    async def _notice(self, reader: asyncio.StreamReader) -> None:
        """Count a peer that closes its connection while it is being answered."""
        while not reader.at_eof():
            if reader.exception():
                break
            await asyncio.sleep(0.005)
        self.closed_by_peer += 1

    def tell(self, metrics: str) -> None:
        """Answer this at `/metrics` from now on."""
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(metrics)}\r\n\r\n"
        self.fixed[b"/metrics"] = (head + metrics).encode()

    @staticmethod
    async def _act(action: Action, writer: asyncio.StreamWriter) -> bool:
        if isinstance(action, bytes):
            writer.write(action)
            await writer.drain()
        elif isinstance(action, float):
            await asyncio.sleep(action)
        elif callable(action):
            while not action():  # noqa: ASYNC110 - set by another thread
                await asyncio.sleep(0.005)
        elif action == "stall":
            await asyncio.Event().wait()
        elif action == "reset":
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        elif action == "hang up":  # without a TLS close_notify, as if cut on the way
            writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
            return False
        else:
            return False
        return True

    def stop_listening(self) -> None:
        """Refuse new connections but keep the existing ones."""

        async def close() -> None:
            self._accepting.close()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(10)

    def stop(self) -> None:
        if not self.thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._over.set)
        self.thread.join(10)
        self._listener.close()


@contextmanager
def accepting_nobody(host: str, port: int) -> Iterator[frozenset[int]]:
    """Listen without accepting: connecting there takes for ever.

    Yield the local ports of the connections that fill the queue: some are still connecting too.
    """
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        full.bind((host, port))
        full.listen(0)
        knocks = [stack.enter_context(socket.socket()) for _ in range(8)]
        for knock in knocks:  # one fits the queue, the next ones show that it is full
            knock.setblocking(False)
            knock.connect_ex((host, port))
        yield frozenset(knock.getsockname()[1] for knock in knocks)


class MakeStub(Protocol):
    """Make a worker that answers by a script."""

    def __call__(self, script: list[Action] | None = None, model: str = "m") -> Stub: ...


class MakeRouter(Protocol):
    """Start a router in front of workers, or with whole settings."""

    def __call__(self, *workers: str | dict[str, Any], **settings: Any) -> Router: ...
