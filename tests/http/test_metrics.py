"""The metrics of `/metrics`: every family, its type and what it counts."""

import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from router import __version__, build_kind
from tests.http.test_admin import CHAT, SLOW, pool
from tests.support import MakeRouter, MakeStub, Router, until

TYPES = {"counter", "gauge", "histogram"}


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
    """Every family has its type and a help sentence, and counts exactly what was done."""
    router = route({"url": stub().url, "name": "gpu-1"}, **SLOW)
    router.http.post("/v1/chat/completions", json=CHAT)
    router.http.post("/v1/chat/completions", content=b"x")
    families = scraped(router)
    for name, family in families.items():
        assert family.type in TYPES, name
        assert family.documentation.endswith("."), name
    counted = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families.values()
        for sample in family.samples
        if sample.value and sample.name.endswith(("_total", "_count"))
        if not sample.name.startswith("process_")
    }
    assert counted == {
        ("warmroute_requests_total", "2xx", "default", "gpu-1"): 1,
        ("warmroute_refused_requests_total", "400"): 1,
        ("warmroute_decisions_total", "cold", "default"): 1,
        ("warmroute_prompts_total", "default", "text"): 1,
        ("warmroute_prompts_by_text_total", "default", "tokenizer not known"): 1,
        ("warmroute_prompt_tokens_total", "default"): 7,
        ("warmroute_match_ratio_count", "default"): 1,
        ("warmroute_decision_seconds_count",): 1,
        ("warmroute_request_seconds_count", "default"): 1,
    }
    assert [sample.value for sample in families["warmroute_worker_up"].samples] == [1]


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
    assert told["warmroute_build_info"].labels == {"version": __version__, "build": build_kind()}
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
