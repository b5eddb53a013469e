"""Every endpoint reaches a worker, and every model is routed to its pool."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.support import JSON, MakeRouter, MakeStub, Router, Stub, error_of, until

TEXT = [{"role": "user", "content": "hello"}]
TWO = {"text_1": "a", "text_2": ["b", "c"]}
RANK = {"query": "a", "documents": ["b", "c"]}

Check = Callable[[Any], object]
CASES: dict[str, tuple[dict[str, Any], Check]] = {
    "/v1/chat/completions": ({"messages": TEXT}, lambda a: a["choices"][0]["message"]["content"]),
    "/v1/completions": ({"prompt": "x"}, lambda a: a["choices"][0]["text"]),
    "/v1/responses": ({"input": "x"}, lambda a: a["output"][0]["content"][0]["text"]),
    "/v1/messages": ({"messages": TEXT, "max_tokens": 9}, lambda a: a["content"][0]["text"]),
    "/v1/embeddings": ({"input": "x"}, lambda a: a["data"][0]["embedding"]),
    "/v1/messages/count_tokens": ({"messages": TEXT}, lambda a: a["input_tokens"] > 0),
    "/v1/rerank": (RANK, lambda a: len(a["results"]) == 2),
    "/v2/rerank": (RANK, lambda a: len(a["results"]) == 2),
    "/rerank": (RANK, lambda a: len(a["results"]) == 2),
    "/v1/score": (TWO, lambda a: len(a["data"]) == 2),
    "/score": (TWO, lambda a: len(a["data"]) == 2),
    "/pooling": ({"input": "x"}, lambda a: a["data"]),
    "/classify": ({"input": "x"}, lambda a: a["data"]),
    "/tokenize": ({"prompt": "one two three"}, lambda a: a["count"] == len(a["tokens"]) > 0),
    "/detokenize": ({"tokens": [101, 102]}, lambda a: "prompt" in a),
    "/v1/audio/transcriptions": ({}, lambda a: a["text"]),
    "/v1/audio/translations": ({}, lambda a: a["text"]),
}


@pytest.fixture(scope="module")
def door() -> Iterator[Router]:
    """A router in front of two simulated workers."""
    with ExitStack() as stack:
        settings = FleetSettings(workers=2, profile="toy", models=("toy",), kv_events=False)
        fleet = stack.enter_context(FleetThread(settings))
        made = Router({"workers": fleet.urls})
        stack.callback(made.stop)
        yield made


@pytest.mark.parametrize("path", sorted(set(ENDPOINTS) - set(CASES)))
def test_every_other_path_is_relayed(stub: MakeStub, route: MakeRouter, path: str) -> None:
    """A worker gets the body as it came at the same path, and its answer comes back."""
    worker = stub()
    router = route(worker.url)
    reply = router.http.post(path, content=b'{"model": "m", "anything": [1, {}]}')
    assert (reply.status_code, reply.content) == (200, JSON)
    line, _, body = worker.requests[-1].partition(b"\r\n")
    assert line == b"POST %b HTTP/1.1" % path.encode()
    assert body.endswith(b'\r\n\r\n{"model": "m", "anything": [1, {}]}')
    until(router.idle)


@pytest.mark.parametrize("path", CASES)
def test_every_path_is_served(door: Router, path: str) -> None:
    """A worker answers each endpoint with what it is for."""
    body, check = CASES[path]
    if ENDPOINTS[path].form:
        reply = door.http.post(path, data={"model": "toy"}, files={"file": ("a", b"\0" * 9000)})
    else:
        reply = door.http.post(path, json={"model": "toy", **body})
    assert reply.status_code == 200, reply.text
    assert check(reply.json())
    assert reply.headers["x-warmroute-worker"]
    assert reply.headers["content-type"] == "application/json"
    until(door.idle)


def test_the_longest_pattern_wins(stub: MakeStub, route: MakeRouter) -> None:
    """An exact pattern beats a prefix, a longer prefix a shorter one; `*` takes the rest."""
    models = ("meta/llama-70b", "meta/llama-8b", "meta/opt", "qwen", "meta/llama-70b-x")
    pools = ("exact", "longer", "shorter", "rest", "longer")
    workers = {model: stub(model=model) for model in models}
    patterns = {
        "rest": ["*"],
        "shorter": ["meta/*"],
        "longer": ["meta/llama*"],
        "exact": ["meta/llama-70b"],
    }
    router = route(
        pools=[
            {
                "name": name,
                "models": taken,
                "strategy": "roundrobin",
                "workers": [
                    workers[m].url for m, p in zip(models, pools, strict=True) if p == name
                ],
            }
            for name, taken in patterns.items()
        ],
        health={"interval": "1h"},
    )
    for model in models:
        reply = router.http.post("/v1/chat/completions", json={"model": model, "messages": TEXT})
        assert reply.status_code == 200
        assert len(workers[model].requests) == 1
    # The pattern alone decides the pool, even if no worker there has the model.
    reply = router.http.post("/v1/chat/completions", json={"model": "meta/none", "messages": TEXT})
    assert error_of(reply)["code"] == "model_not_found"


def test_a_pool_is_not_helped_by_another(stub: MakeStub, route: MakeRouter) -> None:
    """A model belongs to one pool, even while that pool is down."""
    first, second = stub(model="m"), stub(model="m")
    router = route(
        pools=[
            {"name": "a", "models": ["m"], "workers": [first.url]},
            {"name": "b", "models": ["*"], "workers": [second.url]},
        ],
        health={"interval": "20ms"},
    )
    body = {"model": "m", "messages": TEXT}
    assert router.http.post("/v1/chat/completions", json=body).status_code == 200
    first.well = False
    until(lambda: not router.worker(0).ready)
    assert router.http.post("/v1/chat/completions", json=body).status_code == 503
    assert second.requests == []


def test_several_models_in_one_pool(stub: MakeStub, route: MakeRouter) -> None:
    """Each request goes to a worker that serves its model."""
    workers: dict[str, Stub] = {name: stub(model=name) for name in ("a", "b")}
    router = route(*(w.url for w in workers.values()), strategy="roundrobin")
    for _ in range(3):
        for name in workers:
            body = {"model": name, "messages": TEXT}
            assert router.http.post("/v1/chat/completions", json=body).status_code == 200
    for name, worker in workers.items():
        assert len(worker.requests) == 3
        assert all(b'"model":"%b"' % name.encode() in request for request in worker.requests)


def test_a_model_that_moved(stub: MakeStub, route: MakeRouter) -> None:
    """A worker that comes back with another model gets requests for that one only."""
    worker = stub(model="old")
    router = route(worker.url, health={"interval": "20ms"})
    old, new = ({"model": name, "messages": TEXT} for name in ("old", "new"))
    assert router.http.post("/v1/chat/completions", json=old).status_code == 200
    assert router.http.post("/v1/chat/completions", json=new).status_code == 404
    worker.well = False
    until(lambda: not router.worker().ready)
    assert router.http.post("/v1/chat/completions", json=old).status_code == 503
    worker.fixed[b"/v1/models"] = worker.fixed[b"/v1/models"].replace(b'"old"', b'"new"')
    worker.well = True
    until(lambda: router.worker().ready)
    assert router.http.post("/v1/chat/completions", json=new).status_code == 200
    reply = router.http.post("/v1/chat/completions", json=old)
    assert error_of(reply)["code"] == "model_not_found"
    assert [m["id"] for m in router.http.get("/v1/models").json()["data"]] == ["new"]


@pytest.mark.parametrize("answer", [b"220 smtp ready\r\n", None], ids=["garbage", "closed"])
def test_a_worker_that_lost_its_health(
    stub: MakeStub, route: MakeRouter, answer: bytes | None
) -> None:
    """However its probe fails, the worker is marked down with a reason."""
    worker = stub()
    router = route(worker.url, health={"interval": "20ms", "timeout": "1s"})
    assert router.worker().ready
    if answer is None:
        worker.stop()
    else:
        worker.fixed[b"/health"] = answer
    until(lambda: not router.worker().ready)
    assert router.http.get("/workers").json()[0]["reason"] not in ("", "ready")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_usage_is_read_in_every_dialect(door: Router, path: str, stream: bool) -> None:
    """Usage is read in each API's format: a repeat is cached, with the prompt's full length."""
    text = f"{path} {stream} " + "All the king's horses and all the king's men. " * 50
    talk = [{"role": "user", "content": text}]
    body = {"model": "toy", "messages": talk, "input": talk, "max_tokens": 4, "stream": stream}
    more = {"stream_options": {"include_usage": True}} if "chat" in path else {}
    seen: list[tuple[float, float]] = []
    for _ in range(3):
        before = counters(door)
        assert door.http.post(path, json={**body, **more}).status_code == 200
        until(door.idle)
        seen.append(tuple(a - b for a, b in zip(counters(door), before, strict=True)))  # type: ignore[arg-type]
    prompts, cached = zip(*seen, strict=True)
    assert prompts[0] > 100
    assert prompts == (prompts[0],) * 3
    assert cached[0] < prompts[0] / 2 < cached[1] == cached[2] < prompts[0]


def counters(door: Router) -> tuple[float, float]:
    """Prompt tokens and cached tokens reported so far."""
    return (
        door.metric("warmroute_prompt_tokens_total", pool="default"),
        door.metric("warmroute_cached_tokens_total", pool="default"),
    )
