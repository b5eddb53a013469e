"""Which pools have sessions, and that they keep them when the settings change."""

from typing import TYPE_CHECKING

from router.sessions.redis import RedisStore
from router.sessions.sessions import Sessions

if TYPE_CHECKING:
    from router.fleet import Pool
    from router.settings_session import SessionSettings


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
