"""The log of requests: one line for each, without any text of the prompt."""

import logging
from time import monotonic

from router.dispatch.lease import Lease
from router.fleet.worker import Worker
from router.http.exchange import Exchange

log = logging.getLogger("warmroute.requests")


def log_answer(lease: Lease, exchange: Exchange) -> None:
    """Log an answer that came from a worker, or what went wrong instead."""
    request, worker, status, failure = lease.request, lease.worker, lease.status, lease.failure
    identity, seconds = request.identity.decode(), monotonic() - request.started
    decision = lease.explanation().decode()
    tokens = request.prompt.too_long or request.prompt.tokens
    fields: dict[str, str | float] = {
        "id": identity,
        "path": request.endpoint.path,
        **exchange.named(),
        "status": status,
        "worker": worker.name,
        "decision": decision,
        "tokens": tokens,
        "seconds": round(seconds, 3),
    }
    if request.preemptions:
        fields["preempted"] = request.preemptions
    if failure:
        fields["failure"] = failure
    log.info(
        "id=%s path=%s%s status=%d worker=%s decision=%r tokens=%d seconds=%.3f%s%s",
        identity,
        request.endpoint.path,
        exchange.whose(),
        status,
        worker.name,
        decision,
        tokens,
        seconds,
        f" preempted={request.preemptions}" if request.preemptions else "",
        f" failure={failure}" if failure else "",
        extra={"fields": fields},
    )


def log_relayed(
    exchange: Exchange, worker: Worker, status: int, failure: str | None, seconds: float
) -> None:
    """Log an answer that came from a worker without a decision: only that one could be asked."""
    identity, path = exchange.identity.decode(), exchange.path
    fields: dict[str, str | float] = {
        "id": identity,
        "path": path,
        **exchange.named(),
        "status": status,
        "worker": worker.name,
        "seconds": round(seconds, 3),
    }
    if failure:
        fields["failure"] = failure
    log.info(
        "id=%s path=%s%s status=%d worker=%s seconds=%.3f%s",
        identity,
        path,
        exchange.whose(),
        status,
        worker.name,
        seconds,
        f" failure={failure}" if failure else "",
        extra={"fields": fields},
    )


def log_refusal(exchange: Exchange, status: int, reason: str) -> None:
    """Log an answer that came from the router itself."""
    identity, path = exchange.identity.decode(), exchange.path
    fields = {"id": identity, "path": path, **exchange.named()}
    log.info(
        "id=%s path=%s%s status=%d reason=%r",
        identity,
        path,
        exchange.whose(),
        status,
        reason,
        extra={"fields": {**fields, "status": status, "reason": reason}},
    )
