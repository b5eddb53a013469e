"""A healthy worker whose answers identify the request that they belong to."""

import asyncio
import json
from collections.abc import Sequence

from tests.chaos.looped import Looped

FULL = b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"


def body(marker: str, *, stream: bool) -> bytes:
    """The body that the client must receive."""
    return b"".join(_events(marker)) if stream else _json(marker)


def head(marker: str, *, stream: bool, chunked: bool = True) -> bytes:
    """The status line and header fields of the answer."""
    kind = b"text/event-stream" if stream else b"application/json"
    framing = b"transfer-encoding: chunked"
    if not (stream and chunked):
        framing = b"content-length: %d" % len(body(marker, stream=stream))
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n\r\n" % (kind, framing)


def answer(marker: str, *, stream: bool, chunked: bool = True) -> bytes:
    """Everything that the worker writes for one request."""
    start = head(marker, stream=stream, chunked=chunked)
    if not (stream and chunked):
        return start + body(marker, stream=stream)
    chunks = (b"%x\r\n%b\r\n" % (len(event), event) for event in _events(marker))
    return start + b"".join(chunks) + b"0\r\n\r\n"


def _json(marker: str) -> bytes:
    message = {"role": "assistant", "content": f"echo {marker}"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({"id": marker, "object": "chat.completion", "choices": [choice]}).encode()


def _events(marker: str) -> list[bytes]:
    def event(text: str) -> bytes:
        delta = {"index": 0, "delta": {"content": text}}
        made = {"id": marker, "object": "chat.completion.chunk", "choices": [delta]}
        return b"data: %b\n\n" % json.dumps(made).encode()

    return [*(event(f"{word} {marker}") for word in ("the", "echo", "of")), b"data: [DONE]\n\n"]


class Echo(Looped):
    """A worker that answers each request at once, with the request's marker."""

    def __init__(self, models: Sequence[str] = ("m",)) -> None:
        self.seen: list[str] = []
        """The markers of the requests that arrived complete and were not refused."""
        self.chunked = True
        """Whether streams use chunked encoding; otherwise they have a Content-Length."""
        self.full = False
        """Whether it answers 503."""
        self._models = models
        super().__init__()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests in order."""
        while True:
            start = (await reader.readuntil(b"\r\n\r\n")).lower()
            writer.write(await self._answer(start, reader))
            await writer.drain()

    async def _answer(self, start: bytes, reader: asyncio.StreamReader) -> bytes:
        if start.startswith(b"get /v1/models"):
            models = json.dumps({"data": [{"id": model} for model in self._models]}).encode()
            return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(models), models)
        if start.startswith(b"get"):
            return b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
        length = int(start.partition(b"content-length:")[2].partition(b"\r\n")[0])
        request = json.loads(await reader.readexactly(length))
        marker = request["messages"][0]["content"]
        if self.full:
            return FULL
        self.seen.append(marker)
        return answer(marker, stream=request.get("stream", False), chunked=self.chunked)
