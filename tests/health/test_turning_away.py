"""A worker that refuses requests quickly must not attract more of them."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.health.failing import CHAT, PATH, QUIET, says
from tests.support import OK, MakeRouter, MakeStub, Router, Stub, until

SLOW = [0.05, *OK]


def asked(router: Router, times: int = 60) -> list[int]:
    """Send requests from four clients; return all statuses."""

    def one(number: int) -> int:
        chat = {**CHAT, "messages": [{"role": "user", "content": f"{number} " * 50}]}
        return router.http.post(PATH, json=chat).status_code

    with ThreadPoolExecutor(4) as clients:
        return list(clients.map(one, range(times)))


def workers(stub: MakeStub, status: int) -> list[Stub]:
    """One worker that answers at once with that status, and three that work."""
    return [stub(says(status)), *(stub(SLOW) for _ in range(3))]


@pytest.mark.usefixtures("backs_off")
@pytest.mark.parametrize(
    ("strategy", "status"), [("prefixaware", 429), ("leastload", 429), ("prefixaware", 401)]
)
def test_one_that_refuses_rests(
    stub: MakeStub,
    route: MakeRouter,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    status: int,
) -> None:
    """A worker that has too many requests, or rejects the router's own key, would otherwise always
    look the least busy."""
    monkeypatch.setenv("WORKER_KEY", "wrong")
    bad, *good = workers(stub, status)
    told = {"url": bad.url, **({"api_key": "${WORKER_KEY}"} if status == 401 else {})}
    router = route(told, *(one.url for one in good), strategy=strategy, health=QUIET)
    statuses = asked(router)
    assert statuses.count(status) == len(bad.requests) <= 12
    assert statuses.count(200) == 60 - len(bad.requests)
    assert router.worker().breaker.closed


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_of_the_clients(stub: MakeStub, route: MakeRouter, status: int) -> None:
    """A client's key that only one worker rejects: that one is asked less, and is not ejected. One
    that all reject says nothing of them: they keep their turns."""
    bad, good = stub(says(status)), stub()
    router = route(bad.url, good.url, strategy="roundrobin", health=QUIET)
    statuses = [router.http.post(PATH, json=CHAT).status_code for _ in range(20)]
    assert 2 <= statuses.count(status) == len(bad.requests) < 7
    assert router.worker(0).breaker.closed
    workers = [stub(says(status)), stub(says(status))]
    router = route(*(w.url for w in workers), strategy="roundrobin", health=QUIET)
    for _ in range(20):
        assert router.http.post(PATH, json=CHAT).status_code == status
    assert all(len(worker.requests) >= 5 for worker in workers)


def test_a_model_that_is_gone(stub: MakeStub, route: MakeRouter) -> None:
    """After a 404 the worker's models are read again at once: an adapter may have been unloaded."""
    bad, *good = workers(stub, 404)
    router = route(bad.url, *(one.url for one in good), strategy="prefixaware", health=QUIET)
    models = bad.fixed[b"/v1/models"]
    bad.fixed[b"/v1/models"] = models.replace(b'"m"', b'"o"')
    while not bad.requests:
        asked(router, 4)
    until(lambda: "m" not in router.worker().models)
    before = len(bad.requests)
    assert asked(router) == [200] * 60
    assert len(bad.requests) == before
    bad.fixed[b"/v1/models"] = models


def test_clients_cannot_have_workers_asked_all_the_time(stub: MakeStub, route: MakeRouter) -> None:
    """Many 404s cause only a few probes, as clients may ask for what never existed."""
    worker = stub(says(404))
    router = route(worker.url, health=QUIET)
    before = len(worker.probes)
    for _ in range(50):
        router.http.post(PATH, json=CHAT)
    until(lambda: len(worker.probes) > before)
    assert len(worker.probes) <= before + 2


def test_models_that_the_settings_tell(
    stub: MakeStub, route: MakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """Models given in the settings are not looked up after a 404; the log tells the difference."""
    worker = stub(says(404))
    router = route({"url": worker.url, "models": ["m"]}, health=QUIET)
    for _ in range(10):
        assert router.http.post(PATH, json=CHAT).status_code == 404
    told = [record.getMessage() for record in caplog.records if "404" in record.getMessage()]
    assert told == [f"worker {worker.url[7:]}: 404; the settings say that it has 'm'"]
    assert "m" in router.worker().models


@pytest.mark.parametrize(("key", "hint"), [(None, "need a key"), ("${WORKER_KEY}", "wrong")])
def test_one_that_lets_nobody_in(
    stub: MakeStub,
    route: MakeRouter,
    monkeypatch: pytest.MonkeyPatch,
    key: str | None,
    hint: str,
) -> None:
    """What is known of it says which setting is most likely lacking, or wrong."""
    monkeypatch.setenv("WORKER_KEY", "not-the-one-that-it-wants")
    closed = stub()
    closed.fixed[b"/v1/models"] = b"HTTP/1.1 401 X\r\ncontent-length: 0\r\n\r\n"
    router = route(
        {"url": closed.url, **({"api_key": "${WORKER_KEY}"} if key else {})}, health=QUIET
    )
    (shown,) = router.http.get("/workers").json()
    assert shown["state"] == "down"
    assert hint in shown["reason"]
    assert "api_key" in shown["reason"]
