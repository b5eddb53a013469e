"""Calls without a prompt, which open or close a session."""

import asyncio
from collections.abc import Sequence
from functools import partial
from time import monotonic

from router.api.errors import BadRequest, DoorError, NoWorker, SessionExists
from router.fleet.fleet import Fleet
from router.fleet.model_list import common
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.sagemaker import sessions as container
from router.sagemaker.ending import drop, drop_late, end_everywhere
from router.sagemaker.invocation import Invocation
from router.sagemaker.response import session_answer
from router.sessions.expiry import announced
from router.sessions.ids import fits
from router.sessions.sessions import Sessions
from router.sessions.table import Binding
from router.sessions.use import Visit
from router.upstream.errors import WorkerError, answer_for
from strategies.api import Candidate, Outcome, Prompt

_CLOSED = b"x-amzn-sagemaker-closed-session-id: %b\r\n"
_NEW = b"x-amzn-sagemaker-new-session-id: %b\r\n"


class Words:
    """Opens and closes sessions, also at workers that keep sessions themselves."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def open(self, asked: Invocation) -> None:
        """Start a session; its worker is chosen now. Raises a DoorError, and Refusal."""
        pool, model, workers = await self._place(asked.model)
        if pool.stateful:
            visit = await open_there(asked, pool, model, workers)
        else:
            visit = sessions_of(pool).opening(asked.session, asked.call)
            visit.owner = asked.exchange.tenant
            await visit.look(pool, workers)
            await _choose(pool, model, workers, visit)
        visit.accepted(200)
        line = _NEW % announced(visit.id, visit.expires).encode()
        _answer(asked, line + b"x-warmroute-worker: %b\r\n" % visit.bound.encode(), b"")

    async def close(self, asked: Invocation) -> None:
        """Close a session. Raises UnknownSession, and as `open`."""
        key, exchange = asked.session or "", asked.exchange
        said = await end_everywhere(self._fleet, key, exchange.body, exchange.identity)
        _answer(asked, _CLOSED % key.encode(), said)

    async def _place(self, model: str) -> tuple[Pool, str, list[Worker]]:
        """Return pool, model and workers for a session without a prompt. Raises as `Fleet.find`.

        Without a model, it is the base model of the only pool that keeps sessions. If that pool has
        several models, any of its workers may be chosen.
        """
        if model:
            return await self._fleet.find(model)
        pools = [pool for pool in self._fleet.pools if pool.sessions is not None]
        if len(pools) > 1:
            raise BadRequest(
                "Several pools keep sessions: name the `model`, or give the endpoint one in the"
                " settings.",
                param="model",
            )
        pool = pools[0] if pools else self._fleet.pools[0]
        if names := common(worker.bases for worker in pool.workers if worker.models):
            return pool, names[0], pool.eligible(names[0])
        ready = [worker for worker in pool.taking if worker.ready]
        if not ready:
            raise NoWorker("No worker is ready; please try again.")
        return pool, "", pool.breakers.admitted(monotonic(), ready)


def sessions_of(pool: Pool) -> Sessions:
    """Return the sessions of a pool. Raises BadRequest if it keeps none."""
    if pool.sessions is None:
        raise BadRequest("Sessions are not kept here: the pool's strategy is not `session`.")
    return pool.sessions


async def open_there(
    asked: Invocation, pool: Pool, model: str, workers: Sequence[Worker], *, answered: bool = False
) -> Visit:
    """Start a session at a worker that keeps them; its id is the client's, or else the worker's.

    `answered`: a prompt's answer will tell of the session. Raises a DoorError, and Refusal.
    """
    sessions, key, exchange = sessions_of(pool), asked.session, asked.exchange
    visit = sessions.opening(key, asked.call)
    if key is not None:
        await visit.look(pool, workers)
        if visit.bound:  # by an earlier attempt at the same call
            return visit
    body, identity = container.OPENS if answered else exchange.body, exchange.identity
    worker, own, expires = await _opened(pool, model, workers, body, identity)
    undo = partial(drop, worker, own, identity)
    noted = own, expires, visit.call
    to = Binding(worker.name, *noted, fixed=expires is not None, owner=exchange.tenant)
    for wanted in (key,) if key else (own if fits(own) else None, None):
        visit = sessions.opening(wanted, asked.call)
        try:
            session, done = await sessions.surely(visit.id, to, None)
        except BaseException:
            await undo()
            raise
        if done:
            visit.take(session)
            visit.state, visit.undone = "new", undo
            return visit
    # Another request with the client's id was first. If it got the same session of the worker's,
    # that one is kept.
    if session is None or (session.worker, session.own) != (to.worker, to.own):
        await undo()
    if session is None or not visit.has_begun(session):
        raise SessionExists
    visit.take(session)
    return visit


async def _opened(
    pool: Pool, model: str, workers: Sequence[Worker], body: bytes, identity: bytes
) -> tuple[Worker, str, float | None]:
    """Open a session at the best worker that accepts; return the worker, the id there, and its
    end."""
    prompt = Prompt(model=model, tokens=0, answer_tokens=0, bound="")
    error: DoorError | None = None
    for choice in pool.strategy.rank(prompt, workers, monotonic()).candidates:
        worker: Worker = choice.worker  # type: ignore[assignment]  # our fleet's own
        if error and not (worker.ready and pool.breakers.admits(monotonic(), worker)):
            continue
        _count(pool, prompt, choice)
        try:
            return (worker, *await _open(worker, body, identity))
        except container.Refusal as refusal:
            if refusal.said.status != 503:
                raise
            error = NoWorker("Every worker that was asked is full; please try again.")
        except WorkerError as failure:
            error = answer_for(failure, worker.name)
            if not failure.safe:
                raise error from None
    raise error or NoWorker("No worker is ready; please try again.")


async def _open(worker: Worker, body: bytes, identity: bytes) -> tuple[str, float | None]:
    """Open a session at a worker; if the client leaves meanwhile, close it there again."""
    opening = asyncio.ensure_future(container.open_session(worker, body, identity))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await drop_late(worker, opening, identity)
        raise


async def _choose(pool: Pool, model: str, workers: Sequence[Worker], visit: Visit) -> None:
    """Choose a worker as for a request without tokens, and bind the session to it."""
    prompt = Prompt(model=model, tokens=0, answer_tokens=0, bound=visit.bound)
    candidates = pool.strategy.rank(prompt, workers, monotonic()).candidates
    _count(pool, prompt, candidates[0])  # at once, so that concurrent ones go elsewhere
    await visit.settle(candidates[0], candidates, pool, model)


def _count(pool: Pool, prompt: Prompt, choice: Candidate) -> None:
    """Count the choice though nothing is computed, so that the next session goes elsewhere."""
    worker: Worker = choice.worker  # type: ignore[assignment]  # our fleet's own
    now = monotonic()
    outcome = Outcome(ok=True, began=False)
    worker.load.release(pool.book(prompt, choice, now), now)
    pool.strategy.settled(prompt, choice, outcome, now)
    if pool.tells is not None:
        pool.tells.ended(pool.tells.booked(pool, prompt, choice, now), outcome, now)


def _answer(asked: Invocation, line: bytes, said: bytes) -> None:
    exchange = asked.exchange
    fields, body = session_answer(
        exchange.identity, exchange.headers, line, said, framed=asked.streams
    )
    exchange.answer(200, fields, body)
