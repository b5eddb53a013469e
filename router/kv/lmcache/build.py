"""Creates the lookup of a shared store from the settings, and checks it before serving."""

from router.fleet.build import CannotBuild
from router.kv.lmcache.lookup import Lookup, LookupFailed
from router.kv.lmcache.names import chunking, naming
from router.kv.lmcache.shared_store import SharedStore
from router.settings.fleet import StrategySettings, TiersSettings
from router.settings.model import Settings
from strategies.registry import make


def lookup_of(tiers: TiersSettings) -> Lookup | None:
    """Return the lookup of the store; None if there is no store to ask, or L2 is disabled.

    Raises CannotBuild if a required package is not installed.
    """
    told = tiers.l2.lmcache
    if told is None or not tiers.l2.enabled:
        return None
    if told.coordinator is not None:
        from router.kv.lmcache.coordinator import Coordinator  # noqa: PLC0415 - httpx takes memory

        return Coordinator(told.coordinator, chunking(told))
    size = tiers.bytes_per_token if "bytes_per_token" in tiers.model_fields_set else None
    try:
        import blake3  # noqa: F401, PLC0415

        from router.kv.lmcache.redis import RedisChunks  # noqa: PLC0415

        return RedisChunks(told, naming(told), size)
    except ImportError as error:
        raise CannotBuild(
            f"tiers.l2.lmcache.redis: {error.name} is not installed: pip install"
            " 'warmroute[lmcache]'"
        ) from None


async def refuse_lacking_stores(settings: Settings) -> None:
    """Raise CannotBuild if the lookup of a store cannot be created; no store is asked."""
    if any(asks(pool.strategy) for pool in settings.all_pools()):
        lookup = lookup_of(settings.tiers)
        if lookup is not None:
            await lookup.close()


async def refuse_lost_stores(settings: Settings) -> None:
    """Raise CannotBuild, with a sentence, if a store cannot be asked at startup.

    An outage later is tolerated: the store does not count meanwhile. A store that no strategy asks
    is no reason to fail (`settings_idle` tells of it).
    """
    told = settings.tiers.l2.lmcache
    if told is None or not settings.tiers.l2.enabled:
        return
    if not any(asks(pool.strategy) for pool in settings.all_pools()):
        return
    field = f"tiers.l2.lmcache.{'redis' if told.redis else 'coordinator'}"
    lookup = lookup_of(settings.tiers)
    assert lookup is not None  # noqa: S101 - checked above
    store = SharedStore(lookup, 0.0)
    try:
        await store.look()
    except LookupFailed as error:
        raise CannotBuild(f"{field}: {error}") from None
    finally:
        await store.close()


def asks(strategy: StrategySettings) -> bool:
    """Whether the strategy, or the one below it, has a memory, which a store complements."""
    return make(strategy.name, strategy.options).kv is not None
