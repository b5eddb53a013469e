"""Metric series that are cheap to update: plain numbers, turned into Prometheus' when scraped.

prometheus_client's own counters take a lock and look up labels at every update, some 2 µs each, and
a request makes a dozen. These are written and read by one thread, so they need no lock.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily


class Counter:
    """Counts by label values. `inc` is the hot path."""

    __slots__ = ("_labels", "_name", "_says", "_values")

    def __init__(self, name: str, says: str, labels: Sequence[str]) -> None:
        self._name, self._says, self._labels = name, says, tuple(labels)
        self._values: dict[tuple[str, ...], float] = {}

    def inc(self, labels: tuple[str, ...], by: float = 1) -> None:
        """Add to the series of these label values, in the order of the labels."""
        self._values[labels] = self._values.get(labels, 0) + by

    def begin(self, *labels: str) -> None:
        """Create the series of these label values at 0, unless it exists."""
        self._values.setdefault(labels, 0)

    def forget(self, label: str, value: str) -> None:
        """Drop every series with this label value, which is no longer in the configuration."""
        if label in self._labels:
            place = self._labels.index(label)
            gone = [labels for labels in self._values if labels[place] == value]
            for labels in gone:
                del self._values[labels]

    def items(self) -> Iterable[tuple[tuple[str, ...], float]]:
        """Return the label values and count of every series."""
        return self._values.items()

    def family(self) -> CounterMetricFamily:
        """Return the series for Prometheus."""
        family = CounterMetricFamily(self._name, self._says, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


class Histogram:
    """One series of observations in buckets; `bounds` are their upper ends, in any unit."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(
        self, family: HistogramMetricFamily, labels: Sequence[str], scale: float = 1.0
    ) -> None:
        """Add this series to a family, with all values multiplied by `scale`."""
        total, buckets = 0, list[tuple[str, float]]()
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound * scale), float(total)))
        family.add_metric(labels, buckets, self._sum * scale)
