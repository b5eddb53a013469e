"""The header fields that tell a client which worker its request went to, and why."""

from typing import Final

from router.dispatch.request import Job
from router.fleet.worker import Worker
from router.http.headers import header
from strategies.api import FREE, Candidate
from strategies.explain import gives_way, instead, terms, words

#: With this header, whatever its value, a client asks for the whole decision.
DECISION: Final = b"x-warmroute-decision"
#: The first word of the decision where a worker answers that was not the first choice.
FAILOVER: Final = b"failover"
#: How many of the best workers have their cost in a header then.
MOST_TOLD = 16


def decision_fields(job: Job, worker: Worker, choice: Candidate, status: int) -> bytes:
    """Return the header lines for an answer of that status from that worker."""
    lines = b"x-request-id: %b\r\nx-warmroute-worker: %b\r\nx-warmroute-decision: %b\r\n" % (
        job.exchange.identity,
        worker.label,
        explanation(job, choice),
    )
    if job.preemptions:
        lines += b"x-warmroute-preempted: %d\r\n" % job.preemptions
    if job.visit is not None:
        lines += job.visit.fields(status)
        job.metrics.decided(job.reason)
    return lines + _whole(job, choice) if header(job.exchange.headers, DECISION) else lines


def explanation(job: Job, choice: Candidate) -> bytes:
    """Return the reason for the choice, and the terms of its cost."""
    # (Of a session, it is told why it is where it is by now.)
    other = job.visit is None and choice is not job.decision.candidates[0]
    told = job.reason  # a third-party strategy may give anything
    reason = FAILOVER if other else (told if told.isprintable() else ascii(told)).encode()
    return reason if choice.cost is FREE else b"%b; %b" % (reason, terms(choice).encode())


def _whole(job: Job, choice: Candidate) -> bytes:
    """Return the reason in words and the cost on each of the best workers, as header lines."""
    why = words(job.prompt, job.decision)
    why += instead(job.decision, choice) or gives_way(job.decision)
    lines = [b"x-warmroute-reason: %b\r\n" % why.encode()]
    for one in job.decision.candidates[:MOST_TOLD]:
        told = "; ".join(filter(None, (one.worker.name, terms(one))))
        lines.append(b"x-warmroute-cost: %b\r\n" % told.encode())
    return b"".join(lines)
