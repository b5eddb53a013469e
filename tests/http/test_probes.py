"""What the router learns about its workers from probes, metrics and answers."""

import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from router.fleet import probes as health
from router.fleet.inquiries import NoAnswer
from router.http.server import PortTaken, bind
from router.settings.types import Address
from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from strategies.policies.prefix_aware import PrefixAware
from tests.overload.totals import samples
from tests.support import Action, MakeRouter, MakeStub, read_all, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


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


@pytest.mark.parametrize(
    "told",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf",
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
    ],
    ids=["half", "404"],
)
def test_a_worker_needs_no_metrics(stub: MakeStub, route: MakeRouter, told: bytes) -> None:
    """A worker without metrics gets requests; a metric tells that its cache size is unknown."""
    worker, other = stub(), stub()
    worker.fixed[b"/metrics"] = told
    router = route(
        worker.url,
        {"url": other.url, "kv_tokens": 1000},
        strategy="roundrobin",
        health={"timeout": "500ms", "interval": "10ms"},
    )
    status = {one["url"]: one for one in router.http.get("/workers").json()}[worker.url]
    assert (status["state"], status["kv_tokens"]) == ("ready", None)
    passed = len(worker.probes)
    until(lambda: len(worker.probes) > passed + 5)
    chat = {"model": "m", "messages": []}
    for _ in range(4):
        assert router.http.post("/v1/chat/completions", json=chat).status_code == 200
    assert (len(worker.requests), len(other.requests)) == (2, 2)
    for url, unknown in ((worker.url, 1), (other.url, 0)):
        name = url.removeprefix("http://")
        found = router.metric("warmroute_worker_size_unknown", pool="default", worker=name)
        assert found == unknown


def test_as_many_good_probes_as_asked_for(stub: MakeStub, route: MakeRouter) -> None:
    """After a refused connection a worker needs `rise` good probes to be ready again."""
    worker = stub()
    router = route(worker.url, health={"rise": 1000, "interval": "10ms"})
    router.worker().lost("as if refused")
    passed = len(worker.probes)
    until(lambda: len(worker.probes) > passed + 5)
    assert not router.worker().ready


def test_as_many_failed_probes_as_asked_for(stub: MakeStub, route: MakeRouter) -> None:
    """A worker stays ready until `fall` probes have failed."""
    worker = stub()
    router = route(worker.url, health={"fall": 1000, "interval": "10ms"})
    worker.well = False
    failed = len(worker.probes)
    until(lambda: len(worker.probes) > failed + 5)
    assert router.worker().ready
    worker.well = True


def test_the_reason_is_todays(dead_url: str, stub: MakeStub, route: MakeRouter) -> None:
    """The reason of a worker that is down is the latest one."""
    worker = stub()
    worker.well = False
    router = route(worker.url, health={"interval": "10ms"})
    assert router.worker().reason == "/health answered 500"
    worker.fixed[b"/v1/models"] = b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n"
    worker.well = True
    until(lambda: router.worker().reason.startswith("/v1/models answered 401"))


def test_models_are_listed_as_workers_describe_them(route: MakeRouter) -> None:
    """`/v1/models` keeps workers' fields, such as `max_model_len`."""
    with FleetThread(FleetSettings(workers=2, profile="toy", models=("toy",))) as fleet:
        (model,) = route(*fleet.urls).http.get("/v1/models").json()["data"]
    assert model["id"] == "toy"
    assert model["max_model_len"] > 0


def test_the_second_of_two_servers_hears_of_it() -> None:
    """Binding a port that another server has bound raises PortTaken, before either listens."""
    with bind(Address("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(PortTaken, match="in use"):
            bind(Address("127.0.0.1", port))


def test_what_is_learned_from_answers(route: MakeRouter) -> None:
    """Pace, prompts' sizes, and predicted and reported cached tokens are learned from answers."""
    settings = FleetSettings(workers=1, profile="llama-3.1-8b-h100", models=("toy",), speed=10)
    with FleetThread(settings) as fleet:
        router = route(*fleet.urls)
        talk = [{"role": "user", "content": "word " * 4000}]
        body = {"model": "toy", "messages": talk, "max_tokens": 2, "stream": True}
        for _ in range(2):
            text = router.http.post(
                "/v1/chat/completions", json={**body, "stream_options": {"include_usage": True}}
            ).text
            assert "[DONE]" in text
            until(router.idle)
        body["messages"] = [{"role": "user", "content": "other " * 4000}]
        router.http.post(
            "/v1/chat/completions", json={**body, "stream_options": {"include_usage": True}}
        )
        until(router.idle)
    assert router.worker().pace.factor != 1.0
    (pool,) = router.door.fleet.pools
    assert pool.prompts.estimates.seen == 3
    cached = router.metric("warmroute_cached_tokens_total", pool="default")
    predicted = router.metric("warmroute_predicted_cached_tokens_total", pool="default")
    assert cached > 4000
    assert abs(predicted - cached) < 200


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


def test_a_headers_end_that_never_comes(stub: MakeStub, route: MakeRouter) -> None:
    """A worker's endless header field gives 502 instead of being buffered."""
    script: list[Action] = [b"HTTP/1.1 200 OK\r\nx: ", *[b"a" * 65536] * 100]
    router = route(stub(script).url, health={"interval": "1h"})
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 502


@pytest.mark.parametrize(
    "metrics",
    [
        b"vllm:cache_config_info{, = \\}\n",
        b'vllm:cache_config_info{num_gpu_blocks="%b",block_size="16"} 1\n' % (b"9" * 400),
        b'vllm:cache_config_info{num_gpu_blocks="-5",block_size="16"} 1\n',
    ],
    ids=["odd", "huge", "negative"],
)
def test_metrics_that_make_no_sense(stub: MakeStub, route: MakeRouter, metrics: bytes) -> None:
    """Invalid metrics are ignored: the worker is used, and probes go on."""
    worker = stub()
    worker.fixed[b"/metrics"] = (
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(metrics) + metrics
    )
    router = route(worker.url, health={"interval": "10ms"})
    assert router.http.post("/v1/chat/completions", json=CHAT).status_code == 200
    assert router.worker().room_tokens is None
    passed = len(worker.probes)
    until(lambda: len(worker.probes) > passed + 2)


def test_metrics_of_which_most_is_for_others(stub: MakeStub, route: MakeRouter) -> None:
    """Other metrics of a worker do not matter, however many or malformed they are."""
    worker = stub()
    size = b'vllm:cache_config_info{num_gpu_blocks="10",block_size="16"} 1\n'
    metrics = b"odd{, = \\}\n" + size + b'vllm:other{engine="0"} 1\n' * 250_000
    worker.fixed[b"/metrics"] = (
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(metrics) + metrics
    )
    router = route(worker.url, health={"interval": "1h", "timeout": "10s"})
    assert router.worker().room_tokens == 160


@pytest.mark.parametrize(
    "others",
    [
        b"vllm:cache_config_info{%b} 1\n" % b",".join([b'a%d="1"' % n for n in range(1000)]),
        b'vllm:cache_config_info_too{engine="0"} 1\n' * 10,
        b"\n" * 1000,
    ],
    ids=["long", "other", "empty"],
)
def test_lines_that_say_no_size(monkeypatch: pytest.MonkeyPatch, others: bytes) -> None:
    """The size is found behind lines of other names, and the parser gets no long one."""
    parsed: list[str] = []

    def parse(text: str) -> Iterable[Metric]:
        parsed.append(text)
        return text_string_to_metric_families(text)

    monkeypatch.setattr(health, "text_string_to_metric_families", parse)
    size = b'vllm:cache_config_info{num_gpu_blocks="10",block_size="16"} 1\n'
    told = health._told(others + size + b"process_start_time_seconds 7\n")
    assert (told.gpu_tokens, told.started) == (160, 7)
    assert max(map(len, parsed[0].splitlines())) < 4096


def test_of_many_ranks_a_few_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks of a worker say the same; the parser takes long for ten thousand."""
    parsed: list[str] = []
    monkeypatch.setattr(health, "text_string_to_metric_families", parsed.append)
    health._told(b"vllm:cache_config_info{} 1\n" * 10_000 + b"process_start_time_seconds 7")
    assert len(parsed[0].splitlines()) == health._MAX_LINES + 1


@pytest.mark.parametrize("thing", [b"[]", b"{}"])
def test_a_list_of_models_is_bounded(thing: bytes) -> None:
    """A worker may describe many models, but not by so much that reading it stalls the router."""
    body = b'{"data":[{"id":"m","x":[%b]}]}'
    few, many = (b",".join([thing] * (health.MAX_LIST_VALUES - less)) for less in (4, 3))
    assert list(health._models(body % few)) == ["m"]
    with pytest.raises(NoAnswer, match="more than 131072 lists and objects"):
        health._models(body % many)
