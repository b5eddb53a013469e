"""Two routers, mostly processes of their own, and a real Redis that comes and goes."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.commands import started
from tests.sessions.redis_server import RedisServer
from tests.support import MakeRouter, MakeStub, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
SESSION = "X-Amzn-SageMaker-Session-Id"


def invoke(url: str, body: dict[str, Any], session: str | None = None) -> httpx.Response:
    """Send what boto3 would send."""
    named = {SESSION: session} if session else {}
    return httpx.post(f"{url}/endpoints/x/invocations", json=body, headers=named, timeout=20)


def opened(url: str) -> str:
    """Open a session; return its id."""
    reply = invoke(url, {"requestType": "NEW_SESSION"}, "NEW_SESSION")
    assert reply.status_code == 200, reply.text
    return str(reply.headers["x-amzn-sagemaker-new-session-id"]).partition(";")[0]


def metric(url: str, line: str) -> float:
    """Return the value of one series."""
    for one in httpx.get(f"{url}/metrics").text.splitlines():
        if one.startswith(line + " "):
            return float(one.rpartition(" ")[2])
    return 0.0


class Pair(NamedTuple):
    """Two routers that share sessions."""

    redis: RedisServer
    urls: tuple[str, str]

    @property
    def up(self) -> bool:
        """Whether both report that the store is up."""
        return all(metric(url, 'warmroute_session_store_up{pool="default"}') for url in self.urls)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two processes, started as an operator would, with four workers."""
    folder = tmp_path_factory.mktemp("routers")
    with ExitStack() as stack:
        settings = FleetSettings(workers=4, profile="toy", models=("toy",), kv_events=False)
        fleet = stack.enter_context(FleetThread(settings))
        redis = stack.enter_context(RedisServer())
        urls = [_serve(stack, folder, name, fleet.urls, redis.url) for name in ("a", "b")]
        made = Pair(redis, (urls[0], urls[1]))
        until(lambda: made.up, 20)
        yield made


def _serve(stack: ExitStack, folder: Path, name: str, workers: list[str], redis: str) -> str:
    file = folder / f"{name}.yaml"
    session = {"ttl": "60s", "redis": {"url": redis, "timeout": "1500ms"}}
    told = {"listen": "127.0.0.1:0", "workers": workers, "strategy": "session", "session": session}
    file.write_text(json.dumps(told))
    running = stack.enter_context(started(folder, "serve", "--config", file))
    return running.url()


def test_opened_here_used_there_closed_here(pair: Pair) -> None:
    """The session stays on one worker, and a close holds for both routers."""
    one, other = pair.urls
    for first, second in ((one, other), (other, one)):
        key = opened(first)
        replies = [invoke(url, CHAT, key) for url in (second, first, second)]
        assert [reply.status_code for reply in replies] == [200] * 3
        assert len({reply.headers["x-warmroute-worker"] for reply in replies}) == 1
        assert {one["id"] for one in httpx.get(f"{second}/sessions").json()} >= {key}
        closed = invoke(first, {"requestType": "CLOSE"}, key)
        assert closed.headers["x-amzn-sagemaker-closed-session-id"] == key
        for url in (first, second):
            assert invoke(url, CHAT, key).status_code == 400
            assert invoke(url, {"requestType": "CLOSE"}, key).status_code == 400


def test_first_uses_at_once_agree(pair: Pair) -> None:
    """Requests to both routers at once bind an unknown id to one worker."""
    for number in range(10):
        seen: list[str] = []

        def ask(url: str, name: str, seen: list[str] = seen) -> None:
            named = {"x-session-id": name}
            reply = httpx.post(f"{url}/v1/chat/completions", json=CHAT, headers=named, timeout=20)
            seen.append(reply.headers["x-warmroute-worker"])

        threads = [
            threading.Thread(target=ask, args=(pair.urls[n % 2], f"both-{number}"))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 8
        assert len(set(seen)) == 1


def test_redis_dies_and_comes_back_in_mid_traffic(pair: Pair) -> None:
    """No request fails before, during or after the outage, and the metrics show it."""
    statuses: list[tuple[int, str]] = []
    over = threading.Event()
    keys = [opened(pair.urls[n % 2]) for n in range(6)]

    def go_on(number: int) -> None:
        mine = keys[number]
        for turn in range(10_000):
            if over.is_set():
                return
            url = pair.urls[turn % 2]
            replies = [invoke(url, CHAT, mine)]
            if turn % 5 == 0:
                replies.append(invoke(url, {"requestType": "NEW_SESSION"}, "NEW_SESSION"))
                fresh = replies[-1].headers.get("x-amzn-sagemaker-new-session-id", "")
                replies.append(invoke(pair.urls[1 - turn % 2], CHAT, fresh.partition(";")[0]))
            statuses.extend((reply.status_code, reply.text) for reply in replies)

    threads = [threading.Thread(target=go_on, args=(n,)) for n in range(len(keys))]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(statuses) > 30, 20)
        pair.redis.kill()
        until(lambda: not any(_up(url) for url in pair.urls), 20)
        at = len(statuses)
        until(lambda: len(statuses) > at + 60, 20)
        pair.redis.start()
        until(lambda: pair.up, 20)
        at = len(statuses)
        until(lambda: len(statuses) > at + 60, 20)
    finally:
        over.set()
        for thread in threads:
            thread.join(20)
    assert [one for one in statuses if one[0] != 200] == []
    for url in pair.urls:
        assert metric(url, 'warmroute_session_events_total{event="hashed",pool="default"}') > 0


def _up(url: str) -> float:
    return metric(url, 'warmroute_session_store_up{pool="default"}')


def test_while_redis_is_away_both_choose_alike(
    stub: MakeStub, route: MakeRouter, dead_url: str
) -> None:
    """By the id's hash, over all workers; if one is lost, its sessions and no others move."""
    stubs = {f"w{n}": stub() for n in range(3)}
    workers = [{"url": one.url, "name": name} for name, one in stubs.items()]
    redis = {"url": dead_url.replace("http", "redis")}
    routers = [route(*workers, strategy="session", session={"redis": redis}) for _ in range(2)]

    def chosen(number: int) -> str:
        named = {"x-session-id": f"s{number}"}
        replies = [
            router.http.post("/v1/chat/completions", json=CHAT, headers=named) for router in routers
        ]
        [where] = {reply.headers["x-warmroute-worker"] for reply in replies}
        assert all(one.headers["x-warmroute-session"].startswith("hashed;") for one in replies)
        return str(where)

    before = [chosen(number) for number in range(30)]
    assert set(before) == {"w0", "w1", "w2"}
    stubs["w1"].stop()
    named = {"x-session-id": f"s{before.index('w1')}"}
    for router in routers:
        reply = router.http.post("/v1/chat/completions", json=CHAT, headers=named)
        assert reply.status_code == 200
        until(lambda: not router.worker(1).ready)  # noqa: B023
    after = [chosen(number) for number in range(30)]
    moved = {now for then, now in zip(before, after, strict=True) if then == "w1"}
    assert moved == {"w0", "w2"}
    assert all(then in {now, "w1"} for then, now in zip(before, after, strict=True))


def test_a_request_without_a_session_is_not_hashed(
    stub: MakeStub, route: MakeRouter, dead_url: str
) -> None:
    """It succeeds while Redis is away, and is not counted as hashed."""
    rules = {"redis": {"url": dead_url.replace("http", "redis")}}
    router = route(stub().url, strategy="session", session=rules)
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert router.metric("warmroute_session_events_total", pool="default", event="hashed") == 0


def test_a_request_without_a_session_asks_nobody(
    stub: MakeStub, route: MakeRouter, redis: RedisServer
) -> None:
    """A Redis that hangs delays only requests with a session."""
    rules = {"redis": {"url": redis.url, "timeout": "60s"}}
    router = route(stub().url, strategy="session", session=rules)
    named = {"x-session-id": "any"}
    replies: list[httpx.Response] = []

    def ask() -> None:
        replies.append(router.http.post("/v1/chat/completions", json=CHAT, headers=named))

    waiting = threading.Thread(target=ask)
    with redis.hanging():
        waiting.start()
        until(lambda: router.door.dispatcher.scheduler.in_flight == 1)
        assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
        assert replies == []
    waiting.join(20)
    assert replies[0].headers["x-warmroute-session"].startswith("new;")
