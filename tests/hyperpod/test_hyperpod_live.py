"""Routers started with a manifest over real sockets, with HyperPod's limits and metrics."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.commands import run, started
from tests.hyperpod.manifests import manifest, routed, variables, written
from tests.support import OK, MakeRouter, MakeStub, until

PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
LIMITS = {"maxConcurrentRequests": 2, "maxQueueSize": 1, "overflowStatusCode": 503}


def test_serving_by_a_manifest(stub: MakeStub, tmp_path: Path) -> None:
    """Two run, one waits, one is refused as by HyperPod; the log lists what is not supported."""
    gate: list[bool] = []
    worker = stub([lambda: bool(gate), *OK])
    data = manifest(None, worker={"requestLimits": LIMITS}, pdSpec={}, autoScalingSpec={"a": 1})
    path = written(tmp_path, json.dumps(data))
    args = ("serve", "--config", path, "--listen", "127.0.0.1:0", "--workers", worker.url)
    with started(tmp_path, *args) as running, ThreadPoolExecutor(4) as crowd:
        url = running.url()

        def ask() -> httpx.Response:
            return httpx.post(url + PATH, json=CHAT, timeout=30)

        asked = [crowd.submit(ask) for _ in range(4)]
        until(lambda: any(one.done() for one in asked))
        (refused,) = [one.result() for one in asked if one.done()]
        gate.append(True)
        assert sorted(one.result().status_code for one in asked) == [200, 200, 200, 503]
        assert refused.json() == {
            "error": "Too many concurrent requests",
            "max_concurrent": 2,
            "max_queue_size": 1,
            "current": 2,
        }
        assert httpx.get(url + "/health").status_code == 200
        scraped = httpx.get(url + "/metrics").text
        name = worker.url.removeprefix("http://")
        labels = f'{{pod_name="{name}",resource_name="default"}}'
        assert f"model_invocations_total{labels} 3.0" in scraped
        assert f"model_errors_total{labels} 0.0" in scraped
        assert f"model_concurrent_requests{labels} 0.0" in scraped
        assert 'model_latency_milliseconds_count{resource_name="default"} 3.0' in scraped
        assert 'model_ttfb_milliseconds_bucket{le="10.0",resource_name="default"}' in scraped
        log = running.err.read_text()
        assert "manifest: spec.autoScalingSpec: workers are not scaled from here" in log
        assert "not for the router:" in log
        assert "spec.worker.image" in log
        assert running.cut(signal.SIGTERM) == 0


def test_containers_that_keep_sessions_by_a_manifest(stub: MakeStub, tmp_path: Path) -> None:
    """With `kvaware` and `SESSION_KEY`, each session stays where it was opened."""
    kept = variables(SESSION_KEY="user_id", SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true")
    path = written(
        tmp_path, json.dumps(manifest(None, intelligentRoutingSpec=routed("kvaware"), worker=kept))
    )
    opens = (
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nX-Amzn-SageMaker-New-Session-Id: w-1\r\n\r\n{}"
    )
    worker = stub([opens])
    args = ("serve", "--config", path, "--listen", "127.0.0.1:0", "--workers", worker.url)
    with started(tmp_path, *args) as running:
        url = running.url() + "/invocations"
        opened = httpx.post(url, json={"requestType": "NEW_SESSION"}, timeout=30)
        assert opened.headers["x-amzn-sagemaker-new-session-id"].startswith("w-1; Expires=")
        worker.script = OK
        session = {"x-amzn-sagemaker-session-id": "w-1"}
        turn = httpx.post(url, json=CHAT, headers=session, timeout=30)
        assert turn.headers["x-warmroute-session"].startswith("kept;")
        assert b"x-amzn-sagemaker-session-id: w-1" in worker.requests[-1].lower()


def test_sessions_by_a_manifest(stub: MakeStub, tmp_path: Path) -> None:
    """`SESSION_KEY` names a field of the body; SageMaker's paths take the endpoint's name only."""
    workers = [stub() for _ in range(3)]
    data = manifest(
        None,
        endpointName="llama-8b",
        intelligentRoutingSpec=routed("session"),
        worker=variables(SESSION_KEY="user_id"),
    )
    path = written(tmp_path, json.dumps(data))
    told = ",".join(worker.url for worker in workers)
    args = ("serve", "--config", path, "--listen", "127.0.0.1:0", "--workers", told)
    with started(tmp_path, *args) as running:
        url = running.url()
        homes: dict[str, set[str]] = {}
        for word in ("new;", "kept;", "kept;"):
            for user in ("ann", "bob", "cid", "dan"):
                answer = httpx.post(url + PATH, json={**CHAT, "user_id": user}, timeout=30)
                assert answer.headers["x-warmroute-session"].startswith(word)
                homes.setdefault(user, set()).add(answer.headers["x-warmroute-worker"])
        assert {len(home) for home in homes.values()} == {1}
        assert len(set.union(*homes.values())) > 1
        assert httpx.get(url + "/ping").status_code == 200
        for name, status in (("llama-8b", 200), ("other", 400)):
            answer = httpx.post(f"{url}/endpoints/{name}/invocations", json=CHAT, timeout=30)
            assert answer.status_code == status
        assert running.cut(signal.SIGTERM) == 0


def test_explaining(tmp_path: Path) -> None:
    """A table of every field; a settings file of our own has none."""
    path = written(tmp_path, json.dumps(manifest(replicas=2, modelVersion="[red]2")))
    done = run("check", path, "--explain-mapping")
    assert done.returncode == 0
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "[red]2" in lines["spec.modelVersion"]
    assert lines["spec.replicas"].split()[1:] == ["2", "workers:", "2", "workers", "mapped"]
    ours = tmp_path / "ours.yaml"
    ours.write_text("workers: [http://a:1]")
    done = run("check", ours, "--explain-mapping")
    assert (done.returncode, "not a HyperPod manifest" in done.stderr) == (2, True)


def test_check_lists_what_would_be_used(tmp_path: Path) -> None:
    """The same as for a settings file of our own."""
    path = written(tmp_path, json.dumps(manifest(None)))
    done = run("check", path)
    assert done.returncode == 2
    assert "does not say where the workers are" in done.stderr
    done = run("check", path, "--workers", "a:1,b:2")
    assert done.returncode == 0
    assert "http://b:2" in done.stdout


def test_health_needs_no_key(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load balancer has none; without a worker that is well, all paths but `/health/live` answer
    503."""
    monkeypatch.setenv("DOOR_KEY", "sk-0123456789abcdef")
    worker = stub()
    router = route(worker.url, auth={"keys": ["${DOOR_KEY}"]}, health={"interval": "50ms"})
    assert router.http.get("/v1/models").status_code == 401
    paths = ("/ping", "/health", "/health/ready", "/health/live")
    assert [router.http.get(path).status_code for path in paths] == [200] * 4
    worker.well = False
    until(lambda: router.http.get("/health").status_code == 503)
    assert [router.http.get(path).status_code for path in paths] == [503, 503, 503, 200]
    assert [router.http.head(path).status_code for path in paths] == [503, 503, 503, 200]
