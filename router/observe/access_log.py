"""The log of requests: one line for each, without any text of the prompt."""

import logging
from time import monotonic

from router.dispatch.request import Job
from router.fleet.worker import Worker
from router.http.exchange import Exchange
from router.proxy.decision_headers import explanation
from strategies.api import Candidate

log = logging.getLogger("warmroute.requests")


def log_answer(
    job: Job, worker: Worker, choice: Candidate, status: int, failure: str | None
) -> None:
    """Log an answer that came from a worker; `failure` is what went wrong, if anything."""
    identity, seconds = job.exchange.identity.decode(), monotonic() - job.started
    decision = explanation(job, choice).decode()
    tokens = job.prompt.too_long or job.prompt.tokens
    fields: dict[str, str | float] = {
        "id": identity,
        "path": job.endpoint.path,
        **job.exchange.named(),
        "status": status,
        "worker": worker.name,
        "decision": decision,
        "tokens": tokens,
        "seconds": round(seconds, 3),
    }
    if job.preemptions:
        fields["preempted"] = job.preemptions
    if failure:
        fields["failure"] = failure
    log.info(
        "id=%s path=%s%s status=%d worker=%s decision=%r tokens=%d seconds=%.3f%s%s",
        identity,
        job.endpoint.path,
        job.exchange.whose(),
        status,
        worker.name,
        decision,
        tokens,
        seconds,
        f" preempted={job.preemptions}" if job.preemptions else "",
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
