"""Explains where a request would go in a running router and why, without sending it."""

from collections.abc import Sequence
from contextlib import suppress

from router.api.endpoints import ENDPOINTS, Endpoint
from router.api.errors import BadRequest, NoWorker
from router.api.lenient_json import rewritten
from router.api.request import Request, parse
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.proxy.dry_run import DryRun, Question, refusal
from router.responses.owners import at
from strategies.api import NOBODY, Prompt
from strategies.explain import Explanation, LeftOut, explain, nowhere


class CannotExplain(Exception):
    """There is no explanation; the message is a sentence that says why."""


class WrongQuestion(CannotExplain):
    """What was asked is wrong in itself, not only here and now."""


async def explained(fleet: Fleet, router: DryRun, question: Question) -> Explanation:
    """Decide on a request; book nothing, and do not use its session.

    If no worker is left for it, say why none of them is. Raises APIError.
    """
    endpoint = endpoint_of(question.path)
    with suppress(ValueError):  # no text: refused below
        question = question._replace(body=(await rewritten(question.body)).seen)
    body = question.body

    def read() -> Request:
        request = parse(endpoint, body, b"application/json")
        router.as_from(endpoint, request, question)
        return request

    request = await router.apart(question, read)
    try:
        return await _decided(fleet, router, question, endpoint, request)
    except NoWorker as error:
        pools = pools_for(fleet, request.model)
        prompt = await router.foresee(pools[0], endpoint, request, question)
        others = [left_out for pool in pools for left_out in router.unable(pool, prompt)]
        return sent_nowhere(pools, prompt, others, error)


async def _decided(
    fleet: Fleet, router: DryRun, question: Question, endpoint: Endpoint, request: Request
) -> Explanation:
    pool, request.model, workers = await fleet.find(request.model, in_session=True)
    prompt = await router.foresee(pool, endpoint, request, question)
    only = await router.only(endpoint, request, question)
    barred = NOBODY if only else prompt.barred
    pool, _, workers = fleet.route(request.model, barred, in_session=True)  # may be others by now
    if pool.consult is not None and prompt.blocks:
        await pool.consult(prompt, [worker.name for worker in workers])
        pool, _, workers = fleet.route(request.model, barred, in_session=True)
    visit = None
    if pool.sessions is not None:
        visit = pool.sessions.asked(question.headers, question.body)
    if only:
        workers = at(pool, request.model, only)
    elif visit is None:
        workers = workers or pool.eligible(request.model, barred)  # without any, this raises
    if visit is not None:
        await visit.look(pool, workers, uses=False)
        visit = visit if visit.may_be_at(only) else None
    forecast = router.would(pool, prompt, workers, visit, question, only=only)
    return explain(**forecast._asdict(), pool=pool.name)


def pools_for(fleet: Fleet, model: str | None) -> list[Pool]:
    """Return the pools that a request could belong to."""
    return [pool for pool in fleet.pools if not model or fleet.answers_for(model, pool)]


def sent_nowhere(
    pools: Sequence[Pool], prompt: Prompt, others: Sequence[LeftOut], error: NoWorker
) -> Explanation:
    """Explain that no worker of these pools is left; `others` are those that could take nothing."""
    pool = pools[0].name if len(pools) == 1 else ""
    return nowhere(prompt, refusal(error), others, pool=pool)


def endpoint_of(path: str) -> Endpoint:
    """Return the endpoint that a question is about. Raises BadRequest."""
    endpoint = ENDPOINTS.get(path)
    if endpoint is None or endpoint.form:
        known = ", ".join(path for path, endpoint in ENDPOINTS.items() if not endpoint.form)
        raise BadRequest(f"{path!r} is no endpoint to explain; there are {known}.", param="path")
    return endpoint
