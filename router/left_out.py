"""Why workers of a pool are out of the question for a request."""

from collections.abc import Iterator
from time import monotonic

from router.pool import Pool
from router.worker import DRAINING, State, Worker
from strategies.base import Decision
from strategies.explain import LeftOut


def left_out(pool: Pool, model: str, decision: Decision, most: int) -> list[LeftOut]:
    """Return the workers that were not compared; each may have `most` requests in flight."""
    return [LeftOut(one.name, *_why(one, model, most)) for one in _others(pool, decision)]


def left_out_offline(pool: Pool, model: str, decision: Decision) -> list[LeftOut]:
    """Do the same where no worker was asked for its state."""
    return [
        LeftOut(one.name, *(DRAINING if one.draining else _other(model)))
        for one in _others(pool, decision)
    ]


def _others(pool: Pool, decision: Decision) -> Iterator[Worker]:
    compared = {candidate.worker.name for candidate in decision.candidates}
    return (worker for worker in pool.workers if worker.name not in compared)


def _why(worker: Worker, model: str, most: int) -> tuple[str, str]:
    state, reason = worker.standing(monotonic())
    if state != State.READY.value:
        return state, reason
    if not Pool.serves(worker, model):
        return _other(model)
    return "full", f"it has {worker.load.here} requests in flight; `limits.in_flight` is {most}"


def _other(model: str) -> tuple[str, str]:
    return "other", f"it does not serve {model!r}"
