"""Workers that fail, and what a router says of them."""

import json
import socket
import time

from router.worker import Worker
from tests.support import Action, Router, Stub, post, read_all, until

PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b"9\r\ndata: 1\n\n\r\n"


def says(status: int) -> list[Action]:
    """An answer with that status."""
    return [b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n\r\n{}" % status]


#: What a worker may do that is its own fault, and what that is counted as.
FAULTS: dict[str, tuple[list[Action], str]] = {
    "close": (["close"], "closed"),
    "reset": (["reset"], "closed"),
    "headless": ([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", "close"], "closed"),
    "halfway": ([SSE + CHUNK, 0.02, "close"], "closed"),
    "garbage": ([b"SMTP ready\r\n"], "garbled"),
    "silence": (["stall"], "timeout"),
    "500": (says(500), "5xx"),
    "502": (says(502), "5xx"),
}
#: The only probe is the first one, and what is silent is so for long enough.
QUIET = {"interval": "1h", "timeout": "10s"}


def health(**ejection: object) -> dict[str, object]:
    """Settings under which a few failures are enough."""
    return {**QUIET, "ejection": {"failures": 3, "first": "1h", "longest": "2h", **ejection}}


def ask(router: Router, times: int = 1) -> list[int]:
    """Send requests one after the other; the status of each."""
    return [router.http.post(PATH, json=CHAT).status_code for _ in range(times)]


def ejected(router: Router) -> list[int]:
    """For every worker 1 if it is left out, as the metrics have it."""
    return [
        int(router.metric("warmroute_worker_ejected", pool="default", worker=worker.name))
        for worker in router.door.fleet.workers
    ]


def ejections(router: Router, worker: Stub, kind: str) -> int:
    """How often it was left out for that, as the metrics have it."""
    labels = {"pool": "default", "worker": worker.url[7:], "kind": kind}
    return int(router.metric("warmroute_ejections_total", **labels))


def body(*, stream: bool) -> bytes:
    """A request."""
    return json.dumps({**CHAT, "stream": stream}).encode()


def start(router: Router) -> socket.socket:
    """Send a request on a connection of its own, and do not wait for the answer."""
    return post(router.port, PATH, body(stream=False), b"connection: close")


def status(client: socket.socket) -> int:
    """Wait for the answer."""
    with client:
        return int(read_all(client).split()[1])


def serve_out(worker: Worker) -> None:
    """Wait until the time for which it is left out is over."""
    until(lambda: time.monotonic() >= worker.breaker.until)
