"""What several processes say of themselves, made into what one would say. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

#: Gauges of which the least counts: what one process cannot reach is not up for all, and the first
#: of them began first.
_LEAST = frozenset(
    (
        "warmroute_worker_up",
        "warmroute_session_store_up",
        "warmroute_kv_store_up",
        "warmroute_kv_trusted",
        "process_start_time_seconds",
    )
)
#: Series of which the most counts: what one process has left out is out for some, and all of them
#: ask one store for its sessions, and what one of them does not hear is missed.
_MOST = frozenset(
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
        "warmroute_build_info",
    )
)
#: Gauges that each process learns for itself, of the same thing.
_MEAN = frozenset(("warmroute_pace_factor", "warmroute_kv_load_tokens_per_second"))
#: What only grows: it stays when its process is gone.
_GROWING = frozenset(("counter", "histogram"))

#: What each process knows of its own bookings on a worker.
_BOOKED = ("in_flight", "kv_tokens_booked")

_Labels = tuple[tuple[str, str], ...]


class Family(Struct):
    """Series of one name, as one process has them."""

    name: str
    help: str
    type: str
    samples: list[tuple[str, _Labels, float]]


def families(metrics: Iterable[Metric]) -> list[Family]:
    """Turn metrics into what can be sent."""
    return [
        Family(
            metric.name,
            metric.documentation,
            metric.type,
            [(s.name, tuple(s.labels.items()), s.value) for s in metric.samples],
        )
        for metric in metrics
    ]


def merged(said: Sequence[Sequence[Family]]) -> list[Family]:
    """Make one set of series of several: sums, but for a few gauges."""
    order: dict[str, list[Family]] = {}
    for one in said:
        for family in one:
            order.setdefault(family.name, []).append(family)
    return [_merge(same) for same in order.values()]


def growing(said: Sequence[Family]) -> list[Family]:
    """Only what has to be kept when a process is gone, or the sums would fall."""
    return [family for family in said if family.type in _GROWING]


def text(said: Sequence[Family]) -> bytes:
    """Render in Prometheus' text format."""
    return generate_latest(_Registry(said))


def merged_workers(said: Iterable[bytes]) -> bytes:
    """Make one list of workers of several, all in JSON: what is booked adds up.

    Where processes differ on whether a worker is there, those count that it is not for.
    """
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in said:
        for worker in msgspec.json.decode(one):
            found.setdefault((worker["pool"], worker["name"]), []).append(worker)
    return msgspec.json.encode([_merge_worker(same) for same in found.values()])


def merged_tokenizers(said: Iterable[bytes]) -> bytes:
    """Make one list of tokenizers of several, all in JSON.

    Each process looks for itself. Where they differ, one that does not trust a tokenizer counts.
    """
    found: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    for one in said:
        for tokenizer in msgspec.json.decode(one):
            key = (tokenizer["pool"], tuple(tokenizer["models"]))
            if key not in found or tokenizer["keyed"] == "text":
                found[key] = tokenizer
    return msgspec.json.encode(list(found.values()))


def _merge_worker(same: Sequence[dict[str, Any]]) -> dict[str, Any]:
    one = next((worker for worker in same if worker["state"] != "ready"), same[0])
    sums = {key: sum(worker[key] for worker in same) for key in _BOOKED}
    mean = sum(worker["pace_factor"] for worker in same) / len(same)
    wait = max(worker["wait_seconds"] for worker in same)  # they tell each other
    return {**one, **sums, "wait_seconds": wait, "pace_factor": mean}


def _merge(same: Sequence[Family]) -> Family:
    first = same[0]
    found: dict[tuple[str, _Labels], list[float]] = {}
    for family in same:
        for name, labels, value in family.samples:
            found.setdefault((name, labels), []).append(value)
    samples = [(*key, _value(first.name, values)) for key, values in found.items()]
    return Family(first.name, first.help, first.type, samples)


def _value(name: str, values: Sequence[float]) -> float:
    if name in _LEAST:
        return min(values)
    if name in _MOST:
        return max(values)
    return sum(values) / len(values) if name in _MEAN else sum(values)


class _Registry(Collector):
    """As much of a registry as is needed to render one."""

    def __init__(self, said: Sequence[Family]) -> None:
        self._said = said

    def collect(self) -> Iterator[Metric]:
        for family in self._said:
            metric = Metric(family.name, family.help, family.type)
            for name, labels, value in family.samples:
                metric.add_sample(name, dict(labels), value)
            yield metric
