"""Every endpoint reaches a worker, and every model is routed to its pool."""

from router.api.endpoints import ENDPOINTS
from tests.cancel.leaving import request_to
from tests.support import JSON, MakeRouter, MakeStub, error_of, until

TEXT = [{"role": "user", "content": "hello"}]


def test_every_path_is_relayed(stub: MakeStub, route: MakeRouter) -> None:
    """A worker gets the body as it came at the same path, and its answer comes back."""
    worker = stub()
    router = route(worker.url)
    for path, endpoint in ENDPOINTS.items():
        body, fields = request_to(endpoint, stream=False)
        headers = [tuple(field.split(b": ", 1)) for field in fields]
        reply = router.http.post(path, content=body, headers=headers)  # type: ignore[arg-type]
        assert (reply.status_code, reply.content) == (200, JSON), path
        line, _, rest = worker.requests[-1].partition(b"\r\n")
        assert line == b"POST %b HTTP/1.1" % path.encode()
        assert rest.endswith(b"\r\n\r\n" + body)
    until(router.idle)


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
