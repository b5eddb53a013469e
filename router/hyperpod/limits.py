"""`worker.requestLimits`: enforced by HyperPod's proxy beside each model, and here by the
router."""

from router.hyperpod.reading import SPEC, Reading
from router.settings.errors import KeyPath

#: Longest wait of a request in that proxy (HyperPod's page on request limits).
PATIENCE = "60s"
_LIMITS: KeyPath = (*SPEC, "worker", "requestLimits")
_CONCURRENT: KeyPath = (*_LIMITS, "maxConcurrentRequests")
_QUEUE: KeyPath = (*_LIMITS, "maxQueueSize")
_STATUS: KeyPath = (*_LIMITS, "overflowStatusCode")
_MOST = (1 << 31) - 1


def limit(reading: Reading, workers: int) -> None:
    """Set `limits`. Each proxy has its own queue; the router's is as long as all of them
    together."""
    reading.mapping(_LIMITS)
    most = reading.whole(_CONCURRENT, 0, _MOST, None)
    queue = reading.whole(_QUEUE, 0, _MOST, 0) or 0
    status = reading.whole(_STATUS, 400, 599, None)
    if not most:  # absent or 0: no limit, as its page says
        for path in (_CONCURRENT, _QUEUE, _STATUS):
            reading.elsewhere(path, "without maxConcurrentRequests there is no limit")
        return
    reading.set(("limits", "in_flight"), most, _CONCURRENT)
    reading.set(("limits", "queue"), queue * workers, _QUEUE)
    reading.set(("limits", "overflow", "body"), "hyperpod", _LIMITS)
    reading.set(("timeouts", "queue"), PATIENCE, _QUEUE)
    reading.mapped(_CONCURRENT, f"limits.in_flight: {most} on each worker")
    said = f"limits.queue: {queue * workers}, timeouts.queue: {PATIENCE}"
    reading.mapped(_QUEUE, said, None if reading.get(_QUEUE) is not None else "0 (default)")
    if status is not None:
        reading.set(("limits", "overflow", "status"), status, _STATUS)
        reading.mapped(_STATUS, f"limits.overflow.status: {status}, body: hyperpod")
