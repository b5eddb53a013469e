"""Opens and closes sessions, also at workers that keep sessions themselves.

Such workers speak two dialects. SageMaker's documentation, DJL, TorchServe and the library that
vLLM uses (model-hosting-container-standards) use `CLOSE`, choose the id, and refuse unknown fields.
The sticky session example of aws-samples uses `CLOSE_SESSION` and an id of the client's. The
client's body is passed on as it is; if the worker answers 400, the documented form is sent once.
The id comes back in either of two headers, with or without its expiry.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import monotonic

from router.api.errors import (
    APIError,
    BadRequest,
    Headers,
    NoWorker,
    SessionExists,
    UnknownSession,
)
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Availability, Worker, common
from router.http.headers import header
from router.sagemaker.invocation import Invocation
from router.sagemaker.response import answer_session
from router.sessions import ids
from router.sessions.ids import AWS_HEADER, NEW_SESSION, announced, fits
from router.sessions.sessions import Sessions
from router.sessions.table import Binding
from router.sessions.use import SessionUse
from router.upstream.errors import Redirected, Refused, WorkerError, answer_for
from strategies.api import Candidate, Outcome, Prompt

_NEW = b"x-amzn-sagemaker-new-session-id"
#: The documented bodies that open and close a session.
OPENS = b'{"requestType":"NEW_SESSION"}'
CLOSES = b'{"requestType":"CLOSE"}'
#: Most bytes of an answer that are read.
MAX_ANSWER_BYTES = 64 << 10


class WorkerRefusal(APIError):
    """The worker refused with `original_status`; the message is the body of its answer."""

    status = 502

    def __init__(self, original_status: int, body: bytes) -> None:
        super().__init__(body.decode("utf-8", errors="replace"))
        self.original_status = original_status


async def open_session(worker: Worker, body: bytes, identity: bytes) -> tuple[str, float | None]:
    """Open a session at a worker; return its id, and its end if the worker says so.

    Raises WorkerRefusal, and WorkerError if the worker cannot be asked.
    """
    headers, _ = await _ask(worker, body, OPENS, NEW_SESSION, identity)
    value = header(headers, _NEW) or header(headers, AWS_HEADER)
    key, expires = ids.read(value.decode("latin-1"))
    if not key or key == "None":
        raise WorkerRefusal(502, b"the worker named no session")
    return key, expires


async def close_session(worker: Worker, body: bytes, key: str, identity: bytes) -> bytes:
    """Close a session at a worker; return the worker's answer. Raises as `open_session`."""
    _, answer = await _ask(worker, body, CLOSES, key, identity)
    return answer


async def _ask(
    worker: Worker, body: bytes, documented: bytes, session: str, identity: bytes
) -> tuple[Headers, bytes]:
    """Send a body, or else the documented one; return header fields and body of the answer."""
    status, headers, answer = await _send(worker, body, session, identity)
    if status == 400 and body != documented:
        status, headers, answer = await _send(worker, documented, session, identity)
    if status >= 300:
        raise WorkerRefusal(status, answer)
    return headers, answer


async def _send(
    worker: Worker, body: bytes, session: str, identity: bytes
) -> tuple[int, Headers, bytes]:
    """Send a body to the worker's `/invocations`; return status, header fields and body."""
    key = b"authorization: Bearer %b\r\n" % worker.api_key if worker.api_key else b""
    head = (
        b"POST /invocations HTTP/1.1\r\nhost: %b\r\nx-request-id: %b\r\ncontent-length: %d\r\n"
        b"content-type: application/json\r\naccept-encoding: identity\r\n%b: %b\r\n%b"
        b"via: 1.1 warmroute\r\n\r\n"
    ) % (worker.host, identity, len(body), AWS_HEADER, session.encode(), key)
    mark = worker.breaker.began(monotonic())
    try:
        connection = await worker.upstream.ask(head, body)
        try:
            if connection.head.redirects:
                raise Redirected(connection.head)
            status, headers, answer = connection.head.status, connection.head.headers, b""
            while len(answer) <= MAX_ANSWER_BYTES and (piece := await connection.chunk()):
                answer += piece
        finally:
            worker.upstream.release(connection)
    except WorkerError as error:
        if isinstance(error, Refused):
            if error.ours:
                worker.breaker.neutral(mark)
                raise
            worker.lost(str(error))
        worker.breaker.failed(monotonic(), mark, error.kind)
        raise
    except BaseException:
        worker.breaker.neutral(mark)
        raise
    worker.breaker.answered(monotonic(), mark, status)
    return status, headers, answer


#: Status codes with which a worker says that it does not know a session: AWS's library has 400, or
#: 424 if it has expired; others would say 404.
_FORGOTTEN = frozenset((400, 404, 424))
#: Seconds that a worker may take to answer if the session ends whatever it says.
CLOSE_TIMEOUT_S = 2.0
#: Seconds to wait for a session to be opened for a client that has left, and how many such openings
#: to wait for at once; for any more the connection is closed.
LATE_CLOSE_TIMEOUT_S, MAX_LATE_CLOSES = 10.0, 64
_late: set[asyncio.Future[tuple[str, float | None]]] = set()


async def end_everywhere(
    fleet: Fleet, key: str, body: bytes, identity: bytes, *, anyway: bool = False
) -> bytes:
    """Close a session in every pool that knows it; return its worker's answer to `body`.

    With `anyway` it ends here whatever its worker says, and even if that is silent for
    `CLOSE_TIMEOUT_S`. Raises UnknownSession if no pool knows it. An error in one pool is raised
    after all were asked.
    """
    closed, answer = False, b""
    errors: list[APIError] = []
    for pool in fleet.pools:
        if pool.sessions is None:
            continue
        try:
            if pool.stateful and anyway:
                with suppress(APIError, TimeoutError):
                    async with asyncio.timeout(CLOSE_TIMEOUT_S):
                        await _end_there(pool, pool.sessions, key, body, identity)
            elif pool.stateful:
                answer = await _end_there(pool, pool.sessions, key, body, identity) or answer
            closed = await pool.sessions.close(key) or closed
        except APIError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    if not closed:
        raise UnknownSession
    return answer


async def _end_there(
    pool: Pool, sessions: Sessions, key: str, body: bytes, identity: bytes
) -> bytes:
    """Close a session at its worker, if that is up. Raises an APIError, and WorkerRefusal."""
    session = await sessions.find(key, pool, (), known=True, uses=True)
    worker = None if session is None else pool.named.get(session.worker)
    if session is None or worker is None or not _is_up(worker):
        return b""
    try:
        return await close_session(worker, body, session.own or key, identity)
    except WorkerRefusal as refusal:
        if refusal.original_status == 503:
            raise NoWorker("The session's worker is full; please try again.") from None
        if refusal.original_status not in _FORGOTTEN:
            raise
        await sessions.close(key)
        raise UnknownSession from None
    except WorkerError as error:
        if not error.safe:
            raise answer_for(error, worker.name) from None
        return b""  # it is gone, and the session with it


def _is_up(worker: Worker) -> bool:
    """Return true if a worker can be asked, whether or not it should get anything new."""
    state, _ = worker.availability(monotonic())
    return state not in {Availability.DOWN, Availability.ASLEEP}


async def drop(worker: Worker, own: str, identity: bytes) -> None:
    """Close a session that nobody will use; if its worker cannot be told, it expires."""
    with suppress(APIError, WorkerError, TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await close_session(worker, CLOSES, own, identity)


async def drop_late(
    worker: Worker, opening: asyncio.Future[tuple[str, float | None]], identity: bytes
) -> None:
    """Close a session as soon as it has been opened, because its client has left."""
    if len(_late) >= MAX_LATE_CLOSES:
        opening.cancel()
        return
    _late.add(opening)
    try:
        with suppress(APIError, WorkerError, TimeoutError):
            async with asyncio.timeout(LATE_CLOSE_TIMEOUT_S):
                own, _ = await opening
            await drop(worker, own, identity)
    finally:
        _late.discard(opening)


_CLOSED = b"x-amzn-sagemaker-closed-session-id: %b\r\n"
_NEW_SESSION = b"x-amzn-sagemaker-new-session-id: %b\r\n"


async def open_call(fleet: Fleet, invocation: Invocation) -> None:
    """Start a session; its worker is chosen now. Raises an APIError, and WorkerRefusal."""
    pool, model, workers = await _place(fleet, invocation.model)
    if pool.stateful:
        visit = await open_there(invocation, pool, model, workers)
    else:
        visit = sessions_of(pool).opening(invocation.session, invocation.call)
        visit.owner = invocation.exchange.tenant
        await visit.look(pool, workers)
        await _choose(pool, model, workers, visit)
    visit.accepted(200)
    line = _NEW_SESSION % announced(visit.id, visit.expires).encode()
    line += b"x-warmroute-worker: %b\r\n" % visit.bound.encode()
    answer_session(invocation.exchange, line, b"", framed=invocation.streams)


async def close_call(fleet: Fleet, invocation: Invocation) -> None:
    """Close a session. Raises UnknownSession, and as `open_call`."""
    key, exchange = invocation.session or "", invocation.exchange
    answer = await end_everywhere(fleet, key, exchange.body, exchange.identity)
    answer_session(exchange, _CLOSED % key.encode(), answer, framed=invocation.streams)


async def _place(fleet: Fleet, model: str) -> tuple[Pool, str, list[Worker]]:
    """Return pool, model and workers for a session without a prompt. Raises as `Fleet.find`.

    Without a model, it is the base model of the only pool that keeps sessions. If that pool has
    several models, any of its workers may be chosen.
    """
    if model:
        return await fleet.find(model)
    pools = [pool for pool in fleet.pools if pool.sessions is not None]
    if len(pools) > 1:
        raise BadRequest(
            "Several pools keep sessions: name the `model`, or give the endpoint one in the"
            " settings.",
            param="model",
        )
    pool = pools[0] if pools else fleet.pools[0]
    if names := common(worker.bases for worker in pool.workers if worker.models):
        return pool, names[0], pool.eligible(names[0])
    up = [worker for worker in pool.taking if _is_up(worker)]
    if not up:
        raise NoWorker("No worker is ready; please try again.")
    return pool, "", pool.breakers.admitted(monotonic(), up)


def sessions_of(pool: Pool) -> Sessions:
    """Return the sessions of a pool. Raises BadRequest if it keeps none."""
    if pool.sessions is None:
        raise BadRequest("Sessions are not kept here: the pool's strategy is not `session`.")
    sessions: Sessions = pool.sessions
    return sessions


async def open_there(
    invocation: Invocation,
    pool: Pool,
    model: str,
    workers: Sequence[Worker],
    *,
    answered: bool = False,
) -> SessionUse:
    """Start a session at a worker that keeps them; its id is the client's, or else the worker's.

    `answered`: a prompt's answer will announce the session. Raises an APIError, and WorkerRefusal.
    """
    sessions, key, exchange = sessions_of(pool), invocation.session, invocation.exchange
    visit = sessions.opening(key, invocation.call)
    if key is not None:
        await visit.look(pool, workers)
        if visit.bound:  # by an earlier attempt at the same call
            return visit
    body, identity = OPENS if answered else exchange.body, exchange.identity
    worker, own, expires = await _open_at_best(pool, model, workers, body, identity)
    undo = partial(drop, worker, own, identity)
    binding = Binding(
        worker.name, own, expires, visit.call, fixed=expires is not None, owner=exchange.tenant
    )
    for wanted in (key,) if key else (own if fits(own) else None, None):
        visit = sessions.opening(wanted, invocation.call)
        try:
            session, done = await sessions.surely(visit.id, binding, None)
        except BaseException:
            await undo()
            raise
        if done:
            visit.take(session)
            visit.state, visit.undone = "new", undo
            return visit
    # Another request with the client's id was first. If it got the same session of the worker's,
    # that one is kept.
    if session is None or (session.worker, session.own) != (binding.worker, binding.own):
        await undo()
    if session is None or not visit.has_begun(session):
        raise SessionExists
    visit.take(session)
    return visit


async def _open_at_best(
    pool: Pool, model: str, workers: Sequence[Worker], body: bytes, identity: bytes
) -> tuple[Worker, str, float | None]:
    """Open a session at the best worker that accepts; return worker, id there, and end."""
    prompt = Prompt(model=model, tokens=0, answer_tokens=0, bound="")
    error: APIError | None = None
    for choice in pool.strategy.rank(prompt, workers, monotonic()).candidates:
        worker: Worker = choice.worker  # type: ignore[assignment]  # our fleet's own
        if error and not (_is_up(worker) and pool.breakers.admits(monotonic(), worker)):
            continue
        _count(pool, prompt, choice)
        try:
            return (worker, *await _open(worker, body, identity))
        except WorkerRefusal as refusal:
            if refusal.original_status != 503:
                raise
            error = NoWorker("Every worker that was asked is full; please try again.")
        except WorkerError as failure:
            error = answer_for(failure, worker.name)
            if not failure.safe:
                raise error from None
    raise error or NoWorker("No worker is ready; please try again.")


async def _open(worker: Worker, body: bytes, identity: bytes) -> tuple[str, float | None]:
    """Open a session at a worker; if the client leaves meanwhile, close it there again."""
    opening = asyncio.ensure_future(open_session(worker, body, identity))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await drop_late(worker, opening, identity)
        raise


async def _choose(pool: Pool, model: str, workers: Sequence[Worker], visit: SessionUse) -> None:
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
