"""Why workers of a pool are out of the question for a request."""

from time import monotonic

from router.fleet.pool import Pool
from router.fleet.worker import Availability, Worker
from strategies.api import Decision, Prompt
from strategies.explain import LeftOut

#: State and reason of a worker that could have been compared.
_UNRANKED = "unranked", "the pool's strategy did not rank it"
#: In these states a worker takes nothing, though its probes succeed; in others it is asked last.
_OUT = frozenset((Availability.EJECTED, Availability.DRAINING))


def left_out(pool: Pool, prompt: Prompt, decision: Decision, most: int) -> list[LeftOut]:
    """Return the workers that were not compared; each may have `most` requests in flight."""
    compared = {candidate.worker.name for candidate in decision.candidates}
    others = (worker for worker in pool.workers if worker.name not in compared)
    return [LeftOut(one.name, *(_why(one, prompt, most) or _UNRANKED)) for one in others]


def unable(pool: Pool, prompt: Prompt, most: int) -> list[LeftOut]:
    """Return the workers that could not take the request now."""
    told = ((worker.name, _why(worker, prompt, most)) for worker in pool.workers)
    return [LeftOut(name, *why) for name, why in told if why]


def _why(worker: Worker, prompt: Prompt, most: int) -> tuple[str, str] | None:
    state, reason = worker.availability(monotonic())
    if not worker.ready or state in _OUT:
        return state.value, reason
    if not Pool.serves(worker, prompt.model):
        return "other", f"it does not serve {prompt.model!r}"
    if (lacking := prompt.barred.get(worker.name)) is not None:
        return "unable", lacking
    here = worker.load.here
    if here < most:
        return None
    return "full", f"it has {here} requests in flight; `limits.in_flight` is {most}"
