"""Preemption: a worker is made to drop a long prompt before its first token, for a short one.

Engines compute prompts in order, so a short prompt waits for the long one before it. If the long
request's connection is closed, the engine drops it at its next step, and the blocks computed by
then stay in its prefix cache (vLLM `v1/core/sched/scheduler.py`, `finish_requests`). Sent again, it
goes on from there. So the shortest remaining prefill goes first even if a longer one has begun
(Schrage, "A Proof of the Optimality of the Shortest Remaining Processing Time Discipline", 1968),
and each second of waiting makes up for some seconds of prefill, so that none starves (`AGING`).
"""

from collections.abc import Sequence

from strategies.api import Candidate, Prompt
from strategies.constants import AGING, MARGIN, MAX_WAIT_S, PRICE, STEP_S
from strategies.cost.load import Booking, Load, late_s


def before(
    load: Load, wait: float, keys: Sequence[int], prefill_s: float, now: float
) -> tuple[float, int, float]:
    """Return how many seconds a prompt with these `keys` would wait there for others' prefill.

    `wait` is all that is booked there, and its own prefill takes `prefill_s`. Also returns how many
    bookings it would preempt, and what each second of its prefill costs these and those that wait
    in the router after it. None gives way on a worker from which requests were moved: it may hang.
    """
    preempts, later = 0, 0
    if wait > MARGIN * (STEP_S + prefill_s) and not load.late_until:
        wait, over = ahead(load, keys, prefill_s, now)
        preempts = len(over)
    if load.promises:
        more, later = promised(load, prefill_s, now)
        wait += more
    return wait, preempts, PRICE * (preempts + later)


def ahead(
    load: Load, keys: Sequence[int], prefill_s: float, now: float
) -> tuple[float, list[Booking]]:
    """Return seconds of booked prefill that a prompt would wait for, and what it would preempt."""
    wait, spent, least_s = 0.0, now - load.head_since, prefill_s + STEP_S
    preempted, counted = list[Booking](), dict[int, set[int]]()
    for booking in load.pending:
        left = max(0.0, booking.prefill_s - spent)
        gives = gives_way(booking, left, keys, least_s, now)
        if gives and not _awaited(load, booking, counted):
            preempted.append(booking)
            wait += MARGIN * STEP_S if spent else 0.0
        else:
            wait += max(0.0, MARGIN * booking.prefill_s - spent) or late_s(booking, spent)
        spent = 0.0
    return wait, preempted


def gives_way(
    booking: Booking, left_s: float, keys: Sequence[int], least_s: float, now: float
) -> bool:
    """Whether a booking with `left_s` to go gives way to a prompt with these `keys` that comes now.

    It needs to have more than `least_s` to go, after each second of its own waiting has made up for
    `AGING` seconds, and may not have come `MAX_WAIT_S` ago. And it does not give way if that prompt
    is only so short because of what the booking is computing.
    """
    since = booking.since
    if since is None or now - since >= MAX_WAIT_S or left_s - AGING * (now - since) <= least_s:
        return False
    at = booking.held_blocks
    return not (at < len(keys) and at < len(booking.keys) and keys[at] == booking.keys[at])


def _awaited(load: Load, booking: Booking, counted: dict[int, set[int]]) -> bool:
    """Whether another booking there counts on the blocks that this one computes.

    If this one were dropped, the other would have to compute them in its place. `counted` keeps
    what was found out for the first block to be computed, which most bookings have in common.
    """
    at = booking.held_blocks
    if at >= len(booking.keys):
        return False
    if at not in counted:  # the keys of the blocks number `at` that pending prompts count on
        counted[at] = {other.keys[at] for other in load.pending if other.held_blocks > at}
    return booking.keys[at] in counted[at]


def computes_from(booking: Booking, prompt: Prompt, choice: Candidate) -> None:
    """Note which of the prompt's blocks the booking computes."""
    booking.keys, booking.held_blocks = prompt.keys, prompt.blocks_in(choice.held_tokens)


def drop(booking: Booking, choice: Candidate, tokens: int, now: float) -> int:
    """End the booking of a prompt that its worker is made to drop.

    Returns how many of its `tokens` the worker holds by then, as estimated.
    """
    held, load = choice.held_tokens, choice.worker.load
    spent = load.spent(booking, now)
    if spent:  # the step that it is in will be ended: on average half a step more
        spent += STEP_S / 2.0
    computed = choice.worker.pace.computed(spent, held)
    kept = max(held, min(tokens - 1, held + int(computed)))
    load.drop(booking, now, (kept - held) / max(1, tokens - held))
    return kept


def promised(load: Load, prefill_s: float, now: float) -> tuple[float, int]:
    """Return seconds promised there before a new prompt of `prefill_s`, and how many come after."""
    wait, later, need = 0.0, 0, prefill_s + AGING * now
    for other, seconds in load.promises:
        if other <= need:
            wait += MARGIN * seconds
        else:
            later += 1
    return wait, later
