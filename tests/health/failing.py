"""Workers that fail, and what the router reports of them."""

import json
import socket
import time

from router.fleet.worker import Worker
from tests.support import Action, Router, Stub, post, read_all, until

PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = "data: [DONE]"
CHUNK = b"9\r\ndata: 1\n\n\r\n"


def says(status: int) -> list[Action]:
    """A script that answers with that status."""
    return [b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n\r\n{}" % status]


def events(*lines: str) -> list[Action]:
    """A script that answers with a stream of these events."""
    chunks = [f"{len(line) + 2:x}\r\n{line}\n\n\r\n" for line in lines]
    return [SSE + "".join([*chunks, "0\r\n\r\n"]).encode()]


#: An error that comes as an event, after the status, as vLLM and SGLang send it.
EVENT = events(
    'data: {"error":{"message":"it failed","type":"InternalServerError","code":500}}', DONE
)
#: A stream that ends at once.
EMPTY = events(DONE)
#: Failures that are the worker's own fault, and the kind that each is counted as.
FAULTS: dict[str, tuple[list[Action], str]] = {
    "close": (["close"], "closed"),
    "reset": (["reset"], "closed"),
    "headless": ([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", "close"], "closed"),
    "halfway": ([SSE + CHUNK, 0.02, "close"], "closed"),
    "garbage": ([b"SMTP ready\r\n"], "garbled"),
    "silence": (["stall"], "timeout"),
    "500": (says(500), "5xx"),
    "502": (says(502), "5xx"),
    "event": (EVENT, "event"),
    "empty": (EMPTY, "empty"),
}
#: No probe but the first one is due within a test, and none times out.
QUIET = {"interval": "1h", "timeout": "10s"}


def health(**ejection: object) -> dict[str, object]:
    """Health settings under which three failures eject a worker."""
    return {**QUIET, "ejection": {"failures": 3, "first": "1h", "longest": "2h", **ejection}}


def ask(router: Router, times: int = 1) -> list[int]:
    """Send requests one after the other; return their statuses."""
    return [router.http.post(PATH, json=CHAT).status_code for _ in range(times)]


def ejected(router: Router) -> list[int]:
    """For every worker 1 if it is ejected, otherwise 0, from the metrics."""
    return [
        int(router.metric("warmroute_worker_ejected", pool="default", worker=worker.name))
        for worker in router.door.fleet.workers
    ]


def ejections(router: Router, worker: Stub, kind: str) -> int:
    """How often the worker was ejected for that kind of failure, from the metrics."""
    labels = {"pool": "default", "worker": worker.url[7:], "kind": kind}
    return int(router.metric("warmroute_ejections_total", **labels))


def body(*, stream: bool) -> bytes:
    """The body of a chat request."""
    return json.dumps({**CHAT, "stream": stream}).encode()


def start(router: Router) -> socket.socket:
    """Send a request on a new connection without waiting for the answer."""
    return post(router.port, PATH, body(stream=False), b"connection: close")


def status(client: socket.socket) -> int:
    """Wait for the answer and return its status."""
    with client:
        return int(read_all(client).split()[1])


def serve_out(worker: Worker) -> None:
    """Wait until the worker's ejection is over."""
    until(lambda: time.monotonic() >= worker.breaker.until)
