"""Give pools their sessions, and keep them across a change of settings."""

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from router.sessions.redis import RedisStore
from router.sessions.sessions import Sessions
from router.sessions.table import SessionLease

if TYPE_CHECKING:
    from router.fleet.fleet import Fleet
    from router.settings.sessions import SessionSettings


log = logging.getLogger("warmroute.sessions")

#: Seconds between two checks of session stores.
CHECK_INTERVAL_S = 1.0


def sessions_of(fleet: "Fleet") -> dict[str, Sessions]:
    """Return the sessions of each pool that keeps any, by the pool's name."""
    return {pool.name: pool.sessions for pool in fleet.pools if pool.sessions is not None}


def give_sessions(
    fleet: "Fleet", settings: "SessionSettings", before: Mapping[str, Sessions]
) -> None:
    """Give every pool its sessions, if its strategy keeps any.

    Those that a pool of its name had `before` stay.
    """
    for pool in fleet.pools:
        if not pool.capabilities.keeps_sessions:
            pool.sessions = None
            continue
        stays = not pool.capabilities.moves_sessions
        sessions = before.get(pool.name)
        if sessions is None or (sessions.redis is None) != (settings.redis is None):
            sessions = Sessions(settings, stays=stays)
        else:  # also with another Redis: only this router knows what it did while the old was down
            sessions.change(settings, stays=stays)
        if settings.redis is not None and sessions.redis != settings.redis:
            sessions.keep_in(RedisStore(settings.redis, pool.name, SessionLease.of(settings)))
            sessions.redis = settings.redis
        pool.sessions = sessions


async def sweep_sessions(fleet: "Fleet") -> None:
    """Check stores regularly: how many sessions they hold, whether they can be reached, and, in
    memory, what has expired there."""
    while True:
        for pool in fleet.pools:
            if pool.sessions is not None:
                try:
                    await pool.sessions.look()
                except Exception:  # so that this loop never ends
                    log.exception(
                        "pool %s: internal error while its sessions were checked", pool.name
                    )
        await asyncio.sleep(CHECK_INTERVAL_S)


async def stop_sessions(fleet: "Fleet") -> None:
    """Close the connections to stores."""
    for pool in fleet.pools:
        if pool.sessions is not None:
            await pool.sessions.stop()
