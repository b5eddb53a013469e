"""Metrics of the router itself: its processes, its release, its client connections."""

from collections.abc import Callable, Iterator

from prometheus_client import Metric, ProcessCollector
from prometheus_client.core import GaugeMetricFamily

from router import __version__, build_kind


def process_metrics() -> Iterator[Metric]:
    """Yield CPU, memory and descriptors of this process, by Prometheus' usual names.

    Nothing if the system has no `/proc`.
    """
    yield from _SYSTEM.collect()


_SYSTEM = ProcessCollector(registry=None)


def own_metrics(connections: Callable[[], int]) -> Iterator[Metric]:
    """Yield the metrics of a serving process."""
    release = GaugeMetricFamily(
        "warmroute_build_info",
        "1, with the release that runs and how it was built.",
        labels=("version", "build"),
    )
    release.add_metric((__version__, build_kind()), 1.0)
    yield release
    yield GaugeMetricFamily("warmroute_processes", "Processes that serve.", 1.0)
    yield GaugeMetricFamily(
        "warmroute_client_connections", "Connections of clients that are open.", connections()
    )
    yield from process_metrics()
