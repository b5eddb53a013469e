"""The paths other than inference: health, workers, models, metrics and docs."""

import json
import re
import socket
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router import __version__
from router.openai import ENDPOINTS
from tests.support import MakeRouter, MakeStub, Router, error_of, post, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SLOW = {"health": {"interval": "1h"}}

FAMILIES = {
    "warmroute_requests": "counter",
    "warmroute_refused_requests": "counter",
    "warmroute_decisions": "counter",
    "warmroute_worker_errors": "counter",
    "warmroute_first_byte_seconds": "histogram",
    "warmroute_request_seconds": "histogram",
    "warmroute_decision_seconds": "histogram",
    "warmroute_match_ratio": "histogram",
    "warmroute_cached_error_tokens": "histogram",
    "warmroute_prompt_tokens": "counter",
    "warmroute_cached_tokens": "counter",
    "warmroute_predicted_cached_tokens": "counter",
    "warmroute_worker_up": "gauge",
    "warmroute_in_flight": "gauge",
    "warmroute_kv_tokens_booked": "gauge",
    "warmroute_pace_factor": "gauge",
    "warmroute_prefix_tree_blocks": "gauge",
    "warmroute_prefix_tree_bytes": "gauge",
    "warmroute_queue_length": "gauge",
    "warmroute_queued": "counter",
    "warmroute_held": "gauge",
    "warmroute_kv_hit_tokens": "counter",
    "warmroute_held_requests": "counter",
    "warmroute_queue_refused": "counter",
    "warmroute_retries_denied": "counter",
    "warmroute_tasks": "gauge",
    "warmroute_worker_ejected": "gauge",
    "warmroute_worker_size_unknown": "gauge",
    "warmroute_ejections": "counter",
    "warmroute_prompts": "counter",
    "warmroute_prompts_by_text": "counter",
    "warmroute_prompts_miscounted": "counter",
    "warmroute_tokenizer_workers": "gauge",
    "warmroute_build_info": "gauge",
    "warmroute_processes": "gauge",
    "warmroute_client_connections": "gauge",
    "process_cpu_seconds": "counter",
    "process_max_fds": "gauge",
    "process_open_fds": "gauge",
    "process_resident_memory_bytes": "gauge",
    "process_start_time_seconds": "gauge",
    "process_virtual_memory_bytes": "gauge",
}


def pool(name: str, url: str, *models: str, **more: Any) -> dict[str, Any]:
    """Settings of a pool with one worker."""
    return {"name": name, "models": list(models) or ["*"], "workers": [url], **more}


def test_live(route: MakeRouter, dead_url: str) -> None:
    """The router is live even if its workers are down."""
    reply = route(dead_url).http.get("/health/live")
    assert (reply.status_code, reply.json()) == (200, {"status": "live"})


def test_ready(stub: MakeStub, route: MakeRouter) -> None:
    """If every pool has a ready worker: `ready` and the numbers, on both paths."""
    router = route(stub().url, stub().url)
    for path in ("/health/ready", "/health"):
        reply = router.http.get(path)
        assert reply.status_code == 200
        assert reply.json() == {"status": "ready", "pools": {"default": 2}}


def test_degraded_and_down(stub: MakeStub, route: MakeRouter) -> None:
    """With one of two pools down: degraded, 200. Both: 503. One back: degraded, 200."""
    first, second = stub(), stub()
    router = route(
        pools=[pool("a", first.url, "m*"), pool("b", second.url, "n*")],
        health={"interval": "20ms"},
    )

    def readiness() -> tuple[int, Any]:
        reply = router.http.get("/health/ready")
        return reply.status_code, reply.json()

    assert readiness() == (200, {"status": "ready", "pools": {"a": 1, "b": 1}})
    second.well = False
    until(lambda: readiness() == (200, {"status": "degraded", "pools": {"a": 1, "b": 0}}))
    first.well = False
    until(lambda: readiness() == (503, {"status": "down", "pools": {"a": 0, "b": 0}}))
    second.well = True
    until(lambda: readiness() == (200, {"status": "degraded", "pools": {"a": 0, "b": 1}}))


def test_workers(stub: MakeStub, route: MakeRouter) -> None:
    """`/workers` shows every field, for an idle worker and for a busy one."""
    worker = stub(["stall"])
    router = route({"url": worker.url, "name": "gpu-1", "kv_tokens": 5000}, **SLOW)
    (idle,) = router.http.get("/workers").json()
    assert idle == {
        "name": "gpu-1",
        "pool": "default",
        "url": worker.url,
        "state": "ready",
        "reason": "ready",
        "models": ["m"],
        "in_flight": 0,
        "wait_seconds": 0.0,
        "kv_tokens": 5000,
        "kv_tokens_booked": 0,
        "pace_factor": 1.0,
    }
    body = json.dumps({**CHAT, "max_tokens": 100, "tools": ["x" * 4000]}).encode()
    with post(router.port, "/v1/chat/completions", body):
        until(lambda: worker.requests)
        (busy,) = router.http.get("/workers").json()
    assert busy["in_flight"] == 1
    assert busy["wait_seconds"] > 0
    assert busy["kv_tokens_booked"] >= 1000 + 100
    until(lambda: router.http.get("/workers").json() == [idle])


def test_a_worker_that_is_drained_says_so(stub: MakeStub, route: MakeRouter) -> None:
    """A drained worker's state is `draining`, not `ready`."""
    router = route({"url": stub().url, "drain": True}, stub().url)
    assert [one["state"] for one in router.http.get("/workers").json()] == ["draining", "ready"]


def test_models_are_merged(stub: MakeStub, route: MakeRouter) -> None:
    """Models of all workers and pools are listed once, sorted, without those no pool accepts."""
    urls = [stub(model=name).url for name in ("zeta", "alpha", "alpha", "hidden")]
    router = route(
        pools=[
            {"name": "a", "models": ["zeta", "alpha"], "workers": urls[:3]},
            {"name": "b", "models": ["beta*"], "workers": urls[3:]},
        ],
        **SLOW,
    )
    listed = router.http.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["alpha", "zeta"]
    for name, status in (("alpha", 200), ("zeta", 200), ("hidden", 404)):
        reply = router.http.post("/v1/chat/completions", json={**CHAT, "model": name})
        assert reply.status_code == status


@pytest.mark.parametrize("name", ["plain", "org/model-7B", "a/b/c", "m:8b@v1+x"])
def test_one_model(stub: MakeStub, route: MakeRouter, name: str) -> None:
    """One model is shown as in the list, even if its name has slashes, escaped or not."""
    router = route({"url": stub().url, "models": [name]}, **SLOW)
    (listed,) = router.http.get("/v1/models").json()["data"]
    for written in (quote(name, safe=""), quote(name, safe="/")):
        assert router.http.get(f"/v1/models/{written}").json() == listed
    assert listed["id"] == name


@pytest.mark.parametrize("path", ["/v1/models/other", "/v1/models/plain/", "/v1/models/PLAIN"])
def test_no_such_model(stub: MakeStub, route: MakeRouter, path: str) -> None:
    """An unknown model gives 404 with the name that was asked for."""
    router = route({"url": stub().url, "models": ["plain"]}, **SLOW)
    reply = router.http.get(path)
    assert (reply.status_code, error_of(reply)["code"]) == (404, "model_not_found")
    assert path.removeprefix("/v1/models/") in error_of(reply)["message"]
    assert router.http.get("/v1/models/").json()["error"]["code"] == "unknown_url"
    assert router.http.post(path, json={}).status_code == 405


def test_configured_models_are_not_asked_for(stub: MakeStub, route: MakeRouter) -> None:
    """Models given in the settings count, whatever the worker reports."""
    router = route({"url": stub(model="reported").url, "models": ["given"]}, **SLOW)
    assert [m["id"] for m in router.http.get("/v1/models").json()["data"]] == ["given"]


def scraped(router: Router) -> dict[str, Any]:
    """The metric families of /metrics by name; fail if a name comes twice."""
    reply = router.http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(reply.text))
    assert len({family.name for family in families}) == len(families)
    heads = [line for line in reply.text.splitlines() if line.startswith("# TYPE")]
    assert len(set(heads)) == len(heads)
    return {family.name: family for family in families}


def test_metrics(stub: MakeStub, route: MakeRouter) -> None:
    """Every family has its type and a help sentence, and some are checked to count correctly."""
    router = route({"url": stub().url, "name": "gpu-1"}, **SLOW)
    router.http.post("/v1/chat/completions", json=CHAT)
    router.http.post("/v1/chat/completions", content=b"x")
    families = scraped(router)
    for name, kind in FAMILIES.items():
        assert families[name].type == kind, name
        assert families[name].documentation.endswith("."), name
    ours = {name for name in families if not name.endswith("_created")}
    assert ours == set(FAMILIES)
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert samples["warmroute_requests_total", "2xx", "default", "gpu-1"] == 1
    assert samples["warmroute_refused_requests_total", "400"] == 1
    assert samples["warmroute_decisions_total", "cold", "default"] == 1
    assert samples["warmroute_prompt_tokens_total", "default"] == 7
    assert samples["warmroute_worker_up", "default", "gpu-1"] == 1
    assert samples["warmroute_request_seconds_count", "default"] == 1


def test_rates_begin_with_the_first(stub: MakeStub, route: MakeRouter) -> None:
    """Counters exist, as 0, before the first event; otherwise `rate` would miss it."""
    router = route({"url": stub().url, "name": "gpu-1"}, **SLOW)
    told = router.http.get("/metrics").text.splitlines()
    for status in ("2xx", "4xx", "499", "5xx"):
        labels = f'pool="default",status="{status}",worker="gpu-1"'
        assert f"warmroute_requests_total{{{labels}}} 0.0" in told
    for name in ("prompt", "cached", "predicted_cached"):
        assert f'warmroute_{name}_tokens_total{{pool="default"}} 0.0' in told


def test_the_router_tells_of_itself(stub: MakeStub, route: MakeRouter) -> None:
    """Metrics tell the router's version, processes, connections and use of the machine."""
    router = route(stub().url, **SLOW)
    told = {s.name: s for family in scraped(router).values() for s in family.samples}
    assert told["warmroute_build_info"].labels == {"version": __version__}
    assert told["warmroute_processes"].value == 1
    assert told["warmroute_client_connections"].value == 1
    assert told["process_resident_memory_bytes"].value > 1 << 20
    assert told["process_open_fds"].value < told["process_max_fds"].value


def test_how_much_of_a_prompt_was_matched_and_how_right_that_was(
    stub: MakeStub, route: MakeRouter
) -> None:
    """Match ratio and prediction error, labelled by pool only (O1 and O3 in docs/hyperpod.md)."""
    usage = {"prompt_tokens": 400, "prompt_tokens_details": {"cached_tokens": 0}}
    body = json.dumps({"choices": [], "usage": usage}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    router = route(stub([head % len(body) + body]).url, **SLOW)
    chat = {"model": "m", "messages": [{"role": "user", "content": "long ago " * 300}]}
    expected = 0
    for _ in range(2):
        answer = router.http.post("/v1/chat/completions", json=chat)
        said = answer.headers["x-warmroute-decision"].split("held=")
        expected += min(400, int(said[1].split(";")[0]) if len(said) > 1 else 0)
        until(router.idle)
    families = scraped(router)
    for name in ("warmroute_match_ratio", "warmroute_cached_error_tokens"):
        assert {key for one in families[name].samples for key in one.labels} == {"pool", "le"}
    matched, error = (
        {(one.name.rpartition("_")[2], one.labels.get("le")): one.value for one in family.samples}
        for family in (families["warmroute_match_ratio"], families["warmroute_cached_error_tokens"])
    )
    assert (matched["count", None], matched["bucket", "0.0"]) == (2, 1)
    assert matched["sum", None] > 0.9
    assert expected > 256
    # (Prometheus clients give no sum for histograms with negative buckets.)
    assert [error["bucket", end] for end in ("-256.0", "-1.0", "0.0", "+Inf")] == [1, 1, 2, 2]
    blind = route(stub([head % len(body) + body]).url, strategy="leastload", **SLOW)
    assert blind.http.post("/v1/chat/completions", json=chat).status_code == 200
    until(blind.idle)
    (count,) = (
        one.value
        for one in scraped(blind)["warmroute_match_ratio"].samples
        if one.name.endswith("_count")
    )
    assert count == 0


def test_metrics_of_several_pools(stub: MakeStub, route: MakeRouter) -> None:
    """Gauges of several pools are one family, as Prometheus requires."""
    router = route(pools=[pool("a", stub().url, "m"), pool("b", stub().url, "n")], **SLOW)
    blocks = scraped(router)["warmroute_prefix_tree_blocks"]
    assert [sample.labels["pool"] for sample in blocks.samples] == ["a", "b"]


def test_openapi_lists_inference(stub: MakeStub, route: MakeRouter) -> None:
    """The OpenAPI schema names the paths that are served, inference included."""
    schema = route(stub().url).http.get("/openapi.json").json()
    assert set(ENDPOINTS) <= set(schema["paths"])
    assert {"/health/live", "/health/ready", "/workers", "/v1/models"} <= set(schema["paths"])
    upload = schema["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]
    assert list(upload) == ["multipart/form-data"]


def test_openapi_explains_what_operators_see(stub: MakeStub, route: MakeRouter) -> None:
    """Field docstrings become the descriptions in the OpenAPI schema."""
    schemas = route(stub().url).http.get("/openapi.json").json()["components"]["schemas"]
    said = {
        f"{name}.{field}": about.get("description", "")
        for name in ("WorkerStatus", "Readiness", "KvStatus", "KvStreamStatus", "TokenizerStatus")
        for field, about in schemas[name]["properties"].items()
    }
    assert said["WorkerStatus.wait_seconds"] == "Booked prefill that is not done yet."
    for field in (
        "Readiness.blind",
        "KvStatus.bias",
        "KvStreamStatus.epoch",
        "TokenizerStatus.why",
    ):
        assert said[field], field


def test_openapi_describes_errors(stub: MakeStub, route: MakeRouter) -> None:
    """Every operation in the OpenAPI schema lists its error statuses and their format."""
    schema = route(stub().url).http.get("/openapi.json").json()
    shape = {"$ref": "#/components/schemas/Error"}
    for path, methods in schema["paths"].items():
        wanted = {400, 405, 408, 413, 414, 417, 431, 500, 501, 503}
        wanted |= set() if path.startswith("/health") else {401, 404}
        wanted |= {429, 502, 504} if path in ENDPOINTS else set()
        for operation in methods.values():
            answers = operation["responses"]
            assert {str(status) for status in wanted} <= set(answers)
            for status in wanted - {503}:
                assert answers[str(status)]["content"]["application/json"]["schema"] == shape
    assert schema["components"]["schemas"]["Error"]["required"] == ["error"]


def test_docs(stub: MakeStub, route: MakeRouter) -> None:
    """The docs page loads nothing from other hosts, as networks may be closed."""
    http = route(stub().url).http
    page = http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "Warmroute" in page.text
    assert "//" not in page.text.replace("<!DOCTYPE html>", "").replace("window.location", "")
    kinds = {".js": "text/javascript", ".css": "text/css", ".png": "image/png"}
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(named) == 3
    for path in named:
        asset = http.get(path)
        assert asset.status_code == 200
        assert asset.headers["content-type"].startswith(kinds[path[path.rindex(".") :]])
        assert len(asset.content) > 1000


BAD_MODELS: list[bytes] = [
    b"",
    b"[]",
    b'{"data":null}',
    b'{"data":[{"id":7}]}',
    b'{"data":[{"id":"\xff"}]}',
    b'{"data":[{"id":"x","y":' + b"[" * 100_000,
    b"<html>",
]


@pytest.mark.parametrize("body", BAD_MODELS, ids=lambda body: repr(body[:24]))
def test_a_worker_that_tells_nonsense_of_its_models(
    stub: MakeStub, route: MakeRouter, body: bytes
) -> None:
    """A worker with an invalid model list is down, with the reason; once valid, it is used."""
    worker = stub()
    good = worker._fixed[b"/v1/models"]
    worker._fixed[b"/v1/models"] = (
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )
    router = route(worker.url, health={"interval": "20ms"})
    (status,) = router.http.get("/workers").json()
    assert status["state"] == "down"
    assert status["reason"].startswith("/v1/models answered something else than a list of models")
    worker._fixed[b"/v1/models"] = good
    until(lambda: router.worker().ready)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"<html>",
        b"vllm:cache_config_info{",
        b'vllm:cache_config_info{block_size="x",num_gpu_blocks="y"} 1\n',
        b'vllm:cache_config_info{block_size="16"} 1\n',
        b"vllm:cache_config_info one\n",
    ],
)
def test_a_worker_that_tells_nonsense_of_its_cache(
    stub: MakeStub, route: MakeRouter, text: bytes
) -> None:
    """A worker with invalid metrics is used; the size of its cache is unknown."""
    worker = stub()
    worker._fixed[b"/metrics"] = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text
    router = route(worker.url, **SLOW)
    assert router.worker().ready
    assert router.worker().room_tokens is None


def test_the_size_of_the_cache_is_learned(stub: MakeStub, route: MakeRouter) -> None:
    """The cache size is read from vLLM's gauge `vllm:cache_config_info`."""
    worker = stub()
    text = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
    worker._fixed[b"/metrics"] = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text
    router = route(worker.url, **SLOW)
    assert router.http.get("/workers").json()[0]["kv_tokens"] == 1600


def test_a_worker_that_is_not_http(stub: MakeStub, route: MakeRouter) -> None:
    """The router starts although a worker does not speak HTTP, and says why it is down."""
    worker = stub()
    worker._fixed[b"/health"] = b"220 smtp ready\r\n"
    router = route(worker.url, **SLOW)
    (status,) = router.http.get("/workers").json()
    assert status["state"] == "down"
    assert status["reason"]
    assert router.http.get("/health/ready").status_code == 503


def test_a_worker_that_says_nothing(route: MakeRouter) -> None:
    """At start, a silent worker is marked down after the probe's timeout."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        router = route(url, health={"interval": "1h", "timeout": "200ms"})
        (status,) = router.http.get("/workers").json()
        assert (status["state"], bool(status["reason"])) == ("down", True)
