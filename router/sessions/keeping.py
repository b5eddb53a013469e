"""Which pools have sessions, and that they keep them when the settings change."""

import asyncio
import logging
from typing import TYPE_CHECKING

from router.sessions.redis import RedisStore
from router.sessions.sessions import Sessions

if TYPE_CHECKING:
    from router.fleet import Fleet
    from router.pool import Pool
    from router.settings_session import SessionSettings


log = logging.getLogger("warmroute.sessions")

#: Seconds between two looks at stores that are elsewhere.
LOOK_S = 1.0


def keep_sessions(pool: "Pool", before: Sessions | None, settings: "SessionSettings") -> None:
    """Give a pool whose strategy keeps sessions a table, or the one it had before."""
    if not getattr(pool.strategy, "keeps_sessions", False):
        pool.sessions = None
        return
    stays = bool(getattr(pool.strategy, "stays", True))
    sessions = before
    if sessions is None or sessions.redis != settings.redis:
        sessions = Sessions(settings, stays=stays)
        if settings.redis is not None:
            sessions.keep_in(RedisStore(settings.redis, pool.name, settings.lease))
            sessions.redis = settings.redis
    else:
        sessions.change(settings, stays=stays)
    pool.sessions = sessions


async def look_after(fleet: "Fleet") -> None:
    """Look at stores that are elsewhere, now and then: how many sessions, and is it there?"""
    while True:
        for pool in fleet.pools:
            if pool.sessions is not None and pool.sessions.redis is not None:
                try:
                    await pool.sessions.look()
                except Exception:  # or nobody would notice any more that the store is back
                    log.exception(
                        "pool %s: internal error while its sessions were checked", pool.name
                    )
        await asyncio.sleep(LOOK_S)


async def let_go(fleet: "Fleet") -> None:
    """Close the connections to stores."""
    for pool in fleet.pools:
        if pool.sessions is not None:
            await pool.sessions.stop()
