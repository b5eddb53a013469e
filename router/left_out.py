"""Why workers of a pool are out of the question for a request."""

from time import monotonic

from router.pool import Pool
from router.worker import State, Worker
from strategies.base import Decision
from strategies.explain import LeftOut


def left_out(pool: Pool, model: str, decision: Decision, most: int) -> list[LeftOut]:
    """Return the workers that were not compared; each may have `most` requests in flight."""
    compared = {candidate.worker.name for candidate in decision.candidates}
    others = (worker for worker in pool.workers if worker.name not in compared)
    return [LeftOut(one.name, *_why(one, model, most)) for one in others]


def _why(worker: Worker, model: str, most: int) -> tuple[str, str]:
    state, reason = worker.standing(monotonic())
    if state != State.READY.value:
        return state, reason
    if not Pool.serves(worker, model):
        return "other", f"it does not serve {model!r}"
    if worker.load.here < most:
        return "unranked", "the pool's strategy did not rank it"
    return "full", f"it has {worker.load.here} requests in flight; `limits.in_flight` is {most}"
