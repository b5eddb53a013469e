"""Metrics of KV events: streams, the index, and the accuracy of its predictions.

`ControllerMetrics` has those of a controller that runs alone.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate
from time import monotonic

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from controller.accuracy import ERROR_BOUNDS
from controller.events.source import EventSource
from controller.events.stream import StreamPhase
from controller.kv_memory import KvMemory
from controller.service.middleware import RequestCounts
from router.fleet.pool import Pool
from router.kv.attach import Memories
from router.kv.snapshots import Snapshots

_WHERE = ("pool", "worker")
#: One label for all engines that were registered by the controller's API, not by its file.
REGISTERED = "registered"


def memory_metrics(memories: Memories) -> Iterator[Metric]:
    """Yield every series of all memories; nothing if no strategy uses one."""
    if any(memories.remotes()):
        yield _controller(memories)
    if memories.stores:
        yield from _stores(memories)
    if any(memories.pools()):
        yield _loads(memories)
        yield _missed(memories)
        yield from _index(memories)
        yield from _streams(memories)
    if any(memories.all()):
        yield from _truth(memories)


def _controller(memories: Memories) -> Metric:
    questions = CounterMetricFamily(
        "warmroute_kv_questions",
        "Questions to the controller, by whether it answered, was too slow, or failed.",
        labels=("pool", "outcome"),
    )
    for pool, remote in memories.remotes():
        questions.add_metric((pool.name, "answered"), remote.answers)
        for outcome in ("slow", "failed"):
            questions.add_metric((pool.name, outcome), getattr(remote, outcome))
    return questions


def _stores(memories: Memories) -> Iterator[Metric]:
    """Yield the series of L2 stores that are asked (not only known from events)."""
    questions = CounterMetricFamily(
        "warmroute_kv_store_questions",
        "Questions to the shared store, by what came of them: found, missed, slow, failed.",
        labels=("pool", "outcome"),
    )
    up = GaugeMetricFamily(
        "warmroute_kv_store_up", "1 while the shared store answers in time.", labels=("pool",)
    )
    wrong = GaugeMetricFamily(
        "warmroute_kv_store_wrong",
        "1 while what lies in the shared store cannot be understood.",
        labels=("pool",),
    )
    computed = CounterMetricFamily(
        "warmroute_kv_store_computed",
        "Computed chunks that were looked for in the shared store afterwards: came, missing.",
        labels=("pool", "outcome"),
    )
    for name, store in memories.stores.items():
        for outcome in ("found", "missed", "slow", "failed"):
            questions.add_metric((name, outcome), getattr(store, outcome))
        for outcome in ("came", "missing"):
            computed.add_metric((name, outcome), getattr(store.written, outcome))
        up.add_metric((name,), float(not store.down))
        wrong.add_metric((name,), float(bool(store.wrong)))
    yield from (questions, computed, up, wrong)


def _loads(memories: Memories) -> Metric:
    rates = GaugeMetricFamily(
        "warmroute_kv_load_tokens_per_second",
        "Tokens a second that workers load from a tier, as learned.",
        labels=("pool", "tier"),
    )
    for pool, _ in memories.pools():
        for tier, rate in pool.kv.loads.rates.items() if pool.kv is not None else ():
            rates.add_metric((pool.name, tier), rate)
    return rates


def _missed(memories: Memories) -> Metric:
    missed = CounterMetricFamily(
        "warmroute_kv_blocks_missed",
        "Blocks that workers did not find on a tier where they were believed to lie, by tier.",
        labels=("pool", "tier"),
    )
    for pool, memory in memories.pools():
        counted = counted_tiers(pool)
        for tier, count in memory.misses.counts.items():
            if tier.name.lower() in counted:
                missed.add_metric((pool.name, tier.name.lower()), count)
    return missed


def _index(memories: Memories) -> Iterator[Metric]:
    blocks = GaugeMetricFamily("warmroute_kv_blocks", "Different blocks known.", labels=("pool",))
    size = GaugeMetricFamily("warmroute_kv_index_bytes", "Size of the index.", labels=("pool",))
    waiting = GaugeMetricFamily(
        "warmroute_kv_orphans", "Unknown parents that stored blocks wait for.", labels=("pool",)
    )
    unused = CounterMetricFamily(
        "warmroute_kv_blocks_unused", "Blocks not kept, by reason.", labels=("pool", "reason")
    )
    held = GaugeMetricFamily(
        "warmroute_kv_blocks_held", "Blocks held, by tier.", labels=(*_WHERE, "tier")
    )
    for pool, memory in memories.pools():
        blocks.add_metric((pool.name,), len(memory.index))
        size.add_metric((pool.name,), memory.index.bytes)
        waiting.add_metric((pool.name,), memory.index.waiting)
        for reason, count in memory.index.counts.items():
            unused.add_metric((pool.name, reason), count)
        totals: Counter[tuple[str, str]] = Counter()
        for cache in memory.index.caches():
            tier = cache.tier.name.lower()
            if tier in counted_tiers(pool):
                totals[_label(cache.worker, pool), tier] += cache.blocks
        for (worker, tier), count in totals.items():
            held.add_metric((pool.name, worker, tier), count)
    yield from (blocks, size, waiting, unused, held)


def _label(engine: str, pool: Pool) -> str:
    """Return the `worker` label of an engine, or of the shared store."""
    worker = engine.partition("\0")[0]
    return worker if worker in pool.named else REGISTERED if worker else "shared"


def counted_tiers(pool: Pool) -> frozenset[str]:
    """Return the tiers that a pool uses; others have no series."""
    return frozenset(("gpu", *(pool.kv.loads.rates if pool.kv is not None else ())))


def _streams(memories: Memories) -> Iterator[Metric]:
    live = GaugeMetricFamily(
        "warmroute_kv_streams", "Event streams by state.", labels=(*_WHERE, "state")
    )
    events = CounterMetricFamily("warmroute_kv_events", "Events applied.", labels=_WHERE)
    happened = CounterMetricFamily(
        "warmroute_kv_stream_events",
        "Gaps, replays, restarts and losses of event streams, by kind.",
        labels=(*_WHERE, "kind"),
    )
    refused = CounterMetricFamily(
        "warmroute_kv_refused",
        "Messages and events that could not be used, by reason.",
        labels=(*_WHERE, "reason"),
    )
    still = GaugeMetricFamily(
        "warmroute_kv_still_seconds",
        "Since the worker's last event, or since it is listened to; of its stillest stream.",
        labels=_WHERE,
    )
    behind = GaugeMetricFamily(
        "warmroute_kv_behind_seconds",
        "How long events wait here before they are applied; those of its stream furthest behind.",
        labels=_WHERE,
    )
    now = monotonic()
    for pool, memory in memories.pools():
        for name, sources in _sources(pool, memory).items():
            where = (pool.name, name)
            for state in StreamPhase:
                count = sum(source.stream.state is state for source in sources)
                live.add_metric((*where, state.value), count)
            events.add_metric(where, sum(source.events for source in sources))
            for kind, count in _total(source.stream.counts for source in sources):
                happened.add_metric((*where, kind), count)
            for reason, count in _total(source.refused for source in sources):
                refused.add_metric((*where, reason), count)
            since = [source.still_since for source in sources if source.still_since is not None]
            if since:
                still.add_metric(where, now - min(since))
            if sources:
                behind.add_metric(where, max(source.lag.seconds for source in sources))
    yield from (live, events, happened, refused, still, behind)


def _total(counts: Iterable[Counter[str]]) -> Iterable[tuple[str, int]]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total.items()


def _sources(pool: Pool, memory: KvMemory) -> dict[str, list[EventSource]]:
    """Group the sources by their `worker` label."""
    sources: dict[str, list[EventSource]] = {worker.name: [] for worker in pool.workers}
    for source in memory.all_sources():
        sources.setdefault(_label(source.name, pool), []).append(source)
    return sources


def _truth(memories: Memories) -> Iterator[Metric]:
    errors = HistogramMetricFamily(
        "warmroute_kv_error_tokens",
        "Cached tokens that the worker reported, minus those that its events predicted.",
        labels=_WHERE,
    )
    wrong = GaugeMetricFamily(
        "warmroute_kv_wrong", "Share of late predictions off by more than a block.", labels=_WHERE
    )
    trusted = GaugeMetricFamily(
        "warmroute_kv_trusted", "1 while decisions go by the worker's events.", labels=_WHERE
    )
    ends = [*map(str, map(float, ERROR_BOUNDS)), "+Inf"]
    for pool, memory in memories.all():
        for worker in pool.workers:
            where = (pool.name, worker.name)
            trusted.add_metric(where, float(not memory.doubt(worker.name)))
            record = memory.track_records.get(worker.name)
            if record is not None:
                sums = accumulate(record.buckets)
                errors.add_metric(where, list(zip(ends, sums, strict=True)), float(record.sum))
                wrong.add_metric(where, record.wrong)
    yield from (trusted, errors, wrong)


#: What only answers of workers tell, and routers see. Here these would stay as they begin.
_OF_ANSWERS = frozenset(
    (
        "warmroute_kv_error_tokens",
        "warmroute_kv_wrong",
        "warmroute_kv_blocks_missed",
        "warmroute_kv_load_tokens_per_second",
    )
)


class ControllerMetrics(Collector):
    """All series of one controller, in a registry of their own."""

    def __init__(self, memories: Memories, snapshots: Snapshots | None) -> None:
        self.requests = RequestCounts()
        """Counts of the requests; filled by the HTTP server."""
        self._memories = memories
        self._snapshots = snapshots
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> tuple[bytes, str]:
        """Return all series as text, and the content type of that text."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """Return every series."""
        families = memory_metrics(self._memories)
        yield from (family for family in families if family.name not in _OF_ANSWERS)
        requests = CounterMetricFamily(
            "warmroute_controller_requests",
            "Requests, by the first part of their path and the class of their status.",
            labels=("path", "status"),
        )
        for labels, count in self.requests.answered.items():
            requests.add_metric(labels, count)
        seconds = CounterMetricFamily(
            "warmroute_controller_request_seconds",
            "Seconds spent on requests, with what they waited for, by path.",
            labels=("path",),
        )
        for path, total in self.requests.seconds.items():
            seconds.add_metric((path,), total)
        yield from (requests, seconds)
        if self._snapshots is not None:
            yield from self._snapshots.metrics()
