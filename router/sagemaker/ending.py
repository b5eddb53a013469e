"""Closes sessions, also at the worker if that keeps sessions itself."""

import asyncio
from contextlib import suppress

from router.api.errors import DoorError, NoWorker, UnknownSession
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.sagemaker import sessions as container
from router.upstream.errors import WorkerError, answer_for

#: Status codes with which a worker says that it does not know a session: AWS's library has 400, or
#: 424 if it has expired; others would say 404.
_FORGOTTEN = frozenset((400, 404, 424))
#: Seconds that a worker may take to answer if the session ends whatever it says.
PATIENCE_S = 2.0
#: Seconds to wait for a session to be opened for a client that has left, and how many such openings
#: to wait for at once; for any more the connection is closed.
LATE_S, LATE = 10.0, 64
_late: set[asyncio.Future[tuple[str, float | None]]] = set()


async def end_everywhere(
    fleet: Fleet, key: str, body: bytes, identity: bytes, *, anyway: bool = False
) -> bytes:
    """Close a session in every pool that knows it; return its worker's answer to `body`.

    With `anyway` it ends here whatever its worker says, and even if that is silent for
    `PATIENCE_S`. Raises UnknownSession if no pool knows it. An error in one pool is raised after
    all were asked.
    """
    closed, said = False, b""
    errors: list[DoorError] = []
    for pool in fleet.pools:
        try:
            if pool.sessions is not None and pool.stateful and anyway:
                with suppress(DoorError, TimeoutError):
                    async with asyncio.timeout(PATIENCE_S):
                        await _end_there(pool, key, body, identity)
            elif pool.sessions is not None and pool.stateful:
                said = await _end_there(pool, key, body, identity) or said
            if pool.sessions is not None:
                closed = await pool.sessions.close(key) or closed
        except DoorError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    if not closed:
        raise UnknownSession
    return said


async def _end_there(pool: Pool, key: str, body: bytes, identity: bytes) -> bytes:
    """Close a session at its worker, if that is there. Raises a DoorError, and Refusal."""
    sessions = pool.sessions
    session = (
        None if sessions is None else await sessions.find(key, pool, (), known=True, uses=True)
    )
    worker = pool.named.get(session.worker) if session is not None else None
    if sessions is None or session is None or worker is None or not worker.ready:
        return b""
    try:
        return await container.close_session(worker, body, session.own or key, identity)
    except container.Refusal as refusal:
        if refusal.said.status == 503:
            raise NoWorker("The session's worker is full; please try again.") from None
        if refusal.said.status not in _FORGOTTEN:
            raise
        await sessions.close(key)
        raise UnknownSession from None
    except WorkerError as error:
        if not error.safe:
            raise answer_for(error, worker.name) from None
        return b""  # it is gone, and the session with it


async def drop(worker: Worker, own: str, identity: bytes) -> None:
    """Close a session that nobody will use; if its worker cannot be told, it expires."""
    with suppress(DoorError, WorkerError, TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            await container.close_session(worker, container.CLOSES, own, identity)


async def drop_late(
    worker: Worker, opening: asyncio.Future[tuple[str, float | None]], identity: bytes
) -> None:
    """Close a session as soon as it has been opened, because its client has left."""
    if len(_late) >= LATE:
        opening.cancel()
        return
    _late.add(opening)
    try:
        with suppress(DoorError, WorkerError, TimeoutError):
            async with asyncio.timeout(LATE_S):
                own, _ = await opening
            await drop(worker, own, identity)
    finally:
        _late.discard(opening)
