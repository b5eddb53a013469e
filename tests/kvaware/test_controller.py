"""The controller alone: its API, its keys, its snapshots, and a router that asks it or does not."""

import os
import signal
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from fastapi.testclient import TestClient

from controller.memory import Memory
from controller.server import serve
from controller.source import Source
from strategies.blocks import even_chain, even_root
from tests.identity_live.asking import until_known
from tests.kvaware.conftest import QUICK, MakeFleet
from tests.kvaware.test_kvaware_live import ask, cached, predicted
from tests.support import MakeRouter, until

IDS = list(range(100, 164))
STORED = {
    "type": "BlockStored",
    "block_hashes": [1, 2, 3, 4],
    "parent_block_hash": None,
    "token_ids": IDS,
    "block_size": 16,
    "medium": "GPU",
    "group_idx": 0,
}
OFFLOADED = {
    "type": "BlockStored",
    "block_hashes": [3, 4],
    "parent_block_hash": None,
    "token_ids": [],
    "block_size": 0,
    "medium": "CPU",
}
GONE = {"type": "BlockRemoved", "block_hashes": [4, 3], "medium": "GPU"}


def batch(*events: object) -> bytes:
    """As an engine publishes it."""
    return msgspec.msgpack.encode([0.0, list(events), 0])


@pytest.fixture
def client() -> Callable[..., TestClient]:
    """Controllers without sockets."""

    def make(**keys: str) -> TestClient:
        followed: list[tuple[str, str | None]] = []

        async def follow(source: Source, endpoint: str | None, replay: str | None) -> None:
            del replay
            followed.append((source.name, endpoint))

        async def leave(source: Source) -> None:
            followed[:] = [one for one in followed if one[0] != source.name]

        return TestClient(serve(Memory(1 << 24), follow, leave, keys))

    return make


def test_what_is_pushed_is_found(client: Callable[..., TestClient]) -> None:
    """By tokens and by keys, with what lies on each tier; until it is unregistered."""
    http = client()
    one = {"instance_id": "a"}
    assert http.post("/register", json=one).json()["status"] == "registered successfully"
    assert http.post("/register", json=one).status_code == 409
    pushed = http.post("/events/a", content=batch(STORED, OFFLOADED, GONE))
    assert pushed.json() == {"events": 3}
    question = {"model": "m", "token_ids": [*IDS, 7], "block_size": 16}
    held = {"longest_matched": 64, "GPU": 32, "CPU": 64, "DISK": 0, "DP": {"0": 64}}
    assert http.post("/query", json=question).json() == {"default": {"a": held}}
    keys = even_chain(even_root("", ""), array("I", IDS).tobytes(), 16)
    by_keys = {"seq_hashes": keys, "block_size": 16, "tenant_id": "t", "instance_id": "a"}
    assert http.post("/query_by_hash", json=by_keys).json() == {"t": {"a": held}}
    salted = http.post("/query", json=question | {"cache_salt": "s"}).json()
    assert salted["default"]["a"]["longest_matched"] == 0
    (stream,) = http.get("/streams").json()
    assert (stream["instance_id"], stream["events"]) == ("a", 3)
    gone = http.post("/unregister", json=one).json()
    assert gone["removed_instances"] == ["a|default|0"]
    assert http.post("/query", json=question).json() == {"default": {}}
    assert http.post("/events/a", content=batch(STORED)).status_code == 404


def test_a_snapshot_is_taken_over(client: Callable[..., TestClient]) -> None:
    """By a fresh controller only; nonsense is refused."""
    first, second = client(), client()
    for http in (first, second):
        http.post("/register", json={"instance_id": "a"})
    first.post("/events/a", content=batch(STORED))
    taken = first.get("/snapshot").content
    assert second.post("/restore", content=b"nonsense").status_code == 400
    assert second.post("/restore", content=taken).json() == {"blocks": 4}
    question = {"token_ids": IDS, "instance_id": "a"}
    assert second.post("/query", json=question).json() == first.post("/query", json=question).json()
    assert second.post("/restore", content=taken).status_code == 409
    second.post("/events/a", content=batch(GONE))
    assert second.post("/query", json=question).json()["default"]["a"]["GPU"] == 32


def test_keys_let_in(client: Callable[..., TestClient]) -> None:
    """All paths but one; and the API describes itself."""
    http = client(ops="0123456789abcdef")
    assert http.get("/health/live").status_code == 200
    assert http.get("/streams").status_code == 401
    assert http.get("/streams", headers={"authorization": "Bearer wrong"}).status_code == 401
    headers = {"authorization": "Bearer 0123456789abcdef"}
    assert http.get("/streams", headers=headers).json() == []
    assert "/query_by_hash" in client().get("/openapi.json").json()["paths"]


@contextmanager
def controller(out: Path, *args: object) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The command in a process of its own; its URL."""
    err = out / "controller.log"
    with err.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "router", "controller", *map(str, args)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=log,
        )
    try:
        until(lambda: "listens on " in err.read_text() or process.poll() is not None, 30)
        yield err.read_text().split("listens on ")[1].split()[0], process
    finally:
        process.kill()
        process.wait()


def test_a_router_asks_it_and_does_without_it(
    fleet: MakeFleet, route: MakeRouter, folder: Path, tmp_path: Path, stack: ExitStack
) -> None:
    """What it says decides; once it is gone, placements do, and nothing fails."""
    simulated = fleet(workers=2)
    settings = tmp_path / "controller.yaml"
    settings.write_text(
        "strategy: kvaware\nhealth: {interval: 50ms}\nworkers:\n"
        + "".join(f"  - {url}\n" for url in simulated.urls)
    )
    taken = tmp_path / "index.snapshot"
    args = ("--config", settings, "--listen", "127.0.0.1:0", "--snapshot", taken)
    url, process = stack.enter_context(controller(tmp_path, *args))
    router = route(
        *simulated.urls,
        strategy={"name": "kvaware", "unconfirmed": "0s"},
        tokenizer=str(folder),
        health=QUICK,
        controller={"url": url, "deadline": "5s"},
    )
    until_known(router, "toy")
    text = "asked elsewhere " * 30
    until(lambda: all(one["connected"] for one in httpx.get(f"{url}/streams").json()))
    first = ask(router, text)
    until(lambda: sum(one["events"] for one in httpx.get(f"{url}/streams").json()) > 0)
    again = ask(router, text)
    assert again.headers["x-warmroute-worker"] == first.headers["x-warmroute-worker"]
    assert predicted(again) == cached(again) > 400
    assert again.headers["x-warmroute-decision"].startswith("prefix;")
    assert router.http.get("/health/ready").json()["status"] == "ready"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert taken.stat().st_size > 100
    alone = ask(router, text)
    assert alone.headers["x-warmroute-decision"].startswith("prefix (no controller);")
    assert alone.headers["x-warmroute-worker"] == first.headers["x-warmroute-worker"]
    assert router.http.get("/health/ready").json()["status"] == "degraded"
    assert router.metric("warmroute_kv_questions_total", pool="default", outcome="failed") == 1
    url, _ = stack.enter_context(controller(tmp_path, *args))
    question = {"token_ids": [1], "block_size": 16}
    assert httpx.post(f"{url}/query", json=question).status_code == 200
    until(lambda: {one["doubt"] for one in httpx.get(f"{url}/streams").json()} == {""})
