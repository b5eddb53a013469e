"""The contents of `/metrics`."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

from simulator.fleet import FleetThread

COUNTERS = {
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:request_success_total",
}
GAUGES = {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"}


def scrape(client: httpx.Client) -> dict[str, dict[str, float]]:
    """Return sample name to labels to value, as a Prometheus server reads them."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[str(sorted(sample.labels.items()))] = sample.value
    return samples


def test_metrics_have_vllms_names_and_labels(client: httpx.Client) -> None:
    """Every metric is labelled with model and engine."""
    samples = scrape(client)
    assert samples.keys() >= COUNTERS | GAUGES
    for name in COUNTERS | GAUGES:
        for labels in samples[name]:
            assert "('engine', '0')" in labels
            assert "('model_name', 'toy')" in labels


def test_the_cache_is_described(client: httpx.Client, shared: FleetThread) -> None:
    """A router can read the block size and the number of blocks."""
    ((labels, value),) = scrape(client)["vllm:cache_config_info"].items()
    assert value == 1
    blocks = shared.workers[0].engine.cache.num_blocks
    assert "('block_size', '16')" in labels
    assert f"('num_gpu_blocks', '{blocks}')" in labels


def test_a_request_is_counted(client: httpx.Client) -> None:
    """By tokens, hits, finish reason, and time to first token."""
    before = scrape(client)
    body = {"prompt": [*range(5000, 5064)], "max_tokens": 7}
    for _ in range(2):
        client.post("/v1/completions", json=body)
    after = scrape(client)

    def grown(name: str, word: str = "") -> float:
        return sum(
            value - before[name][labels] for labels, value in after[name].items() if word in labels
        )

    assert grown("vllm:prompt_tokens_total") == 128
    assert grown("vllm:generation_tokens_total") == 14
    assert grown("vllm:prefix_cache_queries_total") == 128
    assert grown("vllm:prefix_cache_hits_total") == 48
    assert grown("vllm:request_success_total", "length") == 2
    assert grown("vllm:request_success_total") == 2
    assert grown("vllm:time_to_first_token_seconds_count") == 2
    assert grown("vllm:time_to_first_token_seconds_bucket", "+Inf") == 2
    assert after["vllm:num_requests_running"].popitem()[1] == 0
    assert after["simulator_behind_seconds"].popitem()[1] == 0
