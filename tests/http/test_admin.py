"""The paths other than inference: health, workers, models, metrics and docs."""

import ast
import inspect
import json
import re
import socket
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest

from router.admin.routes import Readiness
from router.admin.views import WorkerStatus
from router.api.endpoints import ENDPOINTS
from router.api.error_shapes import Surface, surface_of
from router.kv.status import KvStatus, KvStreamStatus
from router.observe.models import Shown
from router.tokenizers.status import TokenizerStatus
from tests.support import MakeRouter, MakeStub, error_of, post, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SLOW = {"health": {"interval": "1h"}}


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


MEANT = "Did you mean 'plain'?"


@pytest.mark.parametrize("path", ["/v1/models/other", "/v1/models/plain/", "/v1/models/PLAIN"])
def test_no_such_model(stub: MakeStub, route: MakeRouter, path: str) -> None:
    """An unknown model gives 404 with the name that was asked for, and the one that was meant."""
    router = route({"url": stub().url, "models": ["plain"]}, **SLOW)
    reply = router.http.get(path)
    assert (reply.status_code, error_of(reply)["code"]) == (404, "model_not_found")
    asked = path.removeprefix("/v1/models/")
    assert error_of(reply)["message"] == f"The model {asked!r} does not exist. {MEANT}"
    assert router.http.get("/v1/models/").json()["error"]["code"] == "unknown_url"
    assert router.http.post(path, json={}).status_code == 405


def test_configured_models_are_not_asked_for(stub: MakeStub, route: MakeRouter) -> None:
    """Models given in the settings count, whatever the worker reports."""
    router = route({"url": stub(model="reported").url, "models": ["given"]}, **SLOW)
    assert [m["id"] for m in router.http.get("/v1/models").json()["data"]] == ["given"]


def test_openapi_lists_inference(stub: MakeStub, route: MakeRouter) -> None:
    """The OpenAPI schema names the paths that are served, inference included."""
    schema = route(stub().url).http.get("/openapi.json").json()
    assert set(ENDPOINTS) <= set(schema["paths"])
    assert {"/health/live", "/health/ready", "/workers", "/v1/models"} <= set(schema["paths"])
    upload = schema["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]
    assert list(upload) == ["multipart/form-data"]


def docstrings(model: type) -> dict[str, str]:
    """The fields of a model that have a docstring in its source, with that."""
    (defined,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(defined, ast.ClassDef)
    return {
        ast.unparse(field.target): inspect.cleandoc(ast.literal_eval(text.value))
        for field, text in pairwise(defined.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def test_openapi_explains_what_operators_see(stub: MakeStub, route: MakeRouter) -> None:
    """The docstring of every field that operators see is its description in the OpenAPI schema."""
    schemas = route(stub().url).http.get("/openapi.json").json()["components"]["schemas"]
    shown = [model for model in Shown.__subclasses__() if model.__name__ in schemas]
    assert {WorkerStatus, Readiness, KvStatus, KvStreamStatus, TokenizerStatus} <= set(shown)
    for model in shown:
        fields = schemas[model.__name__]["properties"].items()
        said = {name: about["description"] for name, about in fields if "description" in about}
        assert said == docstrings(model)


#: Schemas of errors that do not have OpenAI's shape.
NAMES = {
    Surface.ANTHROPIC: "AnthropicError",
    Surface.COHERE: "CohereError",
    Surface.OLLAMA: "OllamaError",
}


def test_openapi_describes_errors(stub: MakeStub, route: MakeRouter) -> None:
    """Every operation in the OpenAPI schema lists its error statuses and their format."""
    schema = route(stub().url).http.get("/openapi.json").json()
    for path, methods in schema["paths"].items():
        name = NAMES.get(surface_of(path), "Error")
        shape = {"$ref": f"#/components/schemas/{name}"}
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
    good = worker.fixed[b"/v1/models"]
    worker.fixed[b"/v1/models"] = (
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )
    router = route(worker.url, health={"interval": "20ms"})
    (status,) = router.http.get("/workers").json()
    assert status["state"] == "down"
    assert status["reason"].startswith("/v1/models answered something else than a list of models")
    worker.fixed[b"/v1/models"] = good
    until(lambda: router.worker().ready)


@pytest.mark.parametrize(("levels", "ready"), [(64, True), (65, False), (300, False)])
def test_a_worker_that_describes_its_models_in_depth(
    stub: MakeStub, route: MakeRouter, levels: int, ready: bool
) -> None:
    """What the router could not repeat to clients is a wrong answer of the worker."""
    worker, inner = stub(), levels - 1  # the description is a level itself
    body = b'{"data":[{"id":"m","x":%b}]}' % (b"[" * inner + b"]" * inner)
    worker.fixed[b"/v1/models"] = (
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )
    http = route(worker.url, **SLOW).http
    assert len(http.get("/v1/models").json()["data"]) == ready
    (status,) = http.get("/workers").json()
    deep = "/v1/models answered more than 64 levels of lists and objects"
    assert status["reason"] == ("ready" if ready else deep)


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
    worker.fixed[b"/metrics"] = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text
    router = route(worker.url, **SLOW)
    assert router.worker().ready
    assert router.worker().room_tokens is None


def test_the_size_of_the_cache_is_learned(stub: MakeStub, route: MakeRouter) -> None:
    """The cache size is read from vLLM's gauge `vllm:cache_config_info`."""
    worker = stub()
    text = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
    worker.fixed[b"/metrics"] = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text
    router = route(worker.url, **SLOW)
    assert router.http.get("/workers").json()[0]["kv_tokens"] == 1600


@pytest.mark.parametrize(
    ("labels", "reuses"),
    [
        ((b',enable_prefix_caching="True"',), True),
        ((b',enable_prefix_caching="False"',), False),
        ((b"",), None),
        ((b',enable_prefix_caching="True",engine="0"', b',enable_prefix_caching="True"'), True),
        ((b',enable_prefix_caching="True",engine="0"', b',enable_prefix_caching="False"'), False),
    ],
    ids=["on", "off", "not told", "on in all", "on in some"],
)
def test_whether_the_prefix_cache_is_on_is_learned(
    stub: MakeStub, route: MakeRouter, labels: tuple[bytes, ...], *, reuses: bool | None
) -> None:
    """It is a label of the same gauge; of several engines behind a worker, all must have one."""
    worker = stub()
    gauge = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"%b} 1\n'
    text = b"".join(gauge % label for label in labels)
    worker.fixed[b"/metrics"] = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(text) + text
    router = route(worker.url, **SLOW)
    assert router.worker().reuses is reuses
    assert router.worker().keeps is bool(reuses)
    assert router.worker().room_tokens == 1600


def test_a_worker_that_is_not_http(stub: MakeStub, route: MakeRouter) -> None:
    """The router starts although a worker does not speak HTTP, and says why it is down."""
    worker = stub()
    worker.fixed[b"/health"] = b"220 smtp ready\r\n"
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
