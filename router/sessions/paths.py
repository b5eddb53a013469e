"""What operators see of sessions, and how they end one."""

from urllib.parse import unquote

from fastapi import FastAPI, Query, Response
from pydantic import BaseModel

from router.errors import UnknownSession
from router.fleet import Fleet
from router.gate import SESSION, SESSIONS
from router.sessions.expiry import written
from router.sessions.table import Session

#: Sessions listed at once.
LISTED = 1000


class SessionStatus(BaseModel):
    """One open session. Times are UTC, in whole seconds."""

    id: str
    pool: str
    worker: str
    created: str
    used: str
    expires: str

    @classmethod
    def of(cls, key: str, pool: str, session: Session) -> "SessionStatus":
        """As it is shown."""
        times = map(written, (session.created, session.used, session.expires))
        created, used, expires = times
        return cls(
            id=key, pool=pool, worker=session.worker, created=created, used=used, expires=expires
        )


def add_session_paths(app: FastAPI, fleet: Fleet) -> None:
    """Serve them."""

    @app.get(SESSIONS)
    async def sessions(limit: int = Query(LISTED, ge=1, le=LISTED)) -> list[SessionStatus]:
        """List open sessions, up to `limit` of each pool, those unused for longest first."""
        return [
            SessionStatus.of(key, pool.name, session)
            for pool in fleet.pools
            if pool.sessions is not None
            for key, session in await pool.sessions.listed(limit)
        ]

    @app.delete(SESSION + "{key:path}", status_code=204)
    async def close(key: str) -> Response:
        """Close a session in every pool that knows it."""
        kept = [pool.sessions for pool in fleet.pools if pool.sessions is not None]
        if not any([await one.close(unquote(key)) for one in kept]):
            raise UnknownSession
        return Response(status_code=204)
