"""A client that reads SSE comments, and a worker that is silent for a while."""

import json
import threading
from http.client import HTTPResponse
from typing import Any

from router.http.sse import COMMENT
from tests.support import Action, MakeStub, Router, Stub, post

PATH = "/v1/chat/completions"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TEXT = ("Once", " upon", " a", " time")
EVENTS = [
    b"data: %b\n\n"
    % json.dumps(
        {
            "id": "1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}],
        }
    ).encode()
    for word in TEXT
] + [b"data: [DONE]\n\n"]
BODY = b"".join(EVENTS)
#: Comments come often enough for a test, and the first probe is the only one.
QUIET = {"interval": "1h", "timeout": "10s"}
OFTEN: dict[str, Any] = {"timeouts": {"comment": "20ms"}, "health": QUIET}
FULL: list[Action] = [b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"]


def chunk(data: bytes) -> bytes:
    """Encode one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


STREAM: list[Action] = [HEAD, *map(chunk, EVENTS), b"0\r\n\r\n"]


class Talk:
    """A client's request, and what it has read of the answer."""

    def __init__(
        self, router: Router, path: str = PATH, *, stream: bool = True, key: str = ""
    ) -> None:
        body = {"model": "m", "stream": stream, "messages": [], "input": "x", "prompt": "x"}
        fields = [f"x-api-key: {key}".encode()] if key else []
        self.client = post(router.port, path, json.dumps(body).encode(), *fields)
        self.answer: HTTPResponse | None = None
        self.comments = 0

    def silence(self, comments: int = 3) -> None:
        """Read the header and this many comments."""
        if self.answer is None:
            self.answer = HTTPResponse(self.client)
            self.answer.begin()
        for _ in range(comments):
            assert self.answer.read(len(COMMENT)) == COMMENT
            self.comments += 1

    def rest(self) -> bytes:
        """Read all that follows the comments."""
        if self.answer is None:
            self.answer = HTTPResponse(self.client)
            self.answer.begin()
        data = self.answer.read()
        while data.startswith(COMMENT):
            data = data.removeprefix(COMMENT)
            self.comments += 1
        self.leave()
        return data

    def leave(self) -> None:
        """Close the connection."""
        if self.answer is not None:
            self.answer.close()
        self.client.close()


def error_in(data: bytes) -> dict[str, Any]:
    """Return the error of a stream that contains nothing else."""
    assert data.endswith(b"\n\n")
    (event,) = data.removesuffix(b"\n\n").split(b"\n\n")
    told = event.removeprefix(b"event: error\n").removeprefix(b"data: ")
    error: dict[str, Any] = json.loads(told)["error"]
    return error


def commented(router: Router) -> bool:
    """Return whether some client has got a comment and nothing else so far."""
    clients = tuple(router.door.clients)
    return any(client._answering and client._answering.commented for client in clients)


class Gate:
    """A worker that is silent until the gate is opened."""

    def __init__(self, stub: MakeStub, then: list[Action]) -> None:
        self._opened = threading.Event()
        self.open = self._opened.set
        self.worker: Stub = stub([self._opened.is_set, *then])
