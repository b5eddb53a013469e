"""Prometheus metrics of sessions."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from router.fleet.pool import Pool


def session_metrics(pools: Iterable["Pool"]) -> Iterator[Metric]:
    """Yield the metrics of every pool that keeps sessions."""
    kept = [(pool.name, pool.sessions) for pool in pools if pool.sessions is not None]
    if not kept:
        return
    is_open = GaugeMetricFamily("warmroute_open_sessions", "Sessions open now.", labels=("pool",))
    events = CounterMetricFamily(
        "warmroute_session_events",
        "What became of sessions: new, rebound (their worker was lost), spilled (moved for its"
        " load), closed, lost (closed with their worker), hashed (uses while the store was down).",
        labels=("pool", "event"),
    )
    ended = CounterMetricFamily(
        "warmroute_sessions_ended",
        "Sessions that nobody closed: expired, or evicted for want of room.",
        labels=("pool", "how"),
    )
    up = GaugeMetricFamily(
        "warmroute_session_store_up", "1 if the session store can be reached.", labels=("pool",)
    )
    for name, sessions in kept:
        there, expired, evicted = sessions.kept()
        is_open.add_metric((name,), there)
        for event, count in sessions.counts.items():
            events.add_metric((name, event), count)
        ended.add_metric((name, "expired"), expired)
        ended.add_metric((name, "evicted"), evicted)
        up.add_metric((name,), float(not sessions.down))
    yield from (is_open, events, ended, up)
