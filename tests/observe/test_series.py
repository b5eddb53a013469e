"""Our counters and histograms, and their text, compared with what Prometheus expects."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest

from router.admin.views import View
from router.fleet.metrics import fleet_metrics
from router.observe.exposition import SLICE
from router.observe.metrics import Counter
from router.observe.metrics import Histogram as Ours
from tests.fleet.fleets import fleet

BOUNDS = (0.1, 1.0, 10.0)


def test_a_counter() -> None:
    """Values are counted by label values; `forget` drops every series with one of them."""
    counter = Counter("n", "How many.", ("pool", "worker"))
    for labels, by in ((("p", "a"), 1), (("p", "a"), 2), (("q", "b"), 1)):
        counter.inc(labels, by)
    samples = {tuple(s.labels.values()): s.value for s in counter.family().samples}
    assert samples == {("p", "a"): 3, ("q", "b"): 1}
    counter.forget("worker", "a")
    counter.forget("status", "b")
    assert [s.labels["worker"] for s in counter.family().samples] == ["b"]


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_is_that_of_the_library(values: list[float]) -> None:
    """It has the same buckets, count and sum as prometheus_client's."""
    ours, registry = Ours(BOUNDS), CollectorRegistry()
    theirs = Histogram("h", "How long.", buckets=BOUNDS, registry=registry)
    for value in values:
        ours.observe(value)
        theirs.observe(value)
    family = HistogramMetricFamily("h", "How long.", labels=())
    ours.add_to(family, ())
    for sample in family.samples:
        expected = registry.get_sample_value(sample.name, sample.labels)
        assert expected is not None
        assert abs(expected - sample.value) < 1e-6 * max(1.0, expected)


def test_very_many_series_let_others_have_their_turns() -> None:
    """The text is that of Prometheus' own client, and no other request waits for all of it."""
    ours = fleet(workers=3 * SLICE)
    metrics = fleet_metrics(ours)
    odd = CounterMetricFamily("odd", 'a "help"\nwith two lines \\', labels=("name",))
    for number in range(SLICE + 1):
        odd.add_metric((f'"{number}"\n\\',), number)
    empty = CounterMetricFamily("empty", "None.", labels=("name",))
    metrics.add(lambda: [odd, empty])
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scraped() -> bytes:
        other = asyncio.create_task(others())
        text = await View(ours, metrics).metrics()
        other.cancel()
        return text

    text = asyncio.run(scraped())
    lines = text.count(b"\n")
    assert turns > lines / SLICE
    plain = generate_latest(metrics.registry)
    assert [one for one in text.split(b"\n") if b"_tasks " not in one] == [
        one for one in plain.split(b"\n") if b"_tasks " not in one
    ]
