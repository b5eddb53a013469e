"""Merges what several processes report about themselves into one report. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from prometheus_client import Metric
from prometheus_client.exposition import generate_latest

from router.observe.exposition import MetricList

#: Gauges merged by their minimum: what one process cannot reach does not count as up, and the
#: earliest start time counts.
_MIN_SERIES = frozenset(
    (
        "warmroute_worker_up",
        "warmroute_session_store_up",
        "warmroute_kv_store_up",
        "warmroute_kv_trusted",
        "process_start_time_seconds",
    )
)
#: Series merged by their maximum: a worker ejected in one process counts as ejected; all processes
#: count the sessions of one store; and KV events that one process does not receive count as missed.
_MAX_SERIES = frozenset(
    (
        "warmroute_worker_ejected",
        "warmroute_worker_size_unknown",
        "warmroute_tokenizer_workers",
        "warmroute_open_sessions",
        "warmroute_sessions_ended",
        "warmroute_kv_store_wrong",
        "warmroute_kv_wrong",
        "warmroute_kv_blocks",
        "warmroute_kv_blocks_held",
        "warmroute_kv_still_seconds",
        "warmroute_kv_behind_seconds",
        "warmroute_build_info",
    )
)
#: Gauges merged by their mean: each process learns its own estimate of the same thing.
_MEAN_SERIES = frozenset(("warmroute_pace_factor", "warmroute_kv_load_tokens_per_second"))
#: Types that only grow: their values are kept when a process ends.
_GROWING = frozenset(("counter", "histogram"))

#: Of several processes' states of a worker the first of these counts, then any other but `ready`.
_WORST = ("down", "asleep", "ejected", "draining")

#: Fields of a worker that count only a process's own bookings, so they are summed.
_BOOKED = ("in_flight", "kv_tokens_booked")

_Labels = tuple[tuple[str, str], ...]


class Family(Struct):
    """All series of one name in one process."""

    name: str
    help: str
    type: str
    samples: list[tuple[str, _Labels, float]]


def families(metrics: Iterable[Metric]) -> list[Family]:
    """Turn metrics into structs that can be sent to another process."""
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            [(s.name, tuple(s.labels.items()), s.value) for s in metric.samples],
        )
        for metric in metrics
    ]


def merged(reports: Iterable[Iterable[Family]]) -> list[Family]:
    """Merge the series of several processes: sums, except for the few named above."""
    by_name: dict[str, list[Family]] = {}
    for report in reports:
        for family in report:
            by_name.setdefault(family.name, []).append(family)
    return [_merge(same) for same in by_name.values()]


def growing(report: Iterable[Family]) -> list[Family]:
    """Return what must be kept when a process ends, so that sums never fall."""
    return [family for family in report if family.type in _GROWING]


def text(families: Sequence[Family]) -> bytes:
    """Render in Prometheus' text format."""
    metrics = [Metric(family.name, family.help, family.type) for family in families]
    for metric, family in zip(metrics, families, strict=True):
        for name, labels, value in family.samples:
            metric.add_sample(name, dict(labels), value)
    return generate_latest(MetricList(*metrics))


def merged_workers(reports: Iterable[bytes]) -> bytes:
    """Merge several lists of workers, all in JSON; bookings are summed.

    If processes disagree on whether a worker is ready, it counts as not ready.
    """
    by_name: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for report in reports:
        for worker in msgspec.json.decode(report):
            by_name.setdefault((worker["pool"], worker["name"]), []).append(worker)
    return msgspec.json.encode([_merge_worker(same) for same in by_name.values()])


def merged_tokenizers(reports: Iterable[bytes]) -> bytes:
    """Merge several lists of tokenizers, all in JSON.

    Each process checks them itself. If they disagree, one that does not trust a tokenizer wins.
    """
    by_models: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    for report in reports:
        for tokenizer in msgspec.json.decode(report):
            key = (tokenizer["pool"], tuple(tokenizer["models"]))
            if key not in by_models or tokenizer["keyed"] == "text":
                by_models[key] = tokenizer
    return msgspec.json.encode(list(by_models.values()))


def _merge_worker(same: Sequence[dict[str, Any]]) -> dict[str, Any]:
    worst = min(same, key=_rank)
    sums = {key: sum(worker[key] for worker in same) for key in _BOOKED}
    mean = sum(worker["pace_factor"] for worker in same) / len(same)
    wait = max(worker["wait_seconds"] for worker in same)  # each includes the others' bookings
    return {**worst, **sums, "wait_seconds": wait, "pace_factor": mean}


def _rank(worker: dict[str, Any]) -> int:
    state = worker["state"]
    return _WORST.index(state) if state in _WORST else len(_WORST) + (state == "ready")


def _merge(same: Sequence[Family]) -> Family:
    first = same[0]
    values: dict[tuple[str, _Labels], list[float]] = {}
    for family in same:
        for name, labels, value in family.samples:
            values.setdefault((name, labels), []).append(value)
    samples = [(*key, _value(first.name, each)) for key, each in values.items()]
    return Family(first.name, first.help, first.type, samples)


def _value(name: str, values: Sequence[float]) -> float:
    if name in _MIN_SERIES:
        return min(values)
    if name in _MAX_SERIES:
        return max(values)
    return sum(values) / len(values) if name in _MEAN_SERIES else sum(values)
