"""Words on a session that bring no prompt: it begins, it ends."""

from time import monotonic

from router.errors import BadRequest, NoWorker, SessionExists, UnknownSession
from router.fleet import Fleet, Pool, Worker
from router.sagemaker import container
from router.sagemaker.answer import session_answer
from router.sagemaker.invocation import Invocation
from router.sessions.expiry import announced
from router.sessions.sessions import Sessions
from router.sessions.visit import Visit
from strategies.base import Outcome, Prompt

_CLOSED = b"x-amzn-sagemaker-closed-session-id: %b\r\n"
_NEW = b"x-amzn-sagemaker-new-session-id: %b\r\n"


class Words:
    """Answers them, and passes them on to workers that keep sessions themselves."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def open(self, asked: Invocation) -> None:
        """Begin a session; its worker is chosen now. Raises a DoorError, and Refusal."""
        pool = self._pool(asked.model)
        if pool.stateful:
            visit = await self.open_there(asked, pool)
        else:
            visit = sessions_of(pool).opening(asked.session)
            await visit.look(pool)
            await _choose(pool, visit)
        line = _NEW % announced(visit.id, visit.expires).encode()
        _answer(asked, line + b"x-warmroute-worker: %b\r\n" % visit.bound.encode(), b"")

    async def open_there(self, asked: Invocation, pool: Pool, *, answered: bool = False) -> Visit:
        """Begin one at a worker that keeps them; its id is the client's, or else the worker's.

        With `answered` something else is answered, which is to tell of the session too. Raises as
        `open`.
        """
        sessions, key, exchange = sessions_of(pool), asked.session, asked.exchange
        if key is not None:
            await sessions.opening(key).look(pool)
        worker = await _choose(pool, None)
        body = exchange.body if not answered else container.OPENS
        own, expires = await container.open_session(worker, body, exchange.identity)
        session = await sessions.adopt(key or own, worker.name, own, expires)
        if session is None:
            raise SessionExists
        visit = sessions.within(key or own)
        await visit.look(pool)
        if answered:
            exchange.add(_NEW % announced(visit.id, visit.expires).encode())
        return visit

    async def close(self, asked: Invocation) -> None:
        """End a session. Raises UnknownSession, and as `open`."""
        key, closed, said = asked.session or "", False, b""
        for pool in self._fleet.pools:
            if pool.sessions is None:
                continue
            if pool.stateful:
                said = await _close_there(asked, pool, pool.sessions) or said
            closed = await pool.sessions.close(key) or closed
        if not closed:
            raise UnknownSession
        _answer(asked, _CLOSED % key.encode(), said)

    def _pool(self, model: str) -> Pool:
        """Return the pool of a session that has no prompt yet. Raises BadRequest."""
        if model:
            return self._fleet.route(model)[0]
        pools = [pool for pool in self._fleet.pools if pool.sessions is not None]
        if len(pools) > 1:
            raise BadRequest(
                "Several pools keep sessions: name the `model`, or give the endpoint one in the"
                " settings.",
                param="model",
            )
        return pools[0] if pools else self._fleet.pools[0]


def sessions_of(pool: Pool) -> Sessions:
    """Return the sessions of a pool. Raises BadRequest where it keeps none."""
    if pool.sessions is None:
        raise BadRequest("Sessions are not kept here: the pool's strategy is not `session`.")
    return pool.sessions


async def _choose(pool: Pool, visit: Visit | None) -> Worker:
    """Choose a worker as for a request of no tokens, and bind the session to it."""
    bound = "" if visit is None else visit.bound
    prompt = Prompt(model="", tokens=0, answer_tokens=0, bound=bound)
    now = monotonic()
    ready = [worker for worker in pool.taking if worker.ready]
    ready = pool.breakers.admitted(now, ready) if ready and pool.breakers.any_open else ready
    if not ready:
        raise NoWorker("No worker is ready; please try again.")
    decision = pool.strategy.rank(prompt, ready, now)
    choice = decision.candidates[0]
    if visit is not None:
        choice = await visit.settle(choice, decision.candidates, pool)
    worker: Worker = choice.worker  # type: ignore[assignment]  # our fleet's own
    # It has had its turn, though nothing is computed: the next session goes elsewhere.
    worker.load.release(pool.book(prompt, choice, now), now)
    pool.strategy.settled(prompt, choice, Outcome(ok=True, began=False), now)
    return worker


async def _close_there(asked: Invocation, pool: Pool, sessions: Sessions) -> bytes:
    """Tell the worker that keeps the session, if it is there; return what it answered."""
    key = asked.session or ""
    session = await sessions.use(key, pool, known=False)
    worker = next((w for w in pool.workers if session and w.name == session.worker), None)
    if session is None or worker is None or not worker.ready:
        return b""
    body, identity = asked.exchange.body, asked.exchange.identity
    try:
        return await container.close_session(worker, body, session.own or key, identity)
    except container.Refusal:  # it has forgotten it, and so do we
        await sessions.close(key)
        raise UnknownSession from None


def _answer(asked: Invocation, line: bytes, said: bytes) -> None:
    exchange = asked.exchange
    fields, body = session_answer(exchange.identity, exchange.headers, line, said)
    exchange.answer(200, fields, body)
