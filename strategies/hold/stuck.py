"""Rescue: requests that wait in vain at one worker are sent to another.

A worker may hang although its front process answers probes, or its KV cache may be much fuller than
thought. If its oldest prompt is very late, what waits there is taken back, as for preemption, and
decided anew. The worker counts as holding no more than before.
"""

from strategies.api import FREE, Candidate, Decision
from strategies.constants import LATE_S, MAX_STEP, STUCK_S, TIMES_GUESSED
from strategies.cost.load import Booking, Load, late_s
from strategies.cost.prefill import Pace
from strategies.hold.queue import Queue


def hangs(load: Load, pace: Pace, now: float) -> bool:
    """Whether the oldest prompt there is so late that the worker must be stuck."""
    load.wait(now)  # drops answers in one piece whose predicted time has passed
    for head in load.pending:
        least = max(STUCK_S, head.prefill_s * (MAX_STEP if pace.curve.seen else TIMES_GUESSED))
        return late_s(head, now - load.head_since) >= least
    return False


def stranded(load: Load, pace: Pace, now: float) -> list[Booking]:
    """Return the bookings that wait in vain there, oldest first; none if the worker is not stuck.

    Once some were moved, the next one waits in vain until an answer begins, unless it came later.
    """
    if hangs(load, pace, now):
        return list(load.pending)
    moved_at = load.late_until - LATE_S
    if now >= load.late_until:
        return []
    return [booking for booking in load.pending if booking.at <= moved_at]


def better(there: Candidate, decision: Decision, now: float) -> Candidate | None:
    """Return where to move a request, by a decision among workers that are not late.

    `there` is the choice with which it was sent. It is taken to wait there as long again as that
    worker is late already. It is moved only if another worker takes it at once, at nobody's
    expense, and never by a strategy that compares no costs: that could send it back.
    """
    best = decision.candidates[0]
    if best.cost == FREE or best.preempts or Queue.must_hold(decision, now):
        return None
    stays = there.worker.load.late(now) + there.cost.total - there.cost.wait
    return best if best.cost.total < stays else None
