"""Our counters and histograms, compared with what Prometheus expects."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import HistogramMetricFamily

from router.observe.series import Counter
from router.observe.series import Histogram as Ours

BOUNDS = (0.1, 1.0, 10.0)


def test_a_counter() -> None:
    """Values are counted by label values, in the order of the labels."""
    counter = Counter("n", "How many.", ("pool", "worker"))
    counter.inc(("p", "a"))
    counter.inc(("p", "a"), 2)
    counter.inc(("p", "b"))
    samples = {tuple(s.labels.values()): s.value for s in counter.family().samples}
    assert samples == {("p", "a"): 3, ("p", "b"): 1}


def test_what_left_the_configuration_is_dropped() -> None:
    """`forget` drops every series with that label value; an unknown label changes nothing."""
    counter = Counter("n", "How many.", ("pool", "worker"))
    for worker in ("a", "b"):
        for pool in ("p", "q"):
            counter.inc((pool, worker))
    counter.forget("worker", "a")
    counter.forget("status", "b")
    assert [s.labels["worker"] for s in counter.family().samples] == ["b", "b"]


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
