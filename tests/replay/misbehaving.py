"""A server that answers a replay with whatever bytes a test wants."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = '{"prompt_tokens": 100, "completion_tokens": 2, "prompt_tokens_details": %s}'
CACHED = '{"cached_tokens": 60}'
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"X-Warmroute-Worker: gpu-0\r\n\r\n"
)


def event(data: str) -> bytes:
    payload = f"data: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def good(details: str = CACHED, text: str = "hello") -> bytes:
    delta = json.dumps({"choices": [{"delta": {"content": text}}]})
    role = '{"choices": [{"delta": {"role": "assistant", "content": ""}}]}'
    usage = '{"choices": [], "usage": %s}' % (USAGE % details)
    return HEAD + b"".join(map(event, (role, delta, usage, "[DONE]"))) + b"0\r\n\r\n"


def whole(status: str, body: bytes, extra: bytes = b"") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n".encode()
    return head + extra + b"\r\n" + body


class Stub(ThreadingHTTPServer):
    """Sends the given bytes; closes the connection if they are no complete answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer: Callable[[], bytes] = good
        self.models = whole("200 OK", b'{"data": [{"id": "first"}, {"id": "second"}]}')
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[dict[str, str]] = []
        self.connections = 0
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.reached = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def wait(self) -> bytes:
        """Answer only once released, or when the test is over."""
        self.reached.set()
        self.released.wait(30)
        return good()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stub

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.connections += 1

    def do_GET(self) -> None:
        self.wfile.write(self.server.models)

    def do_POST(self) -> None:
        stub = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with stub.lock:
            stub.bodies.append({"path": self.path, **body})
            stub.heads.append({name.lower(): value for name, value in self.headers.items()})
            stub.in_flight += 1
            stub.most_in_flight = max(stub.most_in_flight, stub.in_flight)
        data = stub.answer()
        with stub.lock:
            stub.in_flight -= 1
        try:
            self.wfile.write(data)
        except OSError:  # the client has gone, on purpose in some tests
            self.close_connection = True
        if not data.endswith(b"0\r\n\r\n") and b"Content-Length" not in data:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass
