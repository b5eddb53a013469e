"""Metrics of every pool and its workers, read from the fleet at each scrape."""

import logging
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from router.fleet.pool import Pool
from router.fleet.worker import State
from router.tokenizers import agreement
from router.tokenizers.state import Case

log = logging.getLogger("warmroute.metrics")


def gauges(pools: Iterable[Pool]) -> Iterator[Metric]:
    """Yield the state of workers, their bookings, and the sizes that strategies report."""
    labels = ("pool", "worker")
    up = GaugeMetricFamily("warmroute_worker_up", "1 if ready, else 0.", labels=labels)
    flying = GaugeMetricFamily(
        "warmroute_in_flight", "Requests booked and not ended.", labels=labels
    )
    booked = GaugeMetricFamily("warmroute_kv_tokens_booked", "KV tokens booked.", labels=labels)
    pace = GaugeMetricFamily(
        "warmroute_pace_factor", "Learned prefill time over the first guess.", labels=labels
    )
    out = GaugeMetricFamily(
        "warmroute_worker_ejected", "1 while left out for its failures, else 0.", labels=labels
    )
    unsized = GaugeMetricFamily(
        "warmroute_worker_size_unknown",
        "1 while neither it nor the settings tell how much its KV cache holds, else 0.",
        labels=labels,
    )
    ejections = CounterMetricFamily(
        "warmroute_ejections",
        "How often a worker was left out, by the kind of its last failure.",
        labels=(*labels, "kind"),
    )
    sizes: dict[str, GaugeMetricFamily] = {}  # one family per name, shared by all pools
    for pool in pools:
        for worker in pool.workers:
            where = (pool.name, worker.name)
            up.add_metric(where, float(worker.state is State.READY))
            flying.add_metric(where, worker.load.here)
            booked.add_metric(where, worker.load.tokens_here)
            pace.add_metric(where, worker.pace.factor)
            out.add_metric(where, float(not worker.breaker.closed))
            unsized.add_metric(where, float(worker.room_tokens is None))
            for kind, count in worker.breaker.ejections.items():
                ejections.add_metric((*where, kind), count)
        for name, value in _sizes(pool).items():
            if name not in sizes:
                sizes[name] = GaugeMetricFamily(
                    f"warmroute_{name}", "Size kept by the strategy.", labels=("pool",)
                )
            sizes[name].add_metric((pool.name,), value)
    yield from (up, flying, booked, pace, out, unsized, ejections, *sizes.values())


def prompts(pools: Iterable[Pool]) -> Iterator[Metric]:
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


def tokenizers(pools: Iterable[Pool], cases: Iterable[Case]) -> Iterator[Metric]:
    """Yield whether workers make the same tokens as the router."""
    found: dict[str, Tally[agreement.State]] = {pool.name: Tally() for pool in pools}
    for case in cases:
        found.setdefault(case.pool, Tally()).update(case.counts())
    workers = GaugeMetricFamily(
        "warmroute_tokenizer_workers",
        "Workers by whether they make the same tokens, once for each tokenizer.",
        labels=("pool", "state"),
    )
    for pool, counts in found.items():
        for state in agreement.State:
            workers.add_metric((pool, state.value), counts[state])
    yield workers


def _sizes(pool: Pool) -> Mapping[str, float]:
    """Return the strategy's own gauges; an error in them must not hide all other metrics."""
    try:
        told: Mapping[str, Any] = pool.strategy.gauges()  # a plug-in's may not be floats
        return {name: float(value) for name, value in told.items()}
    except Exception:
        log.exception("pool %s: its strategy raised an error", pool.name)
        return {}
