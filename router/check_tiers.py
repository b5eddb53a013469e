"""Part of `warmroute check --live`: each worker computes the same small prompt twice.

This reveals mistakes in its flags: cached tokens that are not reported, KV events of the GPU or of
L1 that do not arrive, and chunks that do not appear on L2 under the names that follow from the
settings. If a separate controller listens to the events, only that one knows about them.
"""

import asyncio
from array import array
from collections.abc import Callable
from random import Random

from controller.kv_memory import KvMemory
from router.app import Door
from router.asking import computed, model_of
from router.inquiry import Inquiries, NoAnswer
from router.kv_sources import FLAG
from router.memory_status import held_by_tier
from router.pool import Pool
from router.settings_tiers import TiersSettings
from router.stores.lookup import Lookup, StoreDown
from router.stores.shared import SharedStore
from router.usage import Usage
from router.worker import Worker

#: Seconds to wait for an answer, for KV events, and for chunks on L2.
PATIENCE_S, EVENTS_S, STORED_S = 30.0, 2.0, 5.0
#: Tokens of the prompt beyond one chunk; and the longest chunk, in tokens, that is looked for.
TOKENS, LONGEST = 192, 4096
#: Seconds between two checks while waiting.
LOOK_S = 0.05
#: Token ids that every vocabulary has and that are special tokens in none.
_IDS = range(100, 250)


async def tier_mistakes(door: Door, tiers: TiersSettings) -> list[str]:
    """Ask every ready worker of every pool that follows KV events; return what is wrong."""
    memories = door.memories
    followed: list[tuple[Pool, KvMemory | None]] = [
        *memories.pools(),
        *((pool, None) for pool, _ in memories.remotes()),
    ]
    return [
        f"pool {pool.name}: worker {worker.name}: {line}"
        for pool, memory in followed
        for worker in pool.workers
        if worker.ready and worker.models
        for line in await _mistakes(memory, worker, memories.stores.get(pool.name), tiers)
    ]


async def _mistakes(
    memory: KvMemory | None, worker: Worker, store: SharedStore | None, tiers: TiersSettings
) -> list[str]:
    """Return what is wrong with one worker, in sentences."""
    chunk = store.lookup.chunk if store is not None else 0
    length = TOKENS + (chunk if chunk <= LONGEST else 0)
    ids, asking = Random().choices(_IDS, k=length), Inquiries()
    before = memory.heard(worker.name) if memory is not None else 0
    try:
        first, again = [await computed(worker, ids, asking, patience=PATIENCE_S) for _ in range(2)]
    except NoAnswer as error:
        return [f"tiers were not looked at: {error}"]
    lines = [*_usage_mistakes(first, again)]
    if memory is not None and memory.sources.get(worker.name):
        lines += await _event_mistakes(memory, worker, before, l1=tiers.l1_told)
    if store is not None and 0 < chunk <= LONGEST:
        model = model_of(worker)
        lines += await _store_mistakes(store.lookup, model, array("I", ids).tobytes())
    return lines


def _usage_mistakes(first: Usage, again: Usage) -> list[str]:
    if first.cached is None and again.cached is None:
        return [
            "its answers do not tell cached tokens: start vLLM with --enable-prompt-tokens-details"
        ]
    if not again.cached:
        return [
            "it computes again what it has just computed: start vLLM with --enable-prefix-caching"
        ]
    return []


async def _event_mistakes(memory: KvMemory, worker: Worker, before: int, *, l1: bool) -> list[str]:
    """Check that it has sent events since, and, with `l1`, that some were ever about L1."""
    if not await _comes(lambda: memory.heard(worker.name) > before):
        return [f"it computed a prompt and announced nothing of it: start vLLM with {FLAG}"]
    if l1 and not await _comes(lambda: bool(held_by_tier(memory, worker).get("l1"))):
        return [
            "it announces no block on L1, which tiers say that it has: set LMCACHE_ENABLE_KV_EVENTS"
            " to True beside LMCache; where there is no L1, give tiers.l1.enabled: false"
        ]
    return []


async def _comes(true: Callable[[], bool]) -> bool:
    """Wait up to `EVENTS_S` for a condition; return whether it came true."""
    for _ in range(int(EVENTS_S / LOOK_S)):
        if true():
            return True
        await asyncio.sleep(LOOK_S)
    return False


async def _store_mistakes(lookup: Lookup, model: str, ids: bytes) -> list[str]:
    """Look for the prompt on L2 for up to `STORED_S` seconds."""
    try:
        for _ in range(int(STORED_S / LOOK_S)):
            if await lookup.held(ids, model, ""):
                return []
            await asyncio.sleep(LOOK_S)
    except StoreDown as error:
        return [f"L2: {error}"]
    return [f"what it computed is not on L2 {lookup.compare(model)}"]
