"""The metrics of a controller that runs alone."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from controller.service.middleware import RequestCounts
from router.memories import Memories
from router.memory_metrics import memory_metrics
from router.snapshots import Snapshots

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
        told = memory_metrics(self._memories)
        yield from (family for family in told if family.name not in _OF_ANSWERS)
        asked = CounterMetricFamily(
            "warmroute_controller_requests",
            "RequestCounts, by the first part of their path and the class of their status.",
            labels=("path", "status"),
        )
        for where, count in self.requests.answered.items():
            asked.add_metric(where, count)
        took = CounterMetricFamily(
            "warmroute_controller_request_seconds",
            "Seconds spent on requests, with what they waited for, by path.",
            labels=("path",),
        )
        for path, seconds in self.requests.seconds.items():
            took.add_metric((path,), seconds)
        yield from (asked, took)
        if self._snapshots is not None:
            yield from self._snapshots.metrics()
