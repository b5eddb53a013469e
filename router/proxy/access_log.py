"""The log of requests: one line for each, without any text of the prompt."""

import logging
from time import monotonic

from router.dispatch.lease import Lease
from router.fleet.worker import Worker
from router.http.exchange import Exchange

log = logging.getLogger("warmroute.requests")

Fields = dict[str, str | float]


def log_answer(lease: Lease, exchange: Exchange) -> None:
    """Log an answer that came from a worker, or what went wrong instead."""
    request = lease.request
    fields: Fields = {
        "status": lease.status,
        "worker": lease.worker.name,
        "decision": lease.explanation().decode(),
        "tokens": request.prompt.too_long or request.prompt.tokens,
        "seconds": round(monotonic() - request.started, 3),
    }
    if request.preemptions:
        fields["preempted"] = request.preemptions
    if lease.failure:
        fields["failure"] = lease.failure
    _log(exchange, request.endpoint.path, fields)


def log_relayed(
    exchange: Exchange, worker: Worker, status: int, failure: str | None, seconds: float
) -> None:
    """Log an answer that came from a worker without a decision: only that one could be asked."""
    fields: Fields = {"status": status, "worker": worker.name, "seconds": round(seconds, 3)}
    if failure:
        fields["failure"] = failure
    _log(exchange, exchange.path, fields)


def log_refusal(exchange: Exchange, status: int, reason: str) -> None:
    """Log an answer that came from the router itself."""
    _log(exchange, exchange.path, {"status": status, "reason": reason})


def _log(exchange: Exchange, path: str, more: Fields) -> None:
    """Log fields as a line of text for people, and as they are for machines."""
    fields = {"id": exchange.identity.decode(), "path": path, **exchange.named(), **more}
    text = " ".join(f"{name}={_text(name, value)}" for name, value in fields.items())
    log.info("%s", text, extra={"fields": fields})


def _text(name: str, value: str | float) -> str:
    if name in {"decision", "reason"}:  # words of clients and of third parties
        return repr(value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)
