"""HyperPod's names for some metrics."""

from typing import Any

from tests.reload.changing import change
from tests.support import MakeRouter, MakeStub, Router

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
FAILS: list[Any] = [b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\n\r\n{}"]
ON = {"aliases": "hyperpod"}


def alias(router: Router, name: str, worker: str = "gpu-1") -> float:
    """Return the value of one aliased metric."""
    return router.metric(name, resource_name="default", pod_name=worker)


def test_requests_and_errors(stub: MakeStub, route: MakeRouter) -> None:
    """Requests are counted by worker; a failed one is counted both as a request and as an error."""
    worker = stub()
    router = route({"url": worker.url, "name": "gpu-1"}, metrics=ON)
    router.http.post("/v1/chat/completions", json=CHAT)
    worker.script = FAILS
    router.http.post("/v1/chat/completions", json=CHAT)
    assert alias(router, "model_invocations_total") == 2
    assert alias(router, "model_errors_total") == 1
    assert alias(router, "model_concurrent_requests") == 0


def test_milliseconds(stub: MakeStub, route: MakeRouter) -> None:
    """The aliases in milliseconds are our seconds times 1000."""
    router = route({"url": stub([0.02, *stub().script]).url, "name": "gpu-1"}, metrics=ON)
    router.http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    for theirs, ours in (("latency", "request"), ("ttfb", "first_byte")):
        name = f"model_{theirs}_milliseconds_sum"
        seconds = router.metric(f"warmroute_{ours}_seconds_sum", pool="default")
        assert router.metric(name, resource_name="default") == seconds * 1000 > 0


def test_off_until_asked_for(stub: MakeStub, route: MakeRouter) -> None:
    """Aliases are off by default and can be switched on by a reload, without a restart."""
    worker = {"url": stub().url, "name": "gpu-1"}
    router = route(worker)
    router.http.post("/v1/chat/completions", json=CHAT)
    assert "model_" not in router.http.get("/metrics").text
    change(router, worker, metrics=ON)
    assert alias(router, "model_invocations_total") == 1
