"""Metrics of tokenizers: how many workers make the same tokens as the router."""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from router.fleet.pool import Pool
from router.tokenizers import verify as agreement
from router.tokenizers.state import SourceCase


def tokenizer_metrics(pools: Iterable[Pool], cases: Iterable[SourceCase]) -> Iterator[Metric]:
    """Yield whether workers make the same tokens as the router."""
    counts_of: dict[str, Counter[agreement.Agreement]] = {pool.name: Counter() for pool in pools}
    for case in cases:
        counts_of.setdefault(case.pool, Counter()).update(case.counts())
    workers = GaugeMetricFamily(
        "warmroute_tokenizer_workers",
        "Workers by whether they make the same tokens, once for each tokenizer.",
        labels=("pool", "state"),
    )
    for pool, counts in counts_of.items():
        for state in agreement.Agreement:
            workers.add_metric((pool, state.value), counts[state])
    yield workers
