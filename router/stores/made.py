"""From the settings to what asks a store, and the look at it before anything is served."""

from router.rebuild import CannotBuild
from router.settings import Settings, TiersSettings
from router.stores.lookup import Lookup, StoreDown
from router.stores.shared import SharedStore


def lookup_of(tiers: TiersSettings) -> Lookup | None:
    """Make what asks the store; None where there is none to ask, or it does not count.

    Raises CannotBuild where what it needs is not installed.
    """
    told = tiers.l2.lmcache
    if told is None or not tiers.l2.enabled:
        return None
    if told.coordinator is not None:
        from router.stores.coordinator import Coordinator  # noqa: PLC0415 - httpx takes memory

        return Coordinator(told.coordinator, told.chunking)
    size = tiers.bytes_per_token if "bytes_per_token" in tiers.model_fields_set else None
    try:
        import blake3  # noqa: F401, PLC0415

        from router.stores.redis import RedisChunks  # noqa: PLC0415

        return RedisChunks(told, told.naming, size)
    except ImportError as error:
        raise CannotBuild(
            f"tiers.l2.lmcache.redis: {error.name} is not installed: pip install"
            " 'warmroute[lmcache]'"
        ) from None


async def refuse_lost_stores(settings: Settings) -> None:
    """Raises CannotBuild, with a sentence, where a store cannot be asked at the start.

    Later it may go and come: then it does not count meanwhile.
    """
    lookup = lookup_of(settings.tiers)
    if lookup is None:
        return
    store = SharedStore(lookup, 0.0)
    try:
        await store.look()
    except StoreDown as error:
        raise CannotBuild(f"tiers.l2.lmcache: {error}") from None
    finally:
        await store.close()
