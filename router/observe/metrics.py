"""The metrics for Prometheus. Labels come from the configuration only, never from a request."""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from controller.accuracy import ERROR_BOUNDS
from strategies.cost.prefill import Held


class Counter:
    """Counts by label values. `inc` is the hot path."""

    __slots__ = ("_labels", "_name", "_says", "_values")

    def __init__(self, name: str, says: str, labels: Sequence[str]) -> None:
        self._name, self._says, self._labels = name, says, tuple(labels)
        self._values: dict[tuple[str, ...], float] = {}

    def inc(self, labels: tuple[str, ...], by: float = 1) -> None:
        """Add to the series of these label values, in the order of the labels."""
        self._values[labels] = self._values.get(labels, 0) + by

    def begin(self, *labels: str) -> None:
        """Create the series of these label values at 0, unless it exists."""
        self._values.setdefault(labels, 0)

    def forget(self, label: str, value: str) -> None:
        """Drop every series with this label value, which is no longer in the configuration."""
        if label in self._labels:
            place = self._labels.index(label)
            gone = [labels for labels in self._values if labels[place] == value]
            for labels in gone:
                del self._values[labels]

    def items(self) -> Iterable[tuple[tuple[str, ...], float]]:
        """Return the label values and count of every series."""
        return self._values.items()

    def family(self) -> CounterMetricFamily:
        """Return the series for Prometheus."""
        family = CounterMetricFamily(self._name, self._says, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


class Histogram:
    """One series of observations in buckets; `bounds` are their upper ends, in any unit."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(
        self, family: HistogramMetricFamily, labels: Sequence[str], scale: float = 1.0
    ) -> None:
        """Add this series to a family, with all values multiplied by `scale`."""
        total, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound * scale), float(total)))
        family.add_metric(labels, buckets, self._sum * scale)


_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_MICRO = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25)
#: Shares of a prompt; even of a prompt that is held whole, the last token is always computed.
_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
#: The class that each status is counted under; 499 is a client that left.
_CLASSES: Final = {status: f"{status // 100}xx" for status in range(100, 600)} | {499: "499"}
#: Classes for which each worker has a series from the start.
_TOLD = ("2xx", "4xx", "499", "5xx")

#: Name, help and labels of every counter.
_COUNTERS = {
    "requests": (
        "Requests answered by a worker, by class of status; 499 is a client that left.",
        ("pool", "worker", "status"),
    ),
    "refused_requests": ("Requests answered by the router itself, by status.", ("status",)),
    "decisions": (
        "Why the first worker was first, or a session is where it is.",
        ("pool", "reason"),
    ),
    "worker_errors": ("Failures between the router and a worker.", ("pool", "worker", "kind")),
    "prompt_tokens": ("Prompt tokens that workers reported.", ("pool",)),
    "cached_tokens": ("Prompt tokens that workers reported as cached.", ("pool",)),
    "predicted_cached_tokens": (
        "Prompt tokens that the decision expected to be cached, where workers report them.",
        ("pool",),
    ),
    "kv_hit_tokens": (
        "Prompt tokens that workers reported as cached, by tier: as they said, or as was known.",
        ("pool", "tier"),
    ),
}


class PoolMetrics:
    """The series of one pool."""

    def __init__(self, counters: dict[str, Counter], pool: str) -> None:
        self._pool = pool
        self._counters = counters
        self._requests = counters["requests"]
        self._decisions = counters["decisions"]
        self._errors = counters["worker_errors"]
        self._prompt = counters["prompt_tokens"]
        self._cached = counters["cached_tokens"]
        self._predicted = counters["predicted_cached_tokens"]
        self._hits = counters["kv_hit_tokens"]
        self.first_byte = Histogram(_SECONDS)
        self.duration = Histogram(_SECONDS)
        self.matched = Histogram(_SHARES)
        self.error = Histogram(ERROR_BOUNDS)

    def begin(self, workers: Iterable[str]) -> None:
        """Create the counters at 0 at the start.

        If a counter first appears as 1, Prometheus cannot see that it has increased.
        """
        for worker in workers:
            for status in _TOLD:
                self._counters["requests"].begin(self._pool, worker, status)
        for name in ("prompt_tokens", "cached_tokens", "predicted_cached_tokens"):
            self._counters[name].begin(self._pool)

    def answered(self, worker: str, status: int) -> None:
        """Count an answer that was relayed."""
        self._requests.inc((self._pool, worker, _CLASSES[status]))

    def decided(self, reason: str) -> None:
        """Count a decision by its reason."""
        self._decisions.inc((self._pool, reason))

    def expected(self, held: int, tokens: int) -> None:
        """Observe how many of a prompt's tokens the chosen worker is believed to hold."""
        self.matched.observe(held / tokens if tokens else 0.0)

    def failed(self, worker: str, kind: str) -> None:
        """Count a failure between the router and a worker."""
        self._errors.inc((self._pool, worker, kind))

    def used(self, prompt_tokens: int, cached: int | None, expected: int) -> None:
        """Count the tokens that a worker reported, and the cached tokens expected."""
        self._prompt.inc((self._pool,), prompt_tokens)
        if cached is not None:
            self._cached.inc((self._pool,), cached)
            self._predicted.inc((self._pool,), expected)

    def compared(self, cached: int, expected: int) -> None:
        """Observe reported minus expected cached tokens."""
        self.error.observe(cached - expected)

    def hit(self, held: Held) -> None:
        """Count cached tokens by tier, as the worker reported them or as they were believed."""
        for tier, tokens in held._asdict().items():
            if tokens:
                self._hits.inc((self._pool, tier), tokens)


#: Name, help and series of every histogram of a pool.
_HISTOGRAMS: tuple[tuple[str, str, Callable[[PoolMetrics], Histogram]], ...] = (
    (
        "warmroute_first_byte_seconds",
        "From the request's last byte to the answer's first, streaming requests.",
        lambda pool: pool.first_byte,
    ),
    (
        "warmroute_request_seconds",
        "From the request's last byte to the answer's last.",
        lambda pool: pool.duration,
    ),
    (
        "warmroute_match_ratio",
        "Share of a prompt that the worker chosen was believed to hold.",
        lambda pool: pool.matched,
    ),
    (
        "warmroute_cached_error_tokens",
        "Cached tokens that workers reported, minus those that the decision expected.",
        lambda pool: pool.error,
    ),
)


class Metrics:
    """All series of one router, in a registry of their own.

    It counts requests itself. What shows something else, such as gauges of workers, is added by
    whoever makes the router. It acts as a `Collector` without subclassing it, because then it could
    not be compiled.
    """

    def __init__(self, pools: Callable[[], Iterable[tuple[str, Iterable[str]]]] = tuple) -> None:
        """`pools` returns the name of each pool, with the names of its workers."""
        self._staffed = pools
        self.counters = {
            name: Counter(f"warmroute_{name}", says, labels)
            for name, (says, labels) in _COUNTERS.items()
        }
        self.overhead = Histogram(_MICRO)
        self.pools: dict[str, PoolMetrics] = {}
        """The series of each pool, by its name."""
        self._collectors: list[Callable[[], Iterable[Metric]]] = []
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def add(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Include more metrics in every scrape."""
        self._collectors.append(collect)

    def pool(self, name: str) -> PoolMetrics:
        """Return the series of the pool of that name."""
        pool = self.pools.get(name)
        if pool is None:
            pool = self.pools[name] = PoolMetrics(self.counters, name)
        return pool

    def forget(self, worker: str) -> None:
        """End the series of a worker that has left."""
        for counter in self.counters.values():
            counter.forget("worker", worker)

    def refused(self, status: int) -> None:
        """Count an answer with this status from the router itself."""
        self.counters["refused_requests"].inc((str(status),))

    def collect(self) -> Iterator[Metric]:
        """Return every series; what is not counted here is read now."""
        for name, workers in self._staffed():
            self.pool(name).begin(workers)
        for counter in self.counters.values():
            yield counter.family()
        yield from self._histograms()
        yield GaugeMetricFamily("warmroute_tasks", "Tasks on the event loop.", _tasks())
        for collect in self._collectors:
            yield from collect()

    def _histograms(self) -> Iterator[Metric]:
        for name, says, series_of in _HISTOGRAMS:
            family = HistogramMetricFamily(name, says, labels=("pool",))
            for label, pool in self.pools.items():
                series_of(pool).add_to(family, (label,))
            yield family
        overhead = HistogramMetricFamily(
            "warmroute_decision_seconds", "From the request's last byte to the decision.", labels=()
        )
        self.overhead.add_to(overhead, ())
        yield overhead


def _tasks() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:  # called outside the event loop
        return 0
