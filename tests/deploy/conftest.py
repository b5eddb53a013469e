"""The metrics of routers and a controller, after everything happened that creates series."""

import json
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller.index.block_events import BlockStored, Tier
from tests.authority import Authority
from tests.commands import started
from tests.kvaware.test_controller import controller
from tests.support import MakeRouter, MakeStub, Router, Stub, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest.fixture
def scraped(stub: MakeStub, route: MakeRouter, tmp_path: Path, stack: ExitStack) -> list[str]:
    """The metrics of three routers and a controller.

    One router has answered, failed and refused; one keeps sessions and hears of blocks; one has two
    processes, which ask the controller.
    """
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1,'
    usage += b'"prompt_tokens_details":{"cached_tokens":3}}}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    worker = stub([head % len(usage) + usage])
    router = route(worker.url, limits={"attempts": 1})
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    worker.script = ["close"]
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 502
    until(router.idle)
    both = (router, remembering(stub([head % len(usage) + usage]), route))
    urls = [one.url for one in both]
    urls += together(stub([head % len(usage) + usage]), tmp_path, stack)
    with httpx.Client(verify=False) as http:  # noqa: S501 - not what is looked at here
        return [http.get(f"{url}/metrics").raise_for_status().text for url in urls]


@pytest.fixture
def exported(scraped: list[str]) -> dict[str, set[str]]:
    """The label names of each series."""
    found: dict[str, set[str]] = {}
    for text in scraped:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found


def remembering(worker: Stub, route: MakeRouter) -> Router:
    """Start a router that keeps sessions, has KV blocks, and asks a store."""
    store = {"l2": {"lmcache": {"redis": "redis://127.0.0.1:1"}}}
    router = route(worker.url, strategy={"name": "session", "over": "kvaware"}, tiers=store)
    named = {"x-session-id": "one"}
    answer = router.http.post("/v1/chat/completions", json=CHAT, headers=named)
    assert answer.status_code == 200
    until(router.idle)
    ((pool, memory),) = router.door.memories.pools()
    source = memory.join(pool.workers[0].name)
    block = BlockStored([1], None, bytes(64), 16, Tier.GPU, False, "", None, None, None)
    memory.index.store(source.name, block)
    return router


def together(worker: Stub, folder: Path, stack: ExitStack) -> list[str]:
    """Start a router with two processes and TLS, and its controller; return both URLs."""
    settings = {
        "listen": "127.0.0.1:0",
        "workers": [worker.url],
        "strategy": {"name": "kvaware"},
    }
    file = folder / "controller.yaml"
    file.write_text(json.dumps(settings))
    args = ("--config", file, "--listen", "127.0.0.1:0", "--snapshot", folder / "index")
    asked, _ = stack.enter_context(controller(folder, *args))
    file = folder / "router.yaml"
    door = Authority(folder / "ours").issue()
    file.write_text(json.dumps({**settings, "controller": asked, "tls": door}))
    running = started(folder, "serve", "--config", file, "--processes", 2)
    return [stack.enter_context(running).url(), asked]
