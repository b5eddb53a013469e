"""What the router learns about its workers from probes, metrics and answers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from strategies.policies.prefix_aware import PrefixAware
from tests.overload.totals import samples
from tests.support import MakeRouter, MakeStub, read_all, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
SLOW = {"health": {"interval": "1h", "timeout": "10s"}}
SIZE = b'vllm:cache_config_info{num_gpu_blocks="10",block_size="16"} 1\n'


def whole(body: bytes) -> bytes:
    """Return an answer with this body."""
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


@pytest.fixture
def drip() -> Iterator[str]:
    """A server that answers forever, a byte at a time."""
    over = threading.Event()

    def serve(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=pour, args=(client,), daemon=True).start()

    def pour(client: socket.socket) -> None:
        with client, suppress(OSError):
            client.recv(65536)
            client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while not over.wait(0.02):
                client.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        listener.shutdown(socket.SHUT_RDWR)


def test_a_worker_that_drips_does_not_hold_up_the_start(
    drip: str, stub: MakeStub, route: MakeRouter
) -> None:
    """A probe's timeout limits the probe as a whole, however steadily bytes come."""
    router = route(drip, stub().url, health={"timeout": "1s"})
    workers = router.http.get("/workers").json()
    assert [worker["state"] for worker in workers] == ["down", "ready"]
    assert workers[0]["reason"] == "/health did not answer in time"


def test_a_probe_that_ends_late_leaves_nothing_open(route: MakeRouter) -> None:
    """The connection of a probe that has timed out is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        listener.settimeout(10)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        route(url, health={"timeout": "50ms", "interval": "50ms"})
        for _ in range(3):
            connection = stack.enter_context(listener.accept()[0])
            connection.settimeout(10)
            with suppress(ConnectionResetError):
                assert read_all(connection).startswith(b"GET /health HTTP/1.1\r\n")


def test_the_reason_is_todays(dead_url: str, stub: MakeStub, route: MakeRouter) -> None:
    """The reason of a worker that is down is the latest one."""
    worker = stub()
    worker.well = False
    router = route(worker.url, health={"interval": "10ms"})
    assert router.worker().reason == "/health answered 500"
    worker.fixed[b"/v1/models"] = b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n"
    worker.well = True
    until(lambda: router.worker().reason.startswith("/v1/models answered 401"))


@pytest.mark.parametrize("stream", [True, False])
def test_what_is_not_learned_from_answers_to_several_prompts(
    stub: MakeStub, route: MakeRouter, *, stream: bool
) -> None:
    """Their counts are sums, and their first byte is that of one of them."""
    usage = (
        b'{"prompt_tokens":9000,"completion_tokens":900,"prompt_tokens_details":'
        b'{"cached_tokens":8000}}'
    )
    told, kind = b'{"id":"x","choices":[],"usage":' + usage + b"}", b"application/json"
    if stream:
        told, kind = b"data: " + told + b"\n\ndata: [DONE]\n\n", b"text/event-stream"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    router = route(stub([head % (kind, len(told)) + told]).url)
    (pool,) = router.door.fleet.pools
    body = {"model": "m", "prompt": ["one " * 4000, "two " * 4000], "stream": stream}
    assert router.http.post("/v1/completions", json=body).text == told.decode()
    until(router.idle)
    strategy = pool.strategy
    assert isinstance(strategy, PrefixAware)
    estimates = pool.prompts.estimates
    assert (estimates.answered, estimates.seen, pool.curve.seen) == (0, 0, 0)
    assert router.metric("warmroute_cached_tokens_total", pool="default") == 8000
    assert samples(router, "cached_error_tokens", "_bucket")[-1] == 0
    body["prompt"] = "three " * 4000
    assert router.http.post("/v1/completions", json=body).text == told.decode()
    until(router.idle)
    assert (estimates.answered, estimates.seen) == (1, 1)
    assert samples(router, "cached_error_tokens", "_bucket")[-1] == 1
    assert stream or pool.curve.seen == 1


def test_a_worker_needs_no_metrics(stub: MakeStub, route: MakeRouter) -> None:
    """A worker without metrics gets requests; a metric tells that its cache size is unknown."""
    half, none, other = stub(), stub(), stub()
    half.fixed[b"/metrics"] = b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf"
    router = route(
        half.url,
        none.url,
        {"url": other.url, "kv_tokens": 1000},
        strategy="roundrobin",
        health={"timeout": "500ms", "interval": "10ms"},
    )
    states = [(one["state"], one["kv_tokens"]) for one in router.http.get("/workers").json()]
    assert states == [("ready", None), ("ready", None), ("ready", 1000)]
    passed = len(half.probes)
    until(lambda: len(half.probes) > passed + 5)
    for _ in range(3):
        assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert [len(worker.requests) for worker in (half, none, other)] == [1, 1, 1]
    for worker, unknown in ((half, 1), (none, 1), (other, 0)):
        labels = {"pool": "default", "worker": worker.url.removeprefix("http://")}
        assert router.metric("warmroute_worker_size_unknown", **labels) == unknown


@pytest.mark.parametrize("change", ["rise", "fall"])
def test_as_many_probes_as_asked_for(stub: MakeStub, route: MakeRouter, change: str) -> None:
    """After a refused connection `rise` probes must pass; a ready worker has `fall` to fail."""
    worker = stub()
    router = route(worker.url, health={change: 1000, "interval": "10ms"})
    if change == "rise":
        router.worker().lost("as if refused")
    else:
        worker.well = False
    passed = len(worker.probes)
    until(lambda: len(worker.probes) > passed + 5)
    assert router.worker().ready is (change == "fall")
    worker.well = True


DEEP = b'{"data":[{"id":"m","x":%b}]}'
BAD_MODELS = {
    "nothing": b"",
    "no object": b"[]",
    "no list": b'{"data":null}',
    "a number": b'{"data":[{"id":7}]}',
    "no UTF-8": b'{"data":[{"id":"\xff"}]}',
    "half": b'{"data":[{"id":"x","y":' + b"[" * 100_000,
    "deep": DEEP % (b"[" * 64 + b"]" * 64),  # the description is a level itself
    "many": DEEP % (b"[" + b",".join([b"{}"] * 131_072) + b"]"),
}


@pytest.mark.parametrize("case", BAD_MODELS)
def test_a_worker_that_tells_nonsense_of_its_models(
    stub: MakeStub, route: MakeRouter, case: str
) -> None:
    """It is down, with the reason, also with more than clients could be told; valid, it is used."""
    worker = stub()
    worker.fixed[b"/v1/models"] = whole(BAD_MODELS[case])
    router = route(worker.url, health={"interval": "20ms", "timeout": "10s"})
    (status,) = router.http.get("/workers").json()
    assert status["state"] == "down"
    assert status["reason"].startswith("/v1/models answered ")
    worker.fixed[b"/v1/models"] = whole(DEEP % (b"[" * 63 + b"]" * 63))
    until(lambda: router.worker().ready)
    assert len(router.http.get("/v1/models").json()["data"]) == 1


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe",
        b"vllm:cache_config_info{",
        b"vllm:cache_config_info{, = \\}\n",
        b'vllm:cache_config_info{block_size="x",num_gpu_blocks="y"} 1\n',
        b'vllm:cache_config_info{block_size="16"} 1\n',
        b'vllm:cache_config_info{num_gpu_blocks="%b",block_size="16"} 1\n' % (b"9" * 400),
        b'vllm:cache_config_info{num_gpu_blocks="-5",block_size="16"} 1\n',
    ],
)
def test_a_worker_that_tells_nonsense_of_its_cache(
    stub: MakeStub, route: MakeRouter, text: bytes
) -> None:
    """A worker with invalid metrics is used, and probed; the size of its cache is unknown."""
    worker = stub()
    worker.fixed[b"/metrics"] = whole(text)
    router = route(worker.url, health={"interval": "10ms"})
    passed = len(worker.probes)
    until(lambda: len(worker.probes) > passed + 2)
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert router.worker().room_tokens is None


@pytest.mark.parametrize(
    "others",
    [
        b'odd{, = \\}\nvllm:other{engine="0"} 1\n' * 100_000,
        b"vllm:cache_config_info{%b} 1\n" % b",".join([b'a%d="1"' % n for n in range(1000)]),
        b'vllm:cache_config_info_too{engine="0"} 1\n\n' * 10,
    ],
    ids=["many", "long", "other"],
)
def test_metrics_of_which_most_is_for_others(
    stub: MakeStub, route: MakeRouter, others: bytes
) -> None:
    """Other lines do not matter, however many, long or malformed they are."""
    worker = stub()
    worker.fixed[b"/metrics"] = whole(others + SIZE + b"process_start_time_seconds 7\n")
    router = route(worker.url, **SLOW)
    assert (router.worker().room_tokens, router.worker().started) == (160, 7)
    assert router.http.get("/workers").json()[0]["kv_tokens"] == 160


ON, OFF = b',enable_prefix_caching="True"', b',enable_prefix_caching="False"'


@pytest.mark.parametrize(
    ("labels", "reuses"),
    [
        ((ON,), True),
        ((OFF,), False),
        ((b"",), None),
        ((ON + b',engine="0"', ON), True),
        ((ON + b',engine="0"', OFF), False),
        ((ON,) * 10_000, True),
    ],
    ids=["on", "off", "not told", "on in all", "on in some", "very many"],
)
def test_whether_the_prefix_cache_is_on_is_learned(
    stub: MakeStub, route: MakeRouter, labels: tuple[bytes, ...], *, reuses: bool | None
) -> None:
    """It is a label of vLLM's gauge; of several engines behind a worker, all must have one."""
    worker = stub()
    gauge = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"%b} 1\n'
    worker.fixed[b"/metrics"] = whole(b"".join(gauge % label for label in labels))
    router = route(worker.url, **SLOW)
    assert router.worker().reuses is reuses
    assert router.worker().keeps is bool(reuses)
    assert router.worker().room_tokens == 1600


def test_a_worker_that_is_not_http(stub: MakeStub, route: MakeRouter) -> None:
    """The router starts although a worker does not speak HTTP, or is silent, and says why."""
    worker = stub()
    worker.fixed[b"/health"] = b"220 smtp ready\r\n"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        router = route(worker.url, url, health={"interval": "1h", "timeout": "200ms"})
        for status in router.http.get("/workers").json():
            assert (status["state"], bool(status["reason"])) == ("down", True)
    assert router.http.get("/health/ready").status_code == 503
