"""The stand-alone controller: API, keys, snapshots, and a router with and without it."""

import asyncio
import os
import signal
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fastapi.testclient import TestClient

from controller.events.source import EventSource
from controller.kv_memory import KvMemory
from controller.service.server import create_app
from router.cli.check_live import check_live
from router.kv.remote import RemoteMemory
from router.settings.loader import load
from strategies.prefix.block_keys import even_chain, even_root
from tests.kvaware.asking import ask, cached, predicted
from tests.kvaware.conftest import QUICK, MakeFleet
from tests.reload.changing import change
from tests.support import MakeRouter, MakeStub, until
from tests.tokenizers.asking import until_known

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
    """Return a batch of events as an engine publishes it."""
    return msgspec.msgpack.encode([0.0, list(events), 0])


@pytest.fixture
def client() -> Callable[..., TestClient]:
    """Make controllers without sockets."""

    def make(keys: Mapping[str, str] | None = None, **limits: Any) -> TestClient:
        followed: list[tuple[str, str | None]] = []

        async def follow(source: EventSource, endpoint: str | None, replay: str | None) -> None:
            assert replay != "", "an empty address is none"
            followed.append((source.name, endpoint))

        async def leave(source: EventSource) -> None:
            followed[:] = [one for one in followed if one[0] != source.name]

        return TestClient(create_app(KvMemory(1 << 24), follow, leave, keys or {}, **limits))

    return make


def test_what_is_pushed_is_found(client: Callable[..., TestClient]) -> None:
    """By tokens and by keys, with the tokens on each tier, until the engine is unregistered."""
    http = client()
    one = {"instance_id": "a"}
    assert http.post("/register", json=one).json()["status"] == "registered successfully"
    assert http.post("/register", json=one).status_code == 409
    pushed = http.post("/events/a", content=batch(STORED, OFFLOADED, GONE))
    assert pushed.json() == {"events": 3, "refused": 0}
    question = {"model": "m", "token_ids": [*IDS, 7], "block_size": 16}
    held = {"longest_matched": 64, "GPU": 32, "CPU": 64, "DISK": 0, "DP": {"0": 64}}
    assert http.post("/query", json=question).json() == {"default": {"a": held}}
    keys = even_chain(even_root("", ""), array("I", IDS).tobytes(), 16)
    by_keys = {"seq_hashes": keys, "block_size": 16, "tenant_id": "t", "instance_id": "a"}
    assert http.post("/query_by_hash", json=by_keys).json() == {"t": {"a": held}}
    salted = http.post("/query", json=question | {"cache_salt": "s"}).json()
    assert salted["default"]["a"]["longest_matched"] == 0
    (stream,) = http.get("/streams").json()
    assert (stream["instance_id"], stream["events"], stream["seconds_behind"]) == ("a", 3, 0)
    gone = http.post("/unregister", json=one).json()
    assert gone["removed_instances"] == ["a|default|0"]
    assert http.post("/query", json=question).json() == {"default": {}}
    assert http.post("/events/a", content=batch(STORED)).status_code == 404


def test_a_snapshot_is_taken_over(client: Callable[..., TestClient]) -> None:
    """Only a controller that has heard nothing accepts a snapshot; nonsense is refused."""
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


def test_a_snapshot_that_comes_while_engines_talk_is_refused(
    client: Callable[..., TestClient],
) -> None:
    """It is never mixed with what engines announced; after a bad one, a good one is accepted."""
    first, second = client(), client()
    for http in (first, second):
        http.post("/register", json={"instance_id": "a"})
    first.post("/events/a", content=batch(STORED))
    taken = first.get("/snapshot").content

    def slowly() -> Iterator[bytes]:
        yield taken[:10]
        second.post("/events/a", content=batch(STORED))
        yield taken[10:]

    assert second.post("/restore", content=slowly()).status_code == 409
    second.post("/events/a", content=batch({"type": "AllBlocksCleared"}))
    assert second.post("/restore", content=taken[:-9]).status_code == 400
    assert second.post("/restore", content=taken).json() == {"blocks": 4}


def test_bodies_are_bounded(client: Callable[..., TestClient]) -> None:
    """All bodies are; a snapshot may be larger. Events that cannot be used are counted."""
    http = client(max_query_bytes=1000)
    http.post("/register", json={"instance_id": "a"})
    for path in ("/query", "/held", "/register", "/events/a"):
        assert http.post(path, content=b" " * 1001).status_code == 413
    assert http.post("/restore", content=b" " * 1001).status_code == 400
    odd = http.post("/events/a", content=batch({"type": "BlockMoved"}))
    assert odd.json() == {"events": 0, "refused": 1}


def test_engines_are_bounded(client: Callable[..., TestClient]) -> None:
    """Each engine takes a socket."""
    http = client(max_engines=2)
    answers = [http.post("/register", json={"instance_id": name}).status_code for name in "abc"]
    assert answers == [200, 200, 429]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/register", b'{"instance_id": "a\\u0000b"}', "instance_id"),
        ("/register", b'{"instance_id": "b", "endpoint": "nonsense"}', "endpoint"),
        ("/register", b'{"instance_id": "b", "replay_endpoint": "tcp://h:0"}', "replay_endpoint"),
        ("/register", b'{"instance_id": "b", "dp_rank": -1}', "dp_rank"),
        ("/query", b'{"token_ids": [NaN]}', "token_ids"),
        ("/query_by_hash", b'{"seq_hashes": [-1]}', "seq_hashes"),
        ("/query", b"[" * 10_000, ""),
        (f"/events/{'a' * 300}", b"", "instance_id"),
    ],
)
def test_bad_input_is_refused_by_name(
    client: Callable[..., TestClient], path: str, body: bytes, field: str
) -> None:
    """The answer names the field but does not repeat the input, which may be a prompt."""
    http = client()
    answer = http.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert field in answer.text
    assert "input" not in answer.text
    assert http.get("/streams").json() == []


def test_a_registration_as_mooncakes_clients_write_it(client: Callable[..., TestClient]) -> None:
    """Fields without a meaning here are ignored, and an empty address counts as none."""
    http = client()
    given = {
        "endpoint": "tcp://127.0.0.1:1",
        "replay_endpoint": "",
        "type": "vLLM",
        "modelname": "m",
        "instance_id": "engine-a",
        "block_size": 16,
        "dp_rank": 1,
    }
    assert http.post("/register", json=given).status_code == 200
    (stream,) = http.get("/streams").json()
    assert (stream["dp_rank"], stream["doubt"]) == (1, "not connected")
    question = {"model": "m", "lora_name": "", "block_hash": [1], "block_size": 16}
    held = {"longest_matched": 0, "GPU": 0, "CPU": 0, "DISK": 0, "DP": {"1": 0}}
    assert http.post("/query_by_hash", json=question).json() == {"default": {"engine-a": held}}
    gone = http.post("/unregister", json=given).json()
    assert gone["removed_instances"] == ["engine-a|default|1"]


def test_keys_let_in(client: Callable[..., TestClient]) -> None:
    """With keys, all paths but one need one, before anything is read of a body."""
    http = client({"ops": "0123456789abcdef"})
    assert http.get("/health/live").status_code == 200
    for path in ("/streams", "/openapi.json"):
        assert http.get(path).status_code == 401
    assert http.post("/query", content=b"[" * 1000).status_code == 401
    for wrong in (b"Bearer \xff\xfe", b"Bearer wrong", b"Basic 0123456789abcdef"):
        assert http.get("/streams", headers={b"authorization": wrong}).status_code == 401
    headers = {"authorization": "Bearer 0123456789abcdef"}
    assert http.get("/streams", headers=headers).json() == []
    document = http.get("/openapi.json", headers=headers).json()
    assert "HTTPBearer" in document["components"]["securitySchemes"]


@contextmanager
def controller(out: Path, *args: object) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run the command in a process of its own; yields its URL and the process."""
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
    """Its answers decide; once it is gone, decisions go by placements, and nothing fails."""
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
    settings.write_text(settings.read_text() + f"controller: {{url: '{url}', deadline: 5s}}\n")
    lines, _ = asyncio.run(check_live(load(settings)))
    assert f"pool default: controller {url}: answers" in lines
    assert sum("KV events: trusted, says the controller" in line for line in lines) == 2
    first = ask(router, text)
    until(lambda: sum(one["events"] for one in httpx.get(f"{url}/streams").json()) > 0)
    again = ask(router, text)
    assert again.headers["x-warmroute-worker"] == first.headers["x-warmroute-worker"]
    assert predicted(again) == cached(again) > 400
    assert again.headers["x-warmroute-decision"].startswith("prefix;")
    shown = {one["worker"]: one for one in router.http.get("/kv").json()}
    holder = first.headers["x-warmroute-worker"]
    assert (len(shown), shown[holder]["compared"], shown[holder]["doubt"]) == (2, 2, "")
    where = {"pool": "default", "worker": holder}
    assert router.metric("warmroute_kv_trusted", **where) == 1
    assert router.metric("warmroute_kv_error_tokens_bucket", le="+Inf", **where) == 2
    assert router.metric("warmroute_kv_wrong", **where) == 0
    assert router.http.get("/health/ready").json()["status"] == "ready"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert taken.stat().st_size > 100
    alone = ask(router, text)
    assert alone.headers["x-warmroute-decision"].startswith("prefix (no controller);")
    assert alone.headers["x-warmroute-worker"] == first.headers["x-warmroute-worker"]
    assert router.http.get("/health/ready").json()["status"] == "degraded"
    assert router.metric("warmroute_kv_trusted", **where) == 0
    assert router.metric("warmroute_kv_questions_total", pool="default", outcome="failed") == 1
    url, _ = stack.enter_context(controller(tmp_path, *args))
    question = {"token_ids": [1], "block_size": 16}
    assert httpx.post(f"{url}/query", json=question).status_code == 200
    until(lambda: {one["doubt"] for one in httpx.get(f"{url}/streams").json()} == {""})


def test_nothing_is_kept_of_a_controller_that_nobody_asks(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers can take many MiB, and settings may change often."""
    url, close, closed = stub().url, RemoteMemory.close, list[RemoteMemory]()

    async def closing(memory: RemoteMemory) -> None:
        closed.append(memory)
        await close(memory)

    monkeypatch.setattr(RemoteMemory, "close", closing)
    first = {"url": "http://127.0.0.1:1", "deadline": "20ms"}
    router = route(url, strategy="kvaware", controller=first, health=QUICK)
    for number in range(3):
        other = {**first, "deadline": f"{30 + number}ms"}
        change(router, url, strategy="kvaware", controller=other)
    ((_, last),) = router.door.memories.remotes()
    assert len(closed) == 3
    assert last not in closed
    change(router, url, strategy="leastload", controller=first)
    assert closed[3:] == [last]
