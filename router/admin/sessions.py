"""The operators' paths that list and close sessions."""

from collections.abc import Callable
from urllib.parse import unquote

from fastapi import FastAPI, Response

from router.api.endpoints import SESSIONS
from router.api.errors import StoreAway
from router.fleet.fleet import Fleet
from router.http.headers import new_id
from router.observe.models import Shown
from router.sagemaker.sessions import CLOSES, end_everywhere
from router.sessions.ids import kept, written
from router.sessions.store import StoreDown
from router.sessions.table import OpenSession

#: Sessions listed of each pool.
MAX_LISTED = 1000


class SessionStatus(Shown):
    """One open session. Times are UTC, in whole seconds."""

    id: str
    pool: str
    worker: str
    created: str
    used: str
    expires: str

    @classmethod
    def of(
        cls, key: str, pool: str, session: OpenSession, shown: Callable[[float], float]
    ) -> "SessionStatus":
        """Return the form in which a session is listed, its times as `Sessions.shown` has them."""
        times = map(shown, (session.created, session.used, session.expires))
        created, used, expires = map(written, times)
        return cls(
            id=key, pool=pool, worker=session.worker, created=created, used=used, expires=expires
        )


def add_session_paths(app: FastAPI, fleet: Fleet) -> None:
    """Add the paths."""

    @app.get(SESSIONS)
    async def sessions() -> list[SessionStatus]:
        """List open sessions, up to a thousand of each pool, those unused for longest first.

        503 while a pool's store is down.
        """
        statuses = []
        for pool in fleet.pools:
            if pool.sessions is not None:
                try:
                    listed = await pool.sessions.listed(MAX_LISTED)
                except StoreDown:
                    raise StoreAway(pool.name) from None
                shown = pool.sessions.shown
                statuses += [SessionStatus.of(key, pool.name, s, shown) for key, s in listed]
        return statuses

    @app.delete(SESSIONS + "/{session:path}", status_code=204)
    async def close(session: str) -> Response:
        """Close a session in every pool that knows it, and at its worker if that can be told."""
        key = kept(unquote(session))
        await end_everywhere(fleet, key, CLOSES, new_id(), anyway=True)
        return Response(status_code=204)
