"""Several routers, which are processes of their own, and a real Redis that comes and goes."""

import json
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.commands import started
from tests.sessions.asking import CHAT, CLOSE, HEADER, NEW, OPEN
from tests.sessions.redis_server import RedisServer
from tests.support import MakeStub, until


def invoke(url: str, body: dict[str, Any], session: str | None = None) -> httpx.Response:
    """Send what boto3 would send."""
    named = {HEADER: session} if session else {}
    return httpx.post(f"{url}/endpoints/x/invocations", json=body, headers=named, timeout=20)


def opened(url: str) -> str:
    """Open a session; return its id."""
    reply = invoke(url, OPEN, "NEW_SESSION")
    assert reply.status_code == 200, reply.text
    return str(reply.headers[NEW]).partition(";")[0]


def metric(url: str, line: str) -> float:
    """Return the value of one series."""
    for one in httpx.get(f"{url}/metrics").text.splitlines():
        if one.startswith(line + " "):
            return float(one.rpartition(" ")[2])
    return 0.0


def settings(folder: Path, name: str, **more: Any) -> Path:
    """Write a settings file."""
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps({"listen": "127.0.0.1:0", "strategy": "session", **more}))
    return file


@pytest.mark.long
def test_redis_dies_and_comes_back_in_mid_traffic(
    tmp_path: Path, stack: ExitStack, redis: RedisServer
) -> None:
    """What is opened here can be used there; no request fails before, during or after the outage,
    and the metrics show it; and what is closed here is closed there."""
    toys = FleetSettings(workers=4, profile="toy", models=("toy",), kv_events=False)
    fleet = stack.enter_context(FleetThread(toys))
    session = {"ttl": "60s", "redis": {"url": redis.url, "timeout": "1500ms"}}
    files = [settings(tmp_path, name, workers=fleet.urls, session=session) for name in "ab"]
    urls = [
        stack.enter_context(started(tmp_path, "serve", "--config", file)).url() for file in files
    ]

    def up() -> set[float]:
        return {metric(url, 'warmroute_session_store_up{pool="default"}') for url in urls}

    until(lambda: up() == {1.0}, 20)
    statuses: list[tuple[int, str]] = []
    over = threading.Event()
    keys = [opened(urls[n % 2]) for n in range(6)]

    def go_on(number: int) -> None:
        mine, turn = keys[number], 0
        while not over.is_set():
            turn, url = turn + 1, urls[turn % 2]
            replies = [invoke(url, CHAT, mine)]
            if turn % 5 == 0:
                replies.append(invoke(url, OPEN, "NEW_SESSION"))
                fresh = replies[-1].headers.get(NEW, "").partition(";")[0]
                replies.append(invoke(url, CHAT, fresh))
            statuses.extend((reply.status_code, reply.text) for reply in replies)

    threads = [threading.Thread(target=go_on, args=(n,)) for n in range(len(keys))]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(statuses) > 30, 20)
        redis.kill()
        until(lambda: up() == {0.0}, 20)
        at = len(statuses)
        until(lambda: len(statuses) > at + 60, 20)
        redis.start()
        until(lambda: up() == {1.0}, 20)
        at = len(statuses)
        until(lambda: len(statuses) > at + 60, 20)
    finally:
        over.set()
        for thread in threads:
            thread.join(20)
    assert [one for one in statuses if one[0] != 200] == []
    for url in urls:
        assert metric(url, 'warmroute_session_events_total{event="hashed",pool="default"}') > 0
    assert invoke(urls[0], CLOSE, keys[0]).status_code == 200
    for url in urls:
        assert [invoke(url, body, keys[0]).status_code for body in (CHAT, CLOSE)] == [400] * 2


def test_through_redis_any_process_knows(
    tmp_path: Path, stub: MakeStub, redis: RedisServer
) -> None:
    """A session keeps its worker, whichever process takes the connection."""
    workers = [stub().url for _ in range(3)]
    session = {"redis": {"url": redis.url, "timeout": "5s"}}
    file = settings(tmp_path, "settings", workers=workers, session=session)
    with started(tmp_path, "serve", "--config", file, "--processes", 2) as running:
        url = running.url()
        where: dict[str, set[str]] = {}
        for turn in range(4):
            for key in "abcd":
                named = {"x-session-id": key}
                reply = httpx.post(f"{url}/v1/chat/completions", json=CHAT, headers=named)
                assert reply.status_code == 200
                assert reply.headers["x-warmroute-session"].startswith("kept;") or turn == 0
                where.setdefault(key, set()).add(reply.headers["x-warmroute-worker"])
        assert all(len(workers) == 1 for workers in where.values())
        assert {one["id"] for one in httpx.get(f"{url}/sessions").json()} >= set(where)
        assert httpx.delete(f"{url}/sessions/a").status_code == 204
