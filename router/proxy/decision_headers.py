"""The header fields that tell a client which worker its request went to, and why."""

from typing import Final

from router.dispatch.request import InferenceRequest
from router.fleet.worker import Worker
from router.http.exchange import Exchange
from router.http.headers import header
from strategies.api import FREE, Candidate
from strategies.explain import gives_way, instead, terms, words

#: With this header, whatever its value, a client asks for the whole decision.
DECISION: Final = b"x-warmroute-decision"
#: The first word of the decision where a worker answers that was not the first choice.
FAILOVER: Final = b"failover"
#: How many of the best workers have their cost in a header then.
MAX_COST_HEADERS = 16


def decision_fields(
    request: InferenceRequest, exchange: Exchange, worker: Worker, choice: Candidate, status: int
) -> bytes:
    """Return the header lines for an answer of that status from that worker."""
    lines = b"x-request-id: %b\r\nx-warmroute-worker: %b\r\nx-warmroute-decision: %b\r\n" % (
        request.identity,
        worker.label,
        explanation(request, choice),
    )
    if request.preemptions:
        lines += b"x-warmroute-preempted: %d\r\n" % request.preemptions
    if request.session is not None:
        lines += request.session.fields(status)
        request.metrics.decided(request.reason)
    return lines + _whole(request, choice) if header(exchange.headers, DECISION) else lines


def explanation(request: InferenceRequest, choice: Candidate) -> bytes:
    """Return the reason for the choice, and the terms of its cost."""
    # (Of a session, it is told why it is where it is by now.)
    other = request.session is None and choice is not request.decision.candidates[0]
    told = request.reason  # a third-party strategy may give anything
    reason = FAILOVER if other else (told if told.isprintable() else ascii(told)).encode()
    return reason if choice.cost is FREE else b"%b; %b" % (reason, terms(choice).encode())


def _whole(request: InferenceRequest, choice: Candidate) -> bytes:
    """Return the reason in words and the cost on each of the best workers, as header lines."""
    why = words(request.prompt, request.decision)
    why += instead(request.decision, choice) or gives_way(request.decision)
    lines = [b"x-warmroute-reason: %b\r\n" % why.encode()]
    for one in request.decision.candidates[:MAX_COST_HEADERS]:
        told = "; ".join(filter(None, (one.worker.name, terms(one))))
        lines.append(b"x-warmroute-cost: %b\r\n" % told.encode())
    return b"".join(lines)
