"""Explains from a settings file alone where a request would go and why.

No worker is asked: every one counts as ready, idle and empty, so the result shows how a prompt is
read, how long it is estimated to be, and what it would cost.
"""

from contextlib import suppress
from time import monotonic

from router.admin import readable
from router.admin.explain import WrongQuestion, endpoint_of, pools_for, sent_nowhere
from router.api.engine_fields import refuse_engine_fields
from router.api.errors import BadRequest, DoorError, NoWorker, UnknownModel
from router.api.lenient_json import rewrite
from router.api.limits import Limits
from router.api.request import parse
from router.dispatch.left_out import left_out, unable
from router.fleet.build import build
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import State
from router.http.tls import Contexts
from router.settings.model import Settings
from strategies.explain import Explanation, explain


def explained_offline(settings: Settings, path: str, body: bytes, name: str) -> Explanation:
    """Explain from settings alone; `name` says where the body is from, for errors.

    Raises WrongQuestion, CannotBuild.
    """
    try:
        endpoint = endpoint_of(path)
        with suppress(ValueError):  # no text: refused below
            body = rewrite(body).seen
        request = parse(endpoint, body, b"application/json")
        Limits(settings.limits).check(endpoint, request)
        pool = _told(build(settings, Contexts()), request.model)
        if not pool.engine_fields:
            refuse_engine_fields(request)
        readable.check(endpoint, body)
        prompt = pool.prompts.uncounted(endpoint, request, body).prompt
    except DoorError as error:
        what = "--path" if error.param == "path" else name
        raise WrongQuestion(f"{what}: {error.message}") from None
    model, most = prompt.model, settings.limits.in_flight
    workers = [worker for worker in pool.taking if Pool.serves(worker, model)]
    if not workers:
        lacking = NoWorker("Every worker that serves this model is draining.")
        return sent_nowhere([pool], prompt, unable(pool, prompt, most), lacking)
    decision = pool.strategy.rank(prompt, workers, monotonic())
    others = left_out(pool, prompt, decision, most)
    return explain(prompt, decision, left_out=others, pool=pool.name)


def _told(fleet: Fleet, model: str | None) -> Pool:
    """Return a model's pool as far as settings tell; an empty name fits every worker.

    Takes every worker as ready, and as serving the model if its models are not told. Raises
    BadRequest, UnknownModel.
    """
    pools = pools_for(fleet, model)
    if len(pools) > 1:
        raise BadRequest("The field `model` is missing, and the file has several pools.")
    workers = [worker for pool in pools for worker in pool.workers]
    for worker in workers:
        worker.become(State.READY, "not asked")
        worker.models = worker.models or {model or "": {}}
    if not any(Pool.serves(worker, model or "") for worker in workers):
        raise UnknownModel(model or "")
    return pools[0]
