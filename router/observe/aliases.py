"""Repeats some metrics under the names that HyperPod's dashboards query.

In HyperPod, a sidecar beside each model counts per pod; here the router counts per worker. Names
and units: "Invocation metrics" in the observability pages of HyperPod's documentation. Of its
labels, `resource_name` is the pool here, and `pod_name` the worker.
"""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from router.fleet.pool import Pool
from router.observe.series import Counter, Histogram

_LABELS = ("resource_name", "pod_name")
#: Status classes (`warmroute_requests_total`) that count as errors; a client that left does not.
_ERRORS = frozenset(("4xx", "5xx"))
_MS = 1000.0


class Durations(Protocol):
    """The histograms of one pool's requests, in seconds."""

    first_byte: Histogram
    duration: Histogram


def hyperpod(
    requests: Counter, pools: Iterable[Pool], durations: Mapping[str, Durations]
) -> Iterator[Metric]:
    """Make the five metrics; `requests` counts by pool, worker and status class."""
    asked, failed = Tally[tuple[str, str]](), Tally[tuple[str, str]]()
    for (pool, worker, status), count in requests.items():
        asked[pool, worker] += int(count)
        failed[pool, worker] += int(count) if status in _ERRORS else 0
    yield _counter("model_invocations", "Requests answered by a model.", asked)
    yield _counter("model_errors", "Of these, those answered 4xx or 5xx.", failed)
    flying = GaugeMetricFamily(
        "model_concurrent_requests", "Requests at a model now.", labels=_LABELS
    )
    for one in pools:
        for who in one.workers:
            flying.add_metric((one.name, who.name), who.load.here)
    yield flying
    latency = HistogramMetricFamily(
        "model_latency_milliseconds", "For a whole answer.", labels=_LABELS[:1]
    )
    first = HistogramMetricFamily(
        "model_ttfb_milliseconds", "Until an answer's first byte, streams.", labels=_LABELS[:1]
    )
    for name, kept in durations.items():
        kept.duration.add_to(latency, (name,), _MS)
        kept.first_byte.add_to(first, (name,), _MS)
    yield from (latency, first)


def _counter(name: str, says: str, counts: Tally[tuple[str, str]]) -> Metric:
    family = CounterMetricFamily(name, says, labels=_LABELS)
    for labels, count in counts.items():
        family.add_metric(labels, count)
    return family
