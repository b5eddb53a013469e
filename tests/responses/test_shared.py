"""Several routers, or several processes of one, know of each other's responses."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.commands import Running, started
from tests.reload.changing import change
from tests.responses.asking import PATH, create, follow, get, made, owner
from tests.responses.conftest import MakeEngines
from tests.responses.engine import Engine
from tests.sessions.redis_server import RedisServer
from tests.support import MakeRouter, Router, error_of, until

Settings = dict[str, Any]


def pair(engines: list[Engine], route: MakeRouter, url: str, **more: Any) -> list[Router]:
    """Start two routers that use one Redis."""
    rules = {"redis": {"url": url, "timeout": "5s", **more}}
    urls = [one.url for one in engines]
    return [route(*urls, strategy="roundrobin", session=rules) for _ in range(2)]


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"background": True}])
def test_another_router_knows(
    engines: MakeEngines, route: MakeRouter, redis: RedisServer, fields: Settings
) -> None:
    """At once, whichever of them made it; also after that one has ended."""
    workers = engines(3)
    one, other = pair(workers, route, redis.url)
    for here, there in ((one, other), (other, one)):
        assert create(here, **fields).status_code == 200
        [name] = [name for worker in workers for name in worker.kept]
        assert get(there, name).status_code == 200
        assert follow(there, name, store=False).status_code == 200
        assert get(here, name).status_code == 200
        owner(workers, name).kept.clear()
    name = made(one)
    late = pair(workers, route, redis.url)[0]
    one.stop()
    assert follow(late, name).status_code == 200


def test_an_id_that_is_chosen_again_is_where_it_was_last(
    engines: MakeEngines, route: MakeRouter, redis: RedisServer
) -> None:
    """Clients of vLLM may choose ids: another router goes by the latest."""
    workers = engines(2)
    one, other = pair(workers, route, redis.url)
    made(one, request_id="resp_mine")
    owner(workers, "resp_mine").kept.clear()
    made(one, request_id="resp_mine")
    newest = owner(workers, "resp_mine")
    assert [len(worker.seen) for worker in workers] == [1, 1]
    assert get(other, "resp_mine").status_code == 200
    assert newest.seen[-1].method == "GET"


def test_an_id_in_the_middle_of_an_answer_is_told_too(
    engines: MakeEngines, route: MakeRouter, redis: RedisServer
) -> None:
    """When the answer has ended, if its first bytes do not have the id."""
    workers = engines(2)
    for worker in workers:
        worker.answers = [b"application/json", b'{"object":"response",', b'"id":"ID"}']
    one, other = pair(workers, route, redis.url)
    name = made(one)
    until(lambda: get(other, name).status_code == 200)


def test_while_redis_is_away_each_goes_by_what_it_knows(
    engines: MakeEngines, route: MakeRouter, redis: RedisServer
) -> None:
    """What is not known may be elsewhere: that is a 503, not a 404."""
    workers = engines(2)
    one, other = pair(workers, route, redis.url)
    before = made(one)
    redis.kill()
    try:
        during = made(one)
        for name in (before, during):
            assert get(one, name).status_code == 200
            assert follow(one, name).status_code == 200
            reply = get(other, name)
            assert reply.status_code == 503
            assert "retry-after" in reply.headers
            assert error_of(reply)["code"] == "no_worker"
    finally:
        redis.start()
    until(lambda: get(other, made(one)).status_code == 200)
    assert get(other, "resp_none").status_code == 404


def test_redis_can_be_given_and_taken_away(
    engines: MakeEngines, route: MakeRouter, redis: RedisServer
) -> None:
    """By a reload; what this router knows it goes on to know."""
    workers = engines(2)
    urls = [one.url for one in workers]
    router = route(*urls, strategy="roundrobin")
    name = made(router)
    rules = {"redis": {"url": redis.url, "timeout": "5s"}}
    change(router, *urls, strategy="roundrobin", session=rules)
    other = route(*urls, session=rules)
    shared = made(router)
    assert get(other, shared).status_code == 200
    change(router, *urls, strategy="roundrobin")
    assert get(other, made(router)).status_code == 404
    assert [get(router, one).status_code for one in (name, shared)] == [200, 200]


class Processes(NamedTuple):
    """One router of three processes, in front of four workers."""

    workers: list[Engine]
    running: Running
    client: httpx.Client
    """Each of its requests comes on a connection of its own, so to any of the processes."""

    def children(self) -> set[int]:
        """Return the processes that serve."""
        pid = self.running.process.pid
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
        return set(map(int, found.split()))


@pytest.fixture
def processes(engines: MakeEngines, tmp_path: Path) -> Iterator[Processes]:
    """Start it."""
    workers = engines(4)
    file = tmp_path / "settings.yaml"
    told = {"listen": "127.0.0.1:0", "workers": [one.url for one in workers]}
    file.write_text(json.dumps({**told, "strategy": "roundrobin"}))
    with ExitStack() as stack:
        serve = started(tmp_path, "serve", "--config", file, "--processes", 3)
        running = stack.enter_context(serve)
        apart = {"connection": "close"}
        client = httpx.Client(base_url=running.url(), timeout=20, headers=apart)
        yield Processes(workers, running, stack.enter_context(client))


def test_another_process_knows_at_once(processes: Processes) -> None:
    """Whichever process takes the next connection."""
    client, workers = processes.client, processes.workers
    for turn in range(10):
        body = {"model": "m", "input": "x", "stream": turn % 2 == 1}
        assert client.post(PATH, json=body).status_code == 200
        [name] = [name for worker in workers for name in worker.kept]
        for _ in range(4):
            assert client.get(f"{PATH}/{name}").status_code == 200
            more = {**body, "previous_response_id": name, "store": False}
            assert client.post(PATH, json=more).status_code == 200
        owner(workers, name).kept.clear()
    assert client.get(f"{PATH}/resp_none").status_code == 404


@pytest.mark.long
def test_a_process_that_starts_later_asks_the_others(processes: Processes) -> None:
    """One that replaces another has heard of nothing, but finds everything."""
    client = processes.client
    names = [client.post(PATH, json={"model": "m", "input": "x"}).json()["id"] for _ in range(6)]
    before = processes.children()
    os.kill(min(before), signal.SIGKILL)
    port = processes.running.port()
    until(lambda: any(_listens(pid, port) for pid in processes.children() - before), 20)
    for _ in range(6):
        assert {client.get(f"{PATH}/{name}").status_code for name in names} == {200}


def _listens(pid: int, port: int) -> bool:
    """Whether a process accepts connections at a port."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]]
    there = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}")}
    with suppress(FileNotFoundError):
        return any(str(one.readlink()) in there for one in Path(f"/proc/{pid}/fd").iterdir())
    return False
