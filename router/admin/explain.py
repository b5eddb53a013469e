"""Explains where a request would go in a running router and why, without sending it."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from router.admin import readable
from router.api.endpoints import ENDPOINTS, Endpoint
from router.api.errors import BadRequest, DoorError, Headers, NoWorker
from router.api.lenient_json import rewritten
from router.api.request import Request, parse
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.responses.owners import at
from router.sessions.use import Visit
from strategies.api import NOBODY, Decision, Prompt
from strategies.explain import Explanation, LeftOut, Refused, Waits, explain, nowhere

T = TypeVar("T")


class Question(NamedTuple):
    """A request to explain."""

    path: str
    """Of the endpoint that it is meant for."""
    body: bytes
    headers: Headers
    """Those that may name its session or its prefix."""
    key: str = ""
    """Names the key that it would come with, if keys have caches of their own."""
    asker: str = ""
    """Names the key of the caller."""


class Foreseen(NamedTuple):
    """What would be decided on a request that came now."""

    prompt: Prompt
    decision: Decision
    waits: Waits
    """What it would wait for first."""
    left_out: Sequence[LeftOut]
    refused: Refused | None
    """What it would get instead, if it found no place to wait at."""
    sessionless: bool
    """It names a session, but its pool keeps none and ignores that."""


class Decides(Protocol):
    """The parts of a running router that are used here."""

    async def foresee(
        self, pool: Pool, endpoint: Endpoint, request: Request, asked: Question
    ) -> Prompt:
        """Make the prompt of a request that is not sent. Raises BadRequest."""

    def would(
        self,
        pool: Pool,
        prompt: Prompt,
        workers: Sequence[Worker],
        visit: Visit | None,
        asked: Question,
        *,
        only: str,
    ) -> Foreseen:
        """Decide as if the prompt came now with that key, for the session of `visit`.

        `only` names the only worker that will do, if just one will. Raises DoorError.
        """

    async def only(self, endpoint: Endpoint, request: Request, asked: Question) -> str:
        """Return the name of the only worker that can answer; empty if that is not so.

        Raises DoorError.
        """

    def unable(self, pool: Pool, prompt: Prompt) -> Sequence[LeftOut]:
        """Return the workers that could not take the request now, and why."""

    def as_from(self, endpoint: Endpoint, request: Request, asked: Question) -> None:
        """Treat a request as if it came with these headers and that key. Raises BadRequest."""

    async def apart(self, asked: Question, work: Callable[[], T]) -> T:
        """Do something with its body, in a thread if it is large. Raises what that raises."""


class CannotExplain(Exception):
    """There is no explanation; the message is a sentence that says why."""


class WrongQuestion(CannotExplain):
    """What was asked is wrong in itself, not only here and now."""


async def explained(fleet: Fleet, router: Decides, asked: Question) -> Explanation:
    """Decide on a request; book nothing, and do not use its session.

    If no worker is left for it, say why none of them is. Raises DoorError.
    """
    endpoint = endpoint_of(asked.path)
    with suppress(ValueError):  # no text: refused below
        asked = asked._replace(body=(await rewritten(asked.body)).seen)
    body = asked.body

    def read() -> Request:
        request = parse(endpoint, body, b"application/json")
        router.as_from(endpoint, request, asked)
        return request

    request = await router.apart(asked, read)
    try:
        return await _decided(fleet, router, asked, endpoint, request)
    except NoWorker as error:
        pools = pools_for(fleet, request.model)
        await router.apart(asked, partial(readable.check, endpoint, body))
        prompt = await router.foresee(pools[0], endpoint, request, asked)
        others = [one for pool in pools for one in router.unable(pool, prompt)]
        return sent_nowhere(pools, prompt, others, error)


async def _decided(
    fleet: Fleet, router: Decides, asked: Question, endpoint: Endpoint, request: Request
) -> Explanation:
    body = asked.body
    pool, request.model, workers = await fleet.find(request.model, in_session=True)
    await router.apart(asked, partial(readable.check, endpoint, body))
    prompt = await router.foresee(pool, endpoint, request, asked)
    only = await router.only(endpoint, request, asked)
    barred = NOBODY if only else prompt.barred
    pool, _, workers = fleet.route(request.model, barred, in_session=True)  # may be others by now
    if pool.consult is not None and prompt.blocks:
        await pool.consult(prompt, [worker.name for worker in workers])
        pool, _, workers = fleet.route(request.model, barred, in_session=True)
    visit = None if pool.sessions is None else pool.sessions.asked(asked.headers, body)
    if only:
        workers = at(pool, request.model, only)
    elif visit is None:
        workers = workers or pool.eligible(request.model, barred)  # without any, this raises
    if visit is not None:
        await visit.look(pool, workers, uses=False)
        visit = visit if visit.may_be_at(only) else None
    found = router.would(pool, prompt, workers, visit, asked, only=only)
    return explain(**found._asdict(), pool=pool.name)


def pools_for(fleet: Fleet, model: str | None) -> list[Pool]:
    """Return the pools that a request could belong to."""
    return [pool for pool in fleet.pools if not model or fleet.answers_for(model, pool)]


def sent_nowhere(
    pools: Sequence[Pool], prompt: Prompt, others: Sequence[LeftOut], error: NoWorker
) -> Explanation:
    """Explain that no worker of these pools is left; `others` are those that could take nothing."""
    pool = pools[0].name if len(pools) == 1 else ""
    return nowhere(prompt, refusal(error), others, pool=pool)


def refusal(error: DoorError) -> Refused:
    """Return what a client would be told."""
    return Refused(error.status, error.code, error.message)


def endpoint_of(path: str) -> Endpoint:
    """Return the endpoint that a question is about. Raises BadRequest."""
    endpoint = ENDPOINTS.get(path)
    if endpoint is None or endpoint.form:
        known = ", ".join(path for path, endpoint in ENDPOINTS.items() if not endpoint.form)
        raise BadRequest(f"{path!r} is no endpoint to explain; there are {known}.", param="path")
    return endpoint
