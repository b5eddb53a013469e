"""A worker that keeps the responses it makes, as vLLM does with its store enabled."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qs
from uuid import uuid4

#: What an answer to `POST /v1/responses` has besides its id, which stands in various places.
REST = {"object": "response", "created_at": 1, "model": "m", "output": []}
_CHUNKED = b"HTTP/1.1 200 X\r\ncontent-type: %b\r\ntransfer-encoding: chunked\r\n\r\n"
USAGE = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}


class Asked(NamedTuple):
    """A request as the worker got it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Engine:
    """One worker; if it is started again, it has forgotten everything, as another process would."""

    def __init__(self, models: tuple[str, ...] = ("m",)) -> None:
        self.models = models
        self.kept: dict[str, dict[str, Any]] = {}
        self.seen: list[Asked] = []
        """All requests that concern responses."""
        self.born: float | None = None
        """When its process began, if it says so."""
        self.full = False
        self.awake: bool | None = None
        """Whether it is awake, if it says so."""
        self.answers: list[bytes] | None = None
        """The content type and then the chunks that it writes instead of its own answer; `ID`
        stands for the id."""
        self.makes = threading.Event()
        self.makes.set()
        """Responses are only made while this is set."""
        self.breaks = self.stalls = False
        """It ends a stream, or goes on with it never, after the first event."""
        self.open = 0
        """Connections on which it answers."""
        self._made = 0
        self._place = uuid4().hex[:12]
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen; what was made before is forgotten."""
        self.kept.clear()
        ready, self._loop = threading.Event(), asyncio.new_event_loop()
        thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        thread.start()
        assert ready.wait(10)
        self._thread = thread

    def stop(self) -> None:
        """Close everything, as the end of a process does."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(10)

    def _run(self, ready: threading.Event) -> None:
        self._loop.run_until_complete(self._serve(ready))
        self._loop.close()

    async def _serve(self, ready: threading.Event) -> None:
        self._over, self._tasks = asyncio.Event(), set[asyncio.Task[None]]()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        ready.set()
        await self._over.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._client(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ")
                pairs = (line.partition(": ") for line in head[1:] if line)
                headers = {name.lower(): value for name, _, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                while method == "POST" and not self.makes.is_set():  # noqa: ASYNC110 - by threads
                    await asyncio.sleep(0.005)
                self.open += 1
                try:
                    await self._write(Asked(method, target, headers, body), reader, writer)
                finally:
                    self.open -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _write(
        self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        for number, piece in enumerate(self._answer(asked)):
            if number == 2 and self.breaks:
                raise ConnectionError
            if number == 2 and self.stalls:
                await reader.read()
                raise ConnectionError
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.001)

    def _answer(self, asked: Asked) -> Iterator[bytes]:
        path, _, query = asked.target.partition("?")
        if not path.startswith("/v1/responses"):
            yield self._other(path)
            return
        self.seen.append(asked)
        if self.full:
            yield _json(503, {"error": {"message": "full"}})
        elif path == "/v1/responses":
            yield from self._make(json.loads(asked.body))
        else:
            name, _, what = path.removeprefix("/v1/responses/").partition("/")
            yield from self._show(asked.method, name, what, query)

    def _other(self, path: str) -> bytes:
        if path == "/v1/models":
            return _json(200, {"object": "list", "data": [{"id": one} for one in self.models]})
        if path == "/metrics" and self.awake is not None:
            state = f'vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} {self.awake:d}\n'
            return _whole(200, state.encode(), "text/plain")
        if path == "/metrics" and self.born is not None:
            return _whole(200, f"process_start_time_seconds {self.born}\n".encode(), "text/plain")
        return _json(200 if path == "/health" else 404, {})

    def _make(self, wanted: dict[str, Any]) -> Iterator[bytes]:
        before = wanted.get("previous_response_id")
        if before is not None and str(before) not in self.kept:
            yield _unknown(before)
            return
        self._made += 1
        name = wanted.get("request_id") or f"resp_{self._place}{self._made:08x}"
        made = {"id": name, **REST, "usage": USAGE}
        if wanted.get("store", True):
            self.kept[name] = made
        if self.answers is not None:
            kind, *pieces = (piece.replace(b"ID", name.encode()) for piece in self.answers)
            yield _CHUNKED % kind
            yield from map(_chunk, [*pieces, b""])
        elif wanted.get("background"):
            made["status"] = "queued"
            yield _json(200, made)
        elif wanted.get("stream"):
            yield from _events(made, 0)
        else:
            yield _json(200, {**made, "status": "completed"})

    def _show(self, method: str, name: str, what: str, query: str) -> Iterator[bytes]:
        made = self.kept.get(name)
        if made is None:
            yield _unknown(name)
        elif method == "DELETE":
            del self.kept[name]
            yield _json(200, {"id": name, "object": "response", "deleted": True})
        elif what == "cancel":
            made["status"] = "cancelled"
            yield _json(200, made)
        elif what == "input_items":
            yield _json(200, {"object": "list", "data": []})
        elif "stream=true" in query:
            yield from _events(made, _after(query) + 1)
        else:
            yield _json(200, made)


def _json(status: int, value: object) -> bytes:
    return _whole(status, json.dumps(value).encode(), "application/json")


def _whole(status: int, body: bytes, kind: str) -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _unknown(name: str) -> bytes:
    return _json(404, {"error": {"message": f"Response with id '{name}' not found."}})


def _after(query: str) -> int:
    return int(parse_qs(query).get("starting_after", ["-1"])[0])


def _events(made: dict[str, Any], after: int) -> Iterator[bytes]:
    """Yield a stream as vLLM sends it, from one event on."""
    yield _CHUNKED % b"text/event-stream"
    for number, kind in enumerate(("created", "in_progress", "completed")):
        if number >= after:
            told = {"response": made, "sequence_number": number, "type": f"response.{kind}"}
            yield _chunk(f"event: response.{kind}\ndata: {json.dumps(told)}\n\n".encode())
    yield _chunk(b"")


def _chunk(data: bytes) -> bytes:
    """Frame a piece of a chunked body; the last one is empty."""
    return b"%x\r\n%b\r\n" % (len(data), data)
