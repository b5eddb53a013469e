"""Metrics and reports of several processes, merged into what one process would report."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.app import create_app
from router.observe.merge import (
    Family,
    families,
    growing,
    merged,
    merged_tokenizers,
    merged_workers,
    text,
)
from router.observe.metrics import Metrics
from router.settings.model import Settings


def counter(**values: float) -> CounterMetricFamily:
    """Build a counter by worker."""
    family = CounterMetricFamily("requests", "How many.", labels=("worker",))
    for worker, value in values.items():
        family.add_metric((worker,), value)
    return family


def gauge(name: str, **values: float) -> GaugeMetricFamily:
    """Build a gauge by worker."""
    family = GaugeMetricFamily(name, "How it is.", labels=("worker",))
    for worker, value in values.items():
        family.add_metric((worker,), value)
    return family


def said(*metrics: Any) -> list[Family]:
    """Return the metrics as they arrive from a process."""
    sent = msgspec.msgpack.encode(families(metrics))
    return msgspec.msgpack.decode(sent, type=list[Family])


def values(found: list[Family]) -> dict[str, float]:
    """Return every series that Prometheus reads from the text, by name and worker."""
    return {
        f"{sample.name} {sample.labels['worker']}": sample.value
        for family in text_string_to_metric_families(text(found).decode())
        for sample in family.samples
    }


def test_counters_add_up() -> None:
    """Counters are summed, also if only some processes have a series."""
    found = merged([said(counter(a=1, b=2)), said(counter(b=3, c=4)), said()])
    assert values(found) == {"requests_total a": 1, "requests_total b": 5, "requests_total c": 4}


@pytest.mark.parametrize(
    ("name", "told", "merged_value"),
    [
        ("in_flight", (1, 2), 3),  # what is under way adds up
        ("worker_up", (1, 0), 0),
        ("worker_ejected", (0, 1), 1),
        ("pace_factor", (2, 1), 1.5),  # estimates are averaged
        ("kv_store_up", (1, 0), 0),
        ("kv_store_wrong", (0, 1), 1),
        ("kv_load_tokens_per_second", (2000, 1000), 1500),
        ("kv_trusted", (1, 0), 0),  # one process that cannot be trusted counts
        ("kv_blocks_held", (5, 4), 5),  # all hear of the same blocks
        ("kv_wrong", (0.4, 0.2), 0.4),
        ("kv_behind_seconds", (0, 3), 3),
    ],
)
def test_gauges(name: str, told: tuple[float, float], merged_value: float) -> None:
    """Gauges are summed, unless that has no meaning."""
    found = merged([said(gauge(f"warmroute_{name}", a=value)) for value in told])
    assert values(found) == {f"warmroute_{name} a": merged_value}


def test_histograms() -> None:
    """Histograms are summed by bucket, and still read as histograms."""
    families_of = []
    for seconds in (1.0, 5.0):
        family = HistogramMetricFamily("seconds", "How long.", labels=("worker",))
        family.add_metric(("a",), [("2.0", float(seconds < 2)), ("+Inf", 1.0)], seconds)
        families_of.append(said(family))
    (read,) = text_string_to_metric_families(text(merged(families_of)).decode())
    assert read.type == "histogram"
    assert [(s.name, s.labels.get("le"), s.value) for s in read.samples] == [
        ("seconds_bucket", "2.0", 1.0),
        ("seconds_bucket", "+Inf", 2.0),
        ("seconds_count", None, 2.0),
        ("seconds_sum", None, 6.0),
    ]


def test_what_stays_of_a_process_that_is_gone() -> None:
    """Of a process that ended, counters are kept and gauges are dropped."""
    assert [one.name for one in growing(said(counter(a=1), gauge("up", a=1)))] == ["requests"]


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)), max_size=4))
def test_the_order_does_not_matter(counts: list[dict[str, int]]) -> None:
    """Neither the order nor merging one by one changes the result."""
    each = [said(counter(**count)) for count in counts]
    at_once = values(merged(each))
    assert at_once == values(merged(each[::-1]))
    one_by_one: list[Family] = []
    for one in each:
        one_by_one = merged([one_by_one, one])
    assert values(one_by_one) == at_once


def test_one_process_says_the_same_alone_and_merged() -> None:
    """The merged text of one process equals the text it renders alone."""
    settings = Settings.model_validate({"workers": ["http://127.0.0.1:1", "http://127.0.0.1:2"]})
    metrics: Metrics = create_app(settings).metrics
    pool = metrics.pool("default")
    pool.answered("127.0.0.1:1", 200)
    pool.duration.observe(0.3)
    metrics.refused(400)
    registry: CollectorRegistry = metrics.registry
    apart, alone = text(merged([said(*registry.collect())])), generate_latest(registry)
    for one, other in zip(apart.splitlines(), alone.splitlines(), strict=True):
        # Series about the process itself (memory, open files) may change between the two.
        moved = one.startswith(b"process_") and one.split()[0] == other.split()[0]
        assert one == other or moved


def worker(name: str, state: str = "ready", **booked: float) -> dict[str, Any]:
    """Build a worker as a process reports it."""
    zero = {"in_flight": 0, "wait_seconds": 0.0, "kv_tokens_booked": 0, "pace_factor": 1.0}
    return {"pool": "p", "name": name, "state": state, "reason": state, **zero, **booked}


def test_workers() -> None:
    """Bookings are summed; a worker that is down for one process is reported as down."""
    one = [worker("a", in_flight=1, pace_factor=1.0), worker("b", in_flight=2)]
    other = [worker("b", "down", in_flight=3), worker("a", in_flight=4, pace_factor=2.0)]
    found = json.loads(merged_workers([json.dumps(one).encode(), json.dumps(other).encode()]))
    assert found == [
        worker("a", in_flight=5, pace_factor=1.5),
        worker("b", "down", in_flight=5),
    ]


def test_tokenizers() -> None:
    """A tokenizer that one process does not trust is reported as that process sees it."""

    def told(*models: str, keyed: str = "tokens") -> dict[str, Any]:
        return {"pool": "p", "models": list(models), "keyed": keyed}

    one = [told("a", "b"), told("c", keyed="text")]
    other = [told("a", "b", keyed="text"), told("c"), told("d")]
    found = json.loads(merged_tokenizers([json.dumps(one).encode(), json.dumps(other).encode()]))
    assert found == [told("a", "b", keyed="text"), told("c", keyed="text"), told("d")]
