"""LMCache's coordinator: lookups in its directory, over real sockets."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from router.kv.lmcache.coordinator import Coordinator
from router.kv.lmcache.names import Chunking
from router.kv.lmcache.shared_store import LookupFailed
from tests.stores.conftest import ids

CHUNK = 64
PROMPT = list(range(1000, 1200))  # three chunks and a bit
#: Placements of a chunk, as in `lmcache/v1/mp_coordinator/schemas.py`.
STORED = {"instance_id": "", "tier": "l2", "backend": "resp", "shared": True, "incarnation": 0}
HOST = {"instance_id": "mp-1", "tier": "l1", "backend": "", "shared": False, "incarnation": 3}


class Directory:
    """A coordinator that answers as told, and records what it was asked."""

    def __init__(self) -> None:
        self.chunk, self.gpus = CHUNK, 1
        self.places: list[list[dict[str, Any]]] = []
        """Placements by chunk; further chunks have none."""
        self.lacking: tuple[int, int] | None = None
        """The chunk and the GPU whose part is missing."""
        self.asked: list[dict[str, Any]] = []
        self.status, self.body = 200, b""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=partial(self._server.serve_forever, 0.01), daemon=True
        )
        self._thread.start()

    def answer(self, question: dict[str, Any]) -> bytes:
        """Return one entry for each chunk and GPU."""
        self.asked.append(question)
        tokens = question["token_ids"]
        chunks = len(tokens) // self.chunk
        results = [
            {
                "key": {"chunk_hash_hex": "ab", "model_name": "m", "kv_rank": gpu},
                "placements": self._places(chunk, gpu),
                "token_ids": tokens[chunk * self.chunk : (chunk + 1) * self.chunk],
            }
            for chunk in range(chunks)
            for gpu in range(self.gpus)
        ]
        return self.body or msgspec.json.encode({"chunks": chunks, "results": results})

    def _places(self, chunk: int, gpu: int) -> list[dict[str, Any]]:
        known = chunk < len(self.places) and (chunk, gpu) != self.lacking
        return self.places[chunk] if known else []

    def stop(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(directory: Directory) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["content-length"])
            body = directory.answer(msgspec.json.decode(self.rfile.read(length)))
            self.send_response(directory.status if self.path == "/directory/lookup" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    return Handler


@pytest.fixture
def directory() -> Iterator[Directory]:
    """A coordinator that listens."""
    made = Directory()
    yield made
    made.stop()


def run(
    directory: Directory,
    work: Callable[[Coordinator], Coroutine[Any, Any, Any]],
    chunking: Chunking = Chunking(CHUNK),  # noqa: B008 - never changes
) -> Any:
    """Run something with an adapter, then close it."""

    async def done() -> Any:
        store = Coordinator(directory.url, chunking)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(done())


def held(directory: Directory, tokens: list[int], **more: Any) -> int:
    """Return how many tokens are found."""
    salt = more.pop("salt", "")
    return int(
        run(
            directory,
            lambda store: store.held(ids(*tokens), "toy", salt),
            Chunking(more.pop("tokens", CHUNK), **more),
        )
    )


def test_what_all_can_load_counts(directory: Directory) -> None:
    """Chunks in one host's memory do not count, and neither do those after a gap."""
    directory.places = [[HOST, STORED], [STORED], [HOST]]
    assert held(directory, PROMPT) == 128
    directory.places = [[HOST], [STORED]]
    assert held(directory, PROMPT) == 0
    directory.places = [[STORED]] * 3
    assert held(directory, PROMPT) == 192


def test_it_is_asked_with_what_names_chunks(directory: Directory) -> None:
    """With the whole prompt, the model as engines name it, GPUs and salt; not if it is too
    short."""
    assert held(directory, PROMPT[:63]) == 0
    held(directory, PROMPT, salt="tenant", gpus=8, model="/models/toy")
    assert directory.asked == [
        {
            "token_ids": PROMPT,
            "model_name": "/models/toy",
            "world_size": 8,
            "cache_salt": "tenant",
        }
    ]


def test_a_chunk_is_there_when_all_its_parts_are(directory: Directory) -> None:
    """Each GPU has a part; here the second chunk lacks one."""
    directory.gpus = 2
    directory.places = [[STORED], [STORED], [STORED]]
    directory.lacking = (1, 1)
    assert held(directory, PROMPT, gpus=2) == 64


def test_what_was_written_is_found_whatever_lies_before_it(directory: Directory) -> None:
    """Only the last full chunk counts, and only where all workers can load it from."""
    directory.places = [[HOST], [STORED], [HOST]]

    def wrote(tokens: int) -> bool | None:
        found: bool | None = run(
            directory, lambda store: store.wrote(ids(*PROMPT[:tokens]), "toy", "")
        )
        return found

    assert [wrote(tokens) for tokens in (63, 64, 128, 192)] == [None, False, True, False]
    said = run(directory, _compared)
    assert "(chunk 64, model toy, gpus 1): compare it with the engines' own" in said
    assert directory.url in said


async def _compared(store: Coordinator) -> str:
    return store.compare("toy")


def test_another_size_of_chunks_is_said(directory: Directory) -> None:
    """It is reported at the start, and by the results of lookups."""
    directory.chunk = 32
    said = run(directory, lambda store: store.check())
    assert "makes 2 chunks of 64 tokens" in said
    directory.places = [[STORED]] * 6

    async def both(store: Coordinator) -> tuple[int, str]:
        found = await store.held(ids(*PROMPT), "toy", "")
        directory.chunk = CHUNK  # so that the check itself finds nothing wrong
        return found, await store.check()

    found, said = run(directory, both)
    assert found == 192
    assert "into chunks of 32 tokens; tiers.l2.lmcache.chunk is 64" in said
    directory.chunk = CHUNK
    assert run(directory, lambda store: store.check()) == ""


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, b"", "answers 500 to /directory/lookup"),
        (200, b"<html>", "answers something else than a directory"),
        (200, b'{"chunks": "many"}', "answers something else than a directory"),
    ],
)
def test_what_is_no_directory_is_down(
    directory: Directory, status: int, body: bytes, said: str
) -> None:
    """It raises LookupFailed with the reason."""
    directory.status, directory.body = status, body
    with pytest.raises(LookupFailed, match=said):
        held(directory, PROMPT)
    store = Coordinator("http://127.0.0.1:1", Chunking(CHUNK))
    with pytest.raises(LookupFailed, match="no coordinator answers at http://127"):
        asyncio.run(store.check())
