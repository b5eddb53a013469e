"""Paths and methods that are not served get a clear error, and the router goes on serving."""

import pytest

from tests.support import Router, Stub, error_of

CHAT = "/v1/chat/completions"
FORM = "/v1/audio/transcriptions"
pytestmark = pytest.mark.usefixtures("still_open")
#: What engines serve to operators alone.
OF_ENGINES = [
    *("/reset_prefix_cache", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep"),
    *("/collective_rpc", "/shutdown", "/abort_requests", "/inference/v1/abort_requests"),
    *("/update_weights", "/start_profile", "/flush_cache", "/abort_request", "/open_session"),
    *("/load_lora_adapter", "/update_weights_from_disk", "/release_memory_occupation"),
    *("/set_internal_state", "/vertex_generate", "/v1/realtime", "/simulator/fault"),
]
UNKNOWN = ["/", "/v1", "/v1/chat", "/V1/CHAT/COMPLETIONS", "/%ff", "/" + "x" * 5000]


@pytest.mark.parametrize("path", [*OF_ENGINES, *UNKNOWN], ids=lambda path: path[:30])
def test_a_path_that_is_not_served(worker: Stub, door: Router, path: str) -> None:
    """Unknown paths get 404 in OpenAI's format; engines' admin paths never reach a worker."""
    for method in ("GET", "POST"):
        reply = door.http.request(method, path, json={"model": "m"})
        assert (reply.status_code, error_of(reply)["code"]) == (404, "unknown_url")
        assert reply.headers["x-request-id"]
        assert len(reply.content) < 1000
    assert worker.requests == []


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", CHAT),
        ("/v1" + CHAT, CHAT),
        (CHAT + "/", CHAT),
        ("/models", "/v1/models"),
        ("/v1/pooling", "/pooling"),
        ("/nothing", None),
    ],
)
def test_a_base_url_that_is_wrong(door: Router, path: str, meant: str | None) -> None:
    """A path with `/v1` missing or too much is a 404 that names the right one."""
    error = error_of(door.http.post(path, json={"model": "m"}))
    assert error["code"] == "unknown_url"
    assert error["message"].partition(" Did you mean ")[2] == (f"{meant!r}?" if meant else "")


def test_a_percent_encoded_path(worker: Stub, door: Router) -> None:
    """A percent-encoded path is decoded, and the worker gets it decoded."""
    assert door.http.post("/v1/%63hat/completions", json={"model": "m"}).status_code == 200
    assert worker.requests[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize(("path", "allowed"), [(CHAT, "POST"), (FORM, "POST"), ("/workers", "GET")])
def test_a_wrong_method(worker: Stub, door: Router, path: str, allowed: str, method: str) -> None:
    """A wrong method gets 405 that names the right one, also in `Allow`."""
    reply = door.http.request(method, path)
    if method == allowed:
        assert reply.status_code == 200
        return
    assert (reply.status_code, reply.headers["allow"]) == (405, allowed)
    assert method == "HEAD" or f"use {allowed}" in error_of(reply)["message"]
    assert worker.requests == []
