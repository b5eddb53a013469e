"""Metrics of what waits for a worker, and of what was taken back or allowed no retry."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from router.dispatch.dispatcher import Dispatcher


def dispatch_metrics(dispatcher: Dispatcher) -> Iterator[Metric]:
    """Yield the metrics of the queue, of preemptions and of the retry budget."""
    scheduler = dispatcher.scheduler
    yield GaugeMetricFamily(
        "warmroute_queue_length",
        "Requests that wait for a worker that has room and is about to be free.",
        scheduler.waiting,
    )
    yield CounterMetricFamily("warmroute_queued", "Requests that had to wait.", scheduler.queued)
    yield CounterMetricFamily(
        "warmroute_queue_refused", "Requests that found the queue full.", scheduler.refused
    )
    yield CounterMetricFamily(
        "warmroute_preempted_requests",
        "How often a request was taken back from its worker so that a shorter one went first.",
        dispatcher.preempting.count,
    )
    yield CounterMetricFamily(
        "warmroute_retries_denied",
        "Requests that ended because the retry budget allowed no second attempt.",
        dispatcher.budget.denied,
    )
