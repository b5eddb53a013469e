"""LMCache's chunks in a real Redis: found, bounded, and loud where they cannot be understood."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from redis import Redis

from router.settings_tiers import LmcacheSettings
from router.stores.lookup import StoreDown
from router.stores.redis import BATCH, RedisChunks
from tests.sessions.redis_server import RedisServer
from tests.stores.conftest import Write, ids

CHUNK = 64
PROMPT = list(range(1000, 1800))


def asked(
    redis: RedisServer,
    work: Callable[[RedisChunks], Coroutine[Any, Any, Any]],
    bytes_per_token: int | None = None,
    **more: Any,
) -> Any:
    """Run something with the adapter, and let go of it."""
    settings = LmcacheSettings(redis=redis.url, **{"chunk": CHUNK, **more})

    async def run() -> Any:
        store = RedisChunks(settings, settings.naming, bytes_per_token)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def held(redis: RedisServer, tokens: list[int], salt: str = "", **more: Any) -> int:
    """Tokens that are found."""
    return int(asked(redis, lambda store: store.held(ids(*tokens), "toy", salt), **more))


def check(redis: RedisServer, **more: Any) -> str:
    """What is wrong."""
    return str(asked(redis, lambda store: store.check(), **more))


def test_what_lmcache_wrote_is_found(redis: RedisServer, write: Write) -> None:
    """Whole chunks from the first on; what has a salt is found by it alone."""
    keys = write(PROMPT, CHUNK)
    assert held(redis, PROMPT) == 768
    assert held(redis, PROMPT[:200]) == 192
    assert held(redis, [1, *PROMPT]) == 0
    assert held(redis, PROMPT, salt="tenant") == 0
    write(PROMPT[:130], CHUNK, salt="tenant")
    assert held(redis, PROMPT, salt="tenant") == 128
    assert held(redis, PROMPT, salt="other") == 0
    for odd in ("a@b", "a/b", "a\\b", "a\0b", "\ud800", "s" * 129):
        assert held(redis, PROMPT, salt=odd) == 0
    with Redis(port=redis.port) as client:
        client.delete(keys[3])
    assert held(redis, PROMPT) == 192


def test_long_prompts_are_asked_about_in_batches(redis: RedisServer, write: Write) -> None:
    """No further than the first that has a gap."""
    prompt = list(range(16 * (2 * BATCH + 10)))
    keys = write(prompt, 16)
    assert held(redis, prompt, chunk=16) == len(prompt)
    with Redis(port=redis.port) as client:
        client.delete(keys[BATCH - 1])
        client.config_resetstat()
        assert held(redis, prompt, chunk=16) == 16 * (BATCH - 1)
        assert client.info("commandstats")["cmdstat_exists"]["calls"] == BATCH


def test_other_models_and_gpus_are_not_ours(redis: RedisServer, write: Write) -> None:
    """Nor are they taken for nothing: that is said."""
    write(PROMPT, CHUNK, model="other", rank="08000800")
    assert held(redis, PROMPT) == 0
    said = check(redis, model="toy")
    assert "holds chunks of other with 8 GPUs, named by the server, and settings say toy" in said
    assert "with 1 GPUs, named by the server" in said
    assert held(redis, PROMPT, model="other", gpus=8) == 768
    assert check(redis, model="other", gpus=8) == ""


def test_chunks_of_another_size_are_said(redis: RedisServer, write: Write) -> None:
    """Where it is known what a token takes."""
    write(PROMPT, 128, size=128 * 512)
    assert held(redis, PROMPT) == 0
    said = check(redis, bytes_per_token=512)
    assert "which are 128 tokens at 512 bytes; tiers.l2.lmcache.chunk is 64" in said
    assert check(redis, bytes_per_token=512, chunk=128) == ""
    assert check(redis) == ""


def test_another_version_is_said(redis: RedisServer) -> None:
    """LMCache in the engine's own process names chunks by the engine's hash."""
    with Redis(port=redis.port) as client:
        client.set("toy@1@0@1f9ab@bfloat16", b"kv")
    assert "toy with 1 GPUs, bfloat16, named in the engine, and settings say" in check(redis)


def test_a_store_that_is_empty_or_anothers_is_fine(redis: RedisServer) -> None:
    """What is there has nothing to do with LMCache, or nothing is there yet."""
    assert check(redis) == ""
    with Redis(port=redis.port) as client:
        client.set("warmroute:{pool}:used", b"1")
    assert check(redis) == ""


def test_a_redis_that_is_gone_is_down(redis: RedisServer) -> None:
    """With a sentence."""
    redis.kill()
    for work in (lambda s: s.check(), lambda s: s.held(ids(*PROMPT), "toy", "")):
        with pytest.raises(StoreDown, match=f"no Redis answers at {redis.url}"):
            asked(redis, work)
