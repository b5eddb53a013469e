"""The paths other than inference: health, workers, models, metrics and docs."""

import json
import re
from typing import Any
from urllib.parse import quote

import pytest

from router.api.endpoints import ENDPOINTS
from router.api.error_shapes import Surface, surface_of
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


def test_degraded_and_down(stub: MakeStub, route: MakeRouter) -> None:
    """With one of two pools down: degraded, 200. Both: 503. One back: degraded, 200."""
    first, second = stub(), stub()
    router = route(
        pools=[pool("a", first.url, "m*"), pool("b", second.url, "n*")],
        health={"interval": "20ms"},
    )

    def readiness(path: str = "/health/ready") -> tuple[int, Any]:
        reply = router.http.get(path)
        return reply.status_code, reply.json()

    ready = {"status": "ready", "pools": {"a": 1, "b": 1}}
    assert readiness() == readiness("/health") == (200, ready)
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


@pytest.mark.parametrize("name", ["org/model-7B", "m:8b@v1+x"])
def test_one_model(stub: MakeStub, route: MakeRouter, name: str) -> None:
    """One model is shown as in the list, even if its name has slashes, escaped or not."""
    router = route({"url": stub().url, "models": [name]}, **SLOW)
    (listed,) = router.http.get("/v1/models").json()["data"]
    for written in (quote(name, safe=""), quote(name, safe="/")):
        assert router.http.get(f"/v1/models/{written}").json() == listed
    assert listed["id"] == name


@pytest.mark.parametrize("path", ["/v1/models/other", "/v1/models/plain/", "/v1/models/PLAIN"])
def test_no_such_model(stub: MakeStub, route: MakeRouter, path: str) -> None:
    """An unknown model gives 404 with the name that was asked for, and the one that was meant."""
    router = route({"url": stub().url, "models": ["plain"]}, **SLOW)
    reply = router.http.get(path)
    assert (reply.status_code, error_of(reply)["code"]) == (404, "model_not_found")
    asked = path.removeprefix("/v1/models/")
    assert f"{asked!r} does not exist" in error_of(reply)["message"]
    assert "'plain'?" in error_of(reply)["message"]
    assert router.http.get("/v1/models/").json()["error"]["code"] == "unknown_url"
    assert router.http.post(path, json={}).status_code == 405


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
    shown = schema["components"]["schemas"]["WorkerStatus"]["properties"]
    assert "draining" in shown["state"]["description"]  # what its docstring says


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
