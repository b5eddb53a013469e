"""Metrics of every pool and its workers, read from the fleet at each scrape.

Some are repeated under the names that HyperPod's dashboards query. In HyperPod, a sidecar beside
each model counts per pod; here the router counts per worker. Names and units: "Invocation metrics"
in the observability pages of HyperPod's documentation. Of its labels, `resource_name` is the pool
here, and `pod_name` the worker.
"""

import logging
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import ProbeState, Worker
from router.observe.metrics import Counter, Histogram, Metrics

log = logging.getLogger("warmroute.metrics")


def fleet_metrics(fleet: Fleet) -> Metrics:
    """Return the metrics of a router with that fleet: of its requests, its workers, its prompts."""
    metrics = Metrics(lambda: ((pool.name, tuple(pool.named)) for pool in fleet.pools))
    metrics.add(lambda: worker_metrics(fleet.pools))
    metrics.add(lambda: prompt_metrics(fleet.pools))
    return metrics


#: Gauges of each worker: the name, what it tells, and how it is read.
_WORKER_GAUGES: tuple[tuple[str, str, Callable[[Worker], float]], ...] = (
    ("worker_up", "1 if ready, else 0.", lambda worker: worker.state is ProbeState.READY),
    ("in_flight", "Requests booked and not ended.", lambda worker: worker.load.here),
    ("kv_tokens_booked", "KV tokens booked.", lambda worker: worker.load.tokens_here),
    (
        "pace_factor",
        "Learned prefill time over the first guess.",
        lambda worker: worker.pace.factor,
    ),
    (
        "worker_ejected",
        "1 while left out for its failures, else 0.",
        lambda worker: not worker.breaker.closed,
    ),
    (
        "worker_size_unknown",
        "1 while neither it nor the settings tell how much its KV cache holds, else 0.",
        lambda worker: worker.room_tokens is None,
    ),
)


def worker_metrics(pools: Iterable[Pool]) -> Iterator[Metric]:
    """Yield the state of workers, their bookings, and the sizes that strategies report."""
    labels = ("pool", "worker")
    gauges = [
        (GaugeMetricFamily(f"warmroute_{name}", text, labels=labels), value)
        for name, text, value in _WORKER_GAUGES
    ]
    ejections = CounterMetricFamily(
        "warmroute_ejections",
        "How often a worker was left out, by the kind of its last failure.",
        labels=(*labels, "kind"),
    )
    sizes: dict[str, GaugeMetricFamily] = {}  # one family per name, shared by all pools
    for pool in pools:
        for worker in pool.workers:
            where = (pool.name, worker.name)
            for family, value in gauges:
                family.add_metric(where, float(value(worker)))
            for kind, count in worker.breaker.ejections.items():
                ejections.add_metric((*where, kind), count)
        for name, size in _sizes(pool).items():
            if name not in sizes:
                sizes[name] = GaugeMetricFamily(
                    f"warmroute_{name}", "Size kept by the strategy.", labels=("pool",)
                )
            sizes[name].add_metric((pool.name,), size)
    yield from (*(family for family, _ in gauges), ejections, *sizes.values())


def prompt_metrics(pools: Iterable[Pool]) -> Iterator[Metric]:
    """Yield what prompts are keyed by: tokens or text."""
    keyed = CounterMetricFamily(
        "warmroute_prompts", "Prompts by what they are keyed by.", labels=("pool", "keyed")
    )
    by_text = CounterMetricFamily(
        "warmroute_prompts_by_text",
        "Prompts keyed by their text, by why not by tokens.",
        labels=("pool", "reason"),
    )
    miscounted = CounterMetricFamily(
        "warmroute_prompts_miscounted",
        "Prompts of which a worker counted other tokens than were computed.",
        labels=("pool",),
    )
    for pool in pools:
        reasons = pool.prompts.by_reason
        keyed.add_metric((pool.name, "tokens"), reasons[""])
        keyed.add_metric((pool.name, "text"), reasons.total() - reasons[""])
        miscounted.add_metric((pool.name,), pool.prompts.miscounted)
        for reason, count in reasons.items():
            if reason:
                by_text.add_metric((pool.name, reason), count)
    yield from (keyed, by_text, miscounted)


def _sizes(pool: Pool) -> Mapping[str, float]:
    """Return the strategy's own gauges; an error in them must not hide all other metrics."""
    try:
        gauges: Mapping[str, Any] = pool.strategy.gauges()  # a plug-in's may not be floats
        return {name: float(value) for name, value in gauges.items()}
    except Exception:
        log.exception("pool %s: its strategy raised an error", pool.name)
        return {}


_LABELS = ("resource_name", "pod_name")
#: Status classes (`warmroute_requests_total`) that count as errors; a client that left does not.
_ERRORS = frozenset(("4xx", "5xx"))
_MS = 1000.0


class Durations(Protocol):
    """The histograms of one pool's requests, in seconds."""

    first_byte: Histogram
    duration: Histogram


def hyperpod_metrics(
    requests: Counter, pools: Iterable[Pool], durations: Mapping[str, Durations]
) -> Iterator[Metric]:
    """Make the five metrics; `requests` counts by pool, worker and status class."""
    invocations, failed = Tally[tuple[str, str]](), Tally[tuple[str, str]]()
    for (pool_name, worker, status), count in requests.items():
        invocations[pool_name, worker] += int(count)
        failed[pool_name, worker] += int(count) if status in _ERRORS else 0
    yield _counter("model_invocations", "Requests answered by a model.", invocations)
    yield _counter("model_errors", "Of these, those answered 4xx or 5xx.", failed)
    flying = GaugeMetricFamily(
        "model_concurrent_requests", "Requests at a model now.", labels=_LABELS
    )
    for pool in pools:
        for who in pool.workers:
            flying.add_metric((pool.name, who.name), who.load.here)
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
