"""Settings other than workers, changed while the router runs."""

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from router.fleet import build as rebuild
from router.fleet.build import CannotBuild
from router.prompt.prompts import UNKNOWN_MODEL
from strategies.api import Candidate, NoOptions, Outcome, Prompt, Strategy, WorkerView
from strategies.policies.least_load import LeastLoad
from strategies.registry import make
from tests.reload.changing import (
    CHAT,
    CHUNK,
    QUIET,
    SSE,
    TEXT,
    answered_by,
    change,
    chat,
)
from tests.support import MakeRouter, MakeStub, error_of, head, post, read_all, send, until

KEYS = [{"name": name, "key": f"${{{name.upper()}}}"} for name in ("one", "two")]


class Watchful(LeastLoad):
    """A strategy that records its calls."""

    def __init__(self) -> None:
        super().__init__(NoOptions())
        self.placed_on: list[str] = []
        self.settled_on: list[str] = []
        self.forgotten: list[str] = []

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        super().placed(prompt, worker, now)
        self.placed_on.append(worker.name)

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        super().settled(prompt, candidate, outcome, now)
        self.settled_on.append(candidate.worker.name)

    def forget(self, worker: str) -> None:
        self.forgotten.append(worker)
        raise ValueError("and it does not like it")


def test_a_strategy_settles_what_it_placed(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new strategy takes new requests; the old one is told how those that it placed end."""
    made: list[Watchful] = []

    def watchful(name: str, options: Mapping[str, object]) -> Strategy:
        made.append(Watchful())
        return made[-1]

    monkeypatch.setattr(rebuild, "make", watchful)
    worker = stub([SSE + CHUNK, "stall"])
    router = route(worker.url, strategy="leastload", health=QUIET)
    with post(router.port, CHAT, b'{"model":"m","messages":[],"stream":true}') as client:
        assert client.recv(65536)
        change(router, worker.url, strategy="leastload")
        assert len(made) == 1
        change(router, worker.url, strategy="roundrobin")
        old, new = made
        with post(router.port, CHAT, b'{"model":"m","messages":[],"stream":true}') as other:
            assert other.recv(65536)
    name = router.worker().name
    until(lambda: old.settled_on == [name] and new.settled_on == [name])
    assert (old.placed_on, new.placed_on) == ([name], [name])
    until(router.idle)


def test_a_strategy_that_fails_to_forget(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a strategy raises in `forget`, the worker is removed all the same."""
    strategy = Watchful()
    monkeypatch.setattr(rebuild, "make", lambda *_: strategy)
    old, new = stub(), stub()
    router = route(old.url, health=QUIET)
    name = router.worker().name
    change(router, new.url)
    assert strategy.forgotten == [name]
    assert answered_by(router.http.post(CHAT, json=chat())) == new.url.removeprefix("http://")


def test_other_options_are_another_strategy(stub: MakeStub, route: MakeRouter) -> None:
    """Only changed options make a new strategy; defaults, written out or not, are the same."""
    worker = stub()
    router = route(worker.url, health=QUIET)
    before = router.door.fleet.pools[0]
    before.prompts.estimates.bytes_per_token = 2.5
    same: Any
    for same in ("prefixaware", {"name": "prefixaware", "memory": "64MiB"}):
        change(router, worker.url, strategy=same)
        assert router.door.fleet.pools == (before,)
    change(router, worker.url, strategy={"name": "prefixaware", "memory": "1MiB"})
    (after,) = router.door.fleet.pools
    assert after.strategy is not before.strategy
    assert after.workers == before.workers
    assert after.prompts.estimates.bytes_per_token == 2.5
    change(router, worker.url)
    assert router.door.fleet.pools[0] not in (before, after)


def test_counters_do_not_fall(stub: MakeStub, route: MakeRouter) -> None:
    """Prompts that were counted under another strategy stay counted."""
    worker = stub()
    router = route(worker.url, strategy="prefixaware", health=QUIET)

    def counted() -> tuple[float, float]:
        labels = {"pool": "default", "reason": UNKNOWN_MODEL}
        by_text = router.metric("warmroute_prompts_by_text_total", **labels)
        return by_text, router.metric("warmroute_prompts_total", pool="default", keyed="text")

    for turn, strategy in enumerate(("prefixaware", "roundrobin", "kvaware"), 1):
        change(router, worker.url, strategy=strategy)
        assert counted() == (turn - 1, turn - 1)
        change(router, worker.url, strategy="prefixaware")
        answered_by(router.http.post(CHAT, json=chat()))
        assert counted() == (turn, turn)


def test_bounds_and_keys(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New limits and keys apply from the next request on."""
    for key in KEYS:
        monkeypatch.setenv(key["name"].upper(), f"the-key-of-{key['name']}-long-enough")
    worker = stub()
    router = route(worker.url, auth={"keys": KEYS[:1]}, health=QUIET)

    def ask(name: str, text: str = "hi", **headers: str) -> int:
        headers["authorization"] = f"Bearer the-key-of-{name}-long-enough"
        return router.http.post(CHAT, json=chat(text), headers=headers).status_code

    assert [ask("one", TEXT), ask("two")] == [200, 401]
    change(router, worker.url, auth={"keys": KEYS[1:]}, limits={"body": "1kB"})
    assert [ask("one"), ask("two")] == [401, 200]
    assert ask("two", TEXT) == 413
    change(router, worker.url, auth={"keys": KEYS}, limits={"headers": "1kB", "n": 1})
    assert [ask("one"), ask("two"), ask("two", x="y" * 1000)] == [200, 200, 431]
    refused = router.http.post(
        CHAT,
        json={**chat(), "n": 2},
        headers={"authorization": "Bearer the-key-of-one-long-enough"},
    )
    assert error_of(refused)["param"] == "n"


def test_bounds_of_a_connection_that_stands(stub: MakeStub, route: MakeRouter) -> None:
    """A kept-alive client connection gets the new idle timeout with its next request."""
    worker = stub()
    router = route(worker.url, health=QUIET)
    assert router.http.get("/health/live").status_code == 200
    (kept,) = router.door.clients
    change(router, worker.url, clients={"keepalive": "100ms"})
    assert router.http.get("/health/live").status_code == 200
    assert kept in router.door.clients
    until(lambda: not router.door.clients)


def test_bounds_of_a_head_that_comes_again(stub: MakeStub, route: MakeRouter) -> None:
    """A head repeated on the same connection is checked against the new limits."""
    worker = stub()
    router = route(worker.url, health=QUIET)
    body = json.dumps(chat()).encode()
    asked = head(CHAT, len(body), b"x-long: " + b"x" * 2000) + body
    with send(router.port, b"") as client:
        for times in (1, 2):
            client.sendall(asked)
            until(lambda times=times: len(worker.requests) == times)  # type: ignore[misc]
            until(router.idle)
        change(router, worker.url, limits={"headers": "1kB"})
        client.sendall(asked)
        assert b"HTTP/1.1 431 " in read_all(client)
    assert len(worker.requests) == 2


def test_health_and_logs(
    stub: MakeStub, route: MakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """Another interval of probes, number of failures and logging of requests apply at once."""
    broken, well = stub(["close"]), stub()
    urls = [broken.url, well.url]
    router = route(*urls, strategy="roundrobin", health=QUIET)
    caplog.set_level("INFO")
    assert len(well.probes) == 1
    health = {"interval": "10ms", "ejection": {"failures": 1, "first": "5m"}}
    change(router, *urls, strategy="roundrobin", health=health, logs={"requests": True})
    until(lambda: len(well.probes) > 5)
    statuses = [router.http.post(CHAT, json=chat()).status_code for _ in range(6)]
    assert sorted(statuses) == [200] * 5 + [502]
    until(lambda: "status=200" in caplog.text)


@pytest.mark.parametrize("fails_at", [1, 2])
def test_what_cannot_be_made_changes_nothing(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """If a strategy cannot be made, pools, workers and all other settings stay as they were."""
    one, two, three = stub(), stub(model="n"), stub()
    pools: list[dict[str, Any]] = [
        {"name": "a", "models": ["m"], "workers": [one.url]},
        {"name": "b", "workers": [two.url]},
    ]
    router = route(pools=pools, health=QUIET)
    before = router.door.fleet.pools
    workers = list(router.door.fleet.workers)
    calls = itertools.count(1)

    def moody(name: str, options: dict[str, object]) -> Strategy:
        if next(calls) == fails_at:
            raise RuntimeError("not today")
        return make(name, options)

    monkeypatch.setattr(rebuild, "make", moody)
    pools[0]["workers"] = [one.url, three.url]
    with pytest.raises(CannotBuild, match="roundrobin cannot be made: RuntimeError: not today"):
        change(router, pools=pools, strategy="roundrobin", limits={"body": "1kB"})
    assert router.door.fleet.pools == before
    assert list(router.door.fleet.workers) == workers
    assert all(worker.ready for worker in workers)
    assert three.probes == []
    assert router.http.post(CHAT, json=chat(TEXT)).status_code == 200
    change(router, pools=pools, strategy="roundrobin")
    names = {answered_by(router.http.post(CHAT, json=chat())) for _ in range(2)}
    assert names == {one.url.removeprefix("http://"), three.url.removeprefix("http://")}
