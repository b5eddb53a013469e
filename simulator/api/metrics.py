"""A worker's `/metrics`, under vLLM's names (`vllm/v1/metrics/loggers.py`).

Values are read from the engine when scraped. Times are real seconds, as a client sees them, even
if the fleet runs faster than its profile.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from simulator.engine.clock import EngineClock
from simulator.engine.core import EngineTotals

# vLLM's histogram bounds, in seconds.
_TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)


class RequestStats:
    """What the engine cannot know: how requests ended, and their real time to first token."""

    def __init__(self) -> None:
        self.finished: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0})
        self.ttft_sum = 0.0
        self._ttft = [0] * (len(_TTFT_BOUNDS) + 1)

    def first_token(self, seconds: float) -> None:
        """Record that a request's first token came `seconds` after the request."""
        self.ttft_sum += seconds
        self._ttft[bisect_left(_TTFT_BOUNDS, seconds)] += 1

    def ttft_buckets(self) -> list[tuple[str, float]]:
        """Return cumulative counts by upper bound, for a Prometheus histogram."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, _TTFT_BOUNDS), "+Inf"), self._ttft, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets


class WorkerCollector(Collector):
    """Reads one worker's numbers at each scrape."""

    def __init__(self, model: str, clock: EngineClock, stats: RequestStats) -> None:
        self._labels = [model, "0"]
        self._clock = clock
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Every metric of the worker."""
        engine, totals = self._clock.engine, self._clock.engine.totals
        yield self._gauge("num_requests_running", "Requests in execution.", engine.running)
        yield self._gauge("num_requests_waiting", "Requests waiting.", engine.waiting)
        yield self._gauge("kv_cache_usage_perc", "KV-cache usage, 0 to 1.", engine.kv_usage)
        yield self._counter("prefix_cache_queries", "Tokens queried.", totals.prefix_queries)
        yield self._counter("prefix_cache_hits", "Cached tokens.", totals.prefix_hits)
        if engine.tiers is not None:
            yield from self._tiers(totals)
        yield self._counter("prompt_tokens", "Prefill tokens.", totals.prompt_tokens)
        yield self._counter("generation_tokens", "Generated tokens.", totals.generation_tokens)
        yield self._counter("num_preemptions", "Preemptions.", totals.preemptions)
        yield self._finished()
        yield self._rejections()
        yield self._ttft()
        yield self._cache_config()
        behind = "Real seconds by which the simulated clock is late."
        yield GaugeMetricFamily("simulator_behind_seconds", behind, value=self._clock.behind_s)

    def _tiers(self, totals: EngineTotals) -> Iterator[Metric]:
        """Hits on the tiers behind the GPU, as vLLM and its offloading connector name them."""
        hits = {"0:primary": totals.l1_hits, "1:store": totals.l2_hits}
        queries = totals.prefix_queries - totals.prefix_hits + sum(hits.values())
        yield self._counter("external_prefix_cache_queries", "Tokens queried.", queries)
        yield self._counter("external_prefix_cache_hits", "Tokens.", sum(hits.values()))
        labels = ["model_name", "engine", "tier"]
        name = "vllm:kv_offload_tiering_chunk_hits"
        family = CounterMetricFamily(name, "Blocks found, by tier.", labels=labels)
        for tier, tokens in hits.items():
            blocks = tokens // self._clock.engine.cache.block_size
            family.add_metric([*self._labels, tier], blocks)
        yield family

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name", "engine"])
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=["model_name", "engine"])
        family.add_metric(self._labels, value)
        return family

    def _finished(self) -> CounterMetricFamily:
        labels = ["model_name", "engine", "finished_reason"]
        family = CounterMetricFamily("vllm:request_success", "Finished requests.", labels=labels)
        for reason, count in self._stats.finished.items():
            family.add_metric([*self._labels, reason], count)
        return family

    def _rejections(self) -> CounterMetricFamily:
        labels = ["model_name", "engine", "reason"]
        family = CounterMetricFamily("vllm:admission_rejections", "Refused.", labels=labels)
        rejected = self._clock.engine.totals.rejected
        family.add_metric([*self._labels, "max_num_queued_reqs"], rejected)
        return family

    def _ttft(self) -> HistogramMetricFamily:
        labels = ["model_name", "engine"]
        name = "vllm:time_to_first_token_seconds"
        family = HistogramMetricFamily(name, "Time to first token.", labels=labels)
        family.add_metric(self._labels, self._stats.ttft_buckets(), self._stats.ttft_sum)
        return family

    def _cache_config(self) -> GaugeMetricFamily:
        cache = self._clock.engine.cache
        config = {
            "block_size": str(cache.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "engine": self._labels[1],
            "gpu_memory_utilization": "0.9",
            "kv_cache_size_tokens": str(cache.num_blocks * cache.block_size),
            "num_gpu_blocks": str(cache.num_blocks),
            "prefix_caching_hash_algo": "sha256",
        }
        name = "vllm:cache_config_info"
        family = GaugeMetricFamily(name, "Cache configuration.", labels=list(config))
        family.add_metric(list(config.values()), 1)
        return family


def registry(model: str, clock: EngineClock, stats: RequestStats) -> CollectorRegistry:
    """Return a registry of one worker's own metrics."""
    own = CollectorRegistry()
    own.register(WorkerCollector(model, clock, stats))
    return own
