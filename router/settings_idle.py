"""Valid settings that do not do what they are there for; `check`, the start and reloads warn."""

from collections.abc import Iterator

from router.settings import PoolSettings, Settings
from strategies import registry
from strategies.api import Strategy

#: Fields of `session` that also concern responses, whatever the strategy.
_FOR_ALL = {"redis"}


def idle(settings: Settings) -> Iterator[str]:
    """Say of each such setting what is missing. Every strategy must have been found."""
    pools = settings.all_pools()
    strategies = [(pool, _made(pool)) for pool in pools]
    keeping = [pool for pool, made in strategies if made and made.capabilities.keeps_sessions]
    asking = [pool for pool, made in strategies if made is None or made.kv is not None]
    for pool in pools:
        name = pool.strategy.name
        if pool not in keeping and any(worker.stateful for worker in pool.workers):
            yield (
                f"pool {pool.name}: `stateful` opens no sessions with the strategy"
                f" {name}: whoever asks for one is refused; write strategy: session"
            )
        if pool not in asking and any(worker.kv_events for worker in pool.workers):
            yield (
                f"pool {pool.name}: `kv_events` is heard by nobody with the strategy {name};"
                " write strategy: kvaware"
            )
    if settings.session.model_fields_set - _FOR_ALL and not keeping:
        yield "session: no pool has a strategy that keeps sessions, as session does"
    if not asking:
        for field in _for_memories(settings):
            yield f"{field}: no pool has a strategy that asks it, as kvaware does"


def _for_memories(settings: Settings) -> Iterator[str]:
    """Yield what is given for strategies that know what workers hold."""
    if settings.controller is not None:
        yield "controller"
    store = settings.tiers.l2.lmcache if settings.tiers.l2.enabled else None
    if store is not None:
        yield f"tiers.l2.lmcache.{'redis' if store.redis else 'coordinator'}"


def _made(pool: PoolSettings) -> Strategy | None:
    """Return the pool's strategy; None if it cannot be made, which others tell."""
    try:
        return registry.make(pool.strategy.name, pool.strategy.options)
    except Exception:  # noqa: BLE001 - an installed package may raise anything
        return None
