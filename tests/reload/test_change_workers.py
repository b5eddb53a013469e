"""Workers added, removed and changed while the router runs, without clients noticing."""

import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.pems import write_pems
from tests.reload.changing import (
    CHAT,
    CHUNK,
    END,
    QUIET,
    SSE,
    STREAM,
    TEXT,
    answered_by,
    change,
    chat,
    load,
)
from tests.support import MakeRouter, MakeStub, Router, Stub, post, until


def test_nobody_notices(stub: MakeStub, route: MakeRouter) -> None:
    """No request fails during many changes of workers, names, pools and strategies."""
    urls = [stub(STREAM).url for _ in range(4)]
    router = route(*urls[:2], health=QUIET)
    sets: list[dict[str, Any]] = [
        {"workers": urls},
        {"workers": urls[2:]},
        {"workers": urls[1:3], "strategy": "leastload"},
        {"workers": [{"url": urls[0], "name": "a"}, {"url": urls[1], "name": "b"}]},
        {"workers": [{"url": urls[1], "name": "a"}, {"url": urls[0], "name": "b"}]},
        {"workers": urls[:1], "strategy": "roundrobin", "timeouts": {"idle": "3m"}},
        {"pools": [{"name": "p", "models": ["m"], "workers": urls[1:]}]},
        {
            "pools": [
                {"name": "p", "models": ["x*"], "workers": urls[1:2]},
                {"name": "q", "workers": [urls[0], urls[3]]},
            ]
        },
        {"workers": urls[:2]},
    ]
    with load(router.url) as outcomes:
        for settings in sets * 3:
            enough = len(outcomes) + 8
            change(router, **settings)
            until(lambda enough=enough: len(outcomes) > enough)  # type: ignore[misc]
    assert set(outcomes) == {200}
    until(router.idle)
    assert [worker.url for worker in router.door.fleet.workers] == urls[:2]


def test_what_a_worker_keeps(stub: MakeStub, route: MakeRouter) -> None:
    """A worker that stays is the same object, with its connections and pace, if others change."""
    workers = [stub(), stub(), stub()]
    router = route(*(w.url for w in workers[:2]), strategy="roundrobin", health=QUIET)
    before = list(router.door.fleet.workers)
    before[0].pace.slower = 3.0
    for _ in range(2):
        router.http.post(CHAT, json=chat())
    until(router.idle)
    connections = [worker.connections for worker in workers]
    turns = {"strategy": "roundrobin"}
    waiting = {"timeouts": {"queue": "1m"}}
    change(router, *(w.url for w in workers), limits={"attempts": 1}, **waiting, **turns)
    assert list(router.door.fleet.workers)[:2] == before
    assert router.worker().pace.slower == 3.0
    assert sum(worker.upstream.idle for worker in before) == 2
    change(router, *(w.url for w in workers[:2]), **turns)
    for _ in range(2):
        router.http.post(CHAT, json=chat())
    assert [worker.connections for worker in workers[:2]] == connections[:2]


def test_a_conversation_goes_on(stub: MakeStub, route: MakeRouter) -> None:
    """A prompt goes to the worker with its prefix, though other workers and settings changed."""
    urls = [stub().url for _ in range(3)]
    router = route(*urls[:2], health=QUIET)
    name = answered_by(router.http.post(CHAT, json=chat(TEXT)))
    until(router.idle)
    url = "http://" + name
    changes: list[list[str | dict[str, Any]]] = [
        [*urls],
        [urls[2], {"url": url, "kv_tokens": 100_000}],
        [url, urls[2]],
    ]
    for workers in changes:
        change(router, *workers, timeouts={"total": "off"})
        again = router.http.post(CHAT, json=chat(TEXT))
        assert answered_by(again) == name
        assert again.headers["x-warmroute-decision"].startswith("prefix;")
        until(router.idle)


def begun(router: Router, model: str = "m") -> socket.socket:
    """Start a stream and read until its first event has arrived."""
    body = b'{"model":"%b","messages":[],"stream":true}' % model.encode()
    client = post(router.port, CHAT, body)
    data = b""
    while CHUNK not in data:
        data += client.recv(65536)
    return client


def test_a_worker_that_leaves_ends_what_it_has(stub: MakeStub, route: MakeRouter) -> None:
    """A removed worker finishes its stream, gets nothing new, and its connections are closed."""
    old, new = stub([SSE + CHUNK, 1.0, CHUNK + END]), stub()
    router = route(old.url, health=QUIET)
    with begun(router) as stream:
        assert router.http.get("/workers").json()[0]["in_flight"] == 1
        (left,) = change(router, new.url)
        assert not left.ready
        assert answered_by(router.http.post(CHAT, json=chat())) == new.url.removeprefix("http://")
        stream.settimeout(10)
        data = b""
        while not data.endswith(END):
            data += stream.recv(65536)
    assert CHUNK in data
    until(lambda: left.load.in_flight == 0)
    until(lambda: not (left.upstream.kept or left.upstream.in_use))
    assert len(old.requests) == 1


@pytest.mark.parametrize("successor", ["old", "new"])
def test_what_is_forgotten_of_a_worker_that_leaves(
    stub: MakeStub, route: MakeRouter, successor: str
) -> None:
    """A removed worker's prefixes and gauges are deleted, and it is not probed any more. A new URL
    under its name holds none of its prefixes."""
    old, new = stub(), stub()
    router = route({"url": old.url, "name": "old"}, health={"interval": "10ms"})
    router.http.post(CHAT, json=chat(TEXT))
    until(router.idle)
    labels = {"pool": "default", "worker": "old"}
    assert router.metric("warmroute_prefix_tree_blocks", pool="default") > 0
    value = router.door.metrics.registry.get_sample_value
    assert value("warmroute_worker_up", labels) == 1
    change(router, {"url": new.url, "name": successor}, health={"interval": "10ms"})
    assert router.metric("warmroute_prefix_tree_blocks", pool="default") == 0
    for family in ("worker_up", "in_flight", "kv_tokens_booked", "pace_factor"):
        assert (value(f"warmroute_{family}", labels) is None) == (successor != "old")
    passed, probes = len(new.probes), len(old.probes)
    until(lambda: len(new.probes) > passed + 5)
    assert len(old.probes) == probes


def test_a_newcomer_that_does_not_answer_holds_nobody_up(stub: MakeStub, route: MakeRouter) -> None:
    """While a silent newcomer is probed, requests are answered by the old workers."""
    old = stub()
    router = route(old.url, health={"timeout": "1h", **QUIET})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        health = {"timeout": "1h", **QUIET}
        changing = threading.Thread(
            target=change, args=(router, old.url, url), kwargs={"health": health}
        )
        changing.start()
        probe, _ = silent.accept()
        assert answered_by(router.http.post(CHAT, json=chat()))
        assert len(list(router.door.fleet.workers)) == 1
        probe.close()
        changing.join(20)
    assert len(list(router.door.fleet.workers)) == 2


def cache_of(blocks: int) -> bytes:
    """A worker's metrics that tell of a cache of so many blocks of 16 tokens."""
    text = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="%d"} 1\n' % blocks
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text)


def test_settings_of_a_worker_that_stays(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Key, models and cache size can be changed; if removed, models and cache are learned again."""
    monkeypatch.setenv("ONE", "key-one")
    monkeypatch.setenv("TWO", "key-two")
    worker = stub()
    worker.fixed[b"/metrics"] = cache_of(1000)
    router = route({"url": worker.url, "api_key": "${ONE}"}, health={"interval": "10ms"})
    same = router.worker()
    assert same.room_tokens == 16_000
    router.http.post(CHAT, json=chat())
    given = {"url": worker.url, "api_key": "${TWO}", "models": ["x"], "kv_tokens": 5000}
    change(router, given)
    assert router.http.post(CHAT, json=chat()).status_code == 404
    router.http.post(CHAT, json=chat(model="x"))
    heads = [request.partition(b"\r\n\r\n")[0] for request in worker.requests]
    assert [b"Bearer key-one" in heads[0], b"Bearer key-two" in heads[1]] == [True, True]
    assert same.room_tokens == 5000
    worker.fixed[b"/metrics"] = cache_of(2000)
    change(router, worker.url, health={"interval": "10ms"})
    until(lambda: set(same.models) == {"m"})
    until(lambda: same.room_tokens == 32_000)
    assert router.worker() is same


def test_patience_with_a_worker_that_stays(stub: MakeStub, route: MakeRouter) -> None:
    """A running request keeps the idle timeout it began with; new requests get the new one."""
    worker = stub([SSE + CHUNK, "stall"])
    router = route(worker.url, health=QUIET)
    with begun(router) as stream:
        change(router, worker.url, timeouts={"idle": "150ms"})
        with begun(router) as other:
            data = b""
            while not data.endswith(END):
                data += other.recv(65536)
            assert b"sent nothing for too long" in data
        change(router, worker.url, timeouts={"idle": "1h"})
        assert router.worker().load.in_flight == 1
        stream.setblocking(False)
        with pytest.raises(BlockingIOError):
            stream.recv(1)


def test_certificates_for_workers(tmp_path: Path, route: MakeRouter) -> None:
    """A changed CA file gives a worker a new TLS context; otherwise all connections stay."""
    write_pems(tmp_path)
    roots = tmp_path / "roots.pem"
    shutil.copy(tmp_path / "one.pem", roots)
    given: list[dict[str, Any]] = [
        {"url": "https://127.0.0.1:1", "name": "private", "tls": {"ca": str(roots)}},
        {"url": "https://127.0.0.1:2", "name": "public"},
    ]
    router = route(*given, health=QUIET)
    private, public = router.door.fleet.workers
    before = [worker.upstream for worker in (private, public)]
    assert before[0].tls is not before[1].tls
    change(router, *given)
    assert [worker.upstream for worker in (private, public)] == before
    shutil.copy(tmp_path / "two.pem", roots)
    change(router, *given)
    assert private.upstream.tls not in (None, before[0].tls, before[1].tls)
    assert public.upstream is before[1]


def test_a_worker_that_moves(stub: MakeStub, route: MakeRouter) -> None:
    """A worker moved to another pool keeps its connections; its old pool forgets its prefixes."""
    one, two = stub(), stub(model="n")
    pools = [
        {"name": "a", "models": ["m"], "workers": [one.url]},
        {"name": "b", "workers": [two.url]},
    ]
    router = route(pools=pools, health=QUIET)
    router.http.post(CHAT, json=chat(TEXT))
    until(router.idle)
    moved = router.worker()
    pools = [
        {"name": "a", "models": ["n"], "workers": [two.url]},
        {"name": "b", "workers": [one.url]},
    ]
    assert change(router, pools=pools) == []
    assert router.door.fleet.pools[1].workers == (moved,)
    assert router.metric("warmroute_prefix_tree_blocks", pool="a") == 0
    connections = one.connections
    assert answered_by(router.http.post(CHAT, json=chat(TEXT)))
    assert one.connections == connections
    assert router.metric("warmroute_requests_total", pool="b", worker=moved.name, status="2xx") == 1


def test_those_who_wait_are_served_by_a_newcomer(stub: MakeStub, route: MakeRouter) -> None:
    """A queued request may be answered by a worker that was added after it came."""
    busy: Stub = stub([SSE + CHUNK, "stall"])
    fresh = stub()
    limits = {"in_flight": 1}
    urls = [busy.url, fresh.url]
    beside = [  # the busy worker stays in a pool of the same name, which no longer has the model
        {"name": "default", "models": ["n"], "workers": [busy.url]},
        {"name": "other", "workers": [fresh.url]},
    ]
    for again, reason in (
        ({"workers": urls}, b"cold"),
        ({"workers": urls, "strategy": "leastload"}, b"load"),
        ({"pools": [{"name": "other", "workers": urls}], "strategy": "roundrobin"}, b"turn"),
        ({"pools": beside, "strategy": "leastload"}, b"load"),
    ):
        router = route(busy.url, limits=limits, health=QUIET)
        with begun(router), post(router.port, CHAT, b'{"model":"m","messages":[]}') as waiting:
            until(lambda router=router: router.metric("warmroute_queue_length") == 1)  # type: ignore[misc]
            change(router, limits=limits, **again)
            waiting.settimeout(10)
            answer = waiting.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert b"x-warmroute-decision: " + reason in answer
        router.stop()
