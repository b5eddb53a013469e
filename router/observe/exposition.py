"""Metrics in Prometheus' text format, written bit by bit.

A thousand workers have ten thousand series, which take some 70 ms to write. No stream has to wait
for that.
"""

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

#: Series written at once: about two milliseconds.
SLICE = 200


class MetricList(Collector):
    """Metrics in the form that `generate_latest` asks for."""

    def __init__(self, *metrics: Metric) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Return them."""
        yield from self._metrics


async def written(metrics: Iterable[Metric]) -> bytes:
    """Return the text. All series are read at once; other work goes on while they are written."""
    text: list[bytes] = []
    for metric in list(metrics):
        for piece in _pieces(metric):
            text.append(piece)
            await asyncio.sleep(0)
    return b"".join(text)


def _pieces(metric: Metric) -> Iterator[bytes]:
    """Yield the text of one metric in pieces; the first has its two lines of comment."""
    samples = metric.samples
    for first in range(0, len(samples) or 1, SLICE):
        part = Metric(metric.name, metric.documentation, metric.type)
        part.samples = samples[first : first + SLICE]
        piece = generate_latest(MetricList(part))
        yield piece if first == 0 else piece.split(b"\n", 2)[2]
