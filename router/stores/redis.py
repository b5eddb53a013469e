"""LMCache's chunks in a Redis: whether their keys are there. They are never read, nor written."""

import re
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, cast

from router.stores.chunks import ENGINES, SERVERS, Chunking
from router.stores.engine_chunks import EngineChunking
from router.stores.lookup import StoreDown

if TYPE_CHECKING:
    from router.settings_tiers import LmcacheSettings

#: Keys in one question, and chunks of a prompt that are asked about: a million tokens.
BATCH, MOST_CHUNKS = 256, 4096
#: Connections to Redis.
CONNECTIONS = 8
#: Keys that are looked at to see what kind they are.
SAMPLE = 1000
#: The part of a chunk that is not as large as the chunk.
_APART = b"metadata"
#: Seconds that looking may take: nobody waits for it.
PATIENCE_S = 5.0


class RedisChunks:
    """Asks in batches, and no further than the first batch with a gap."""

    def __init__(
        self,
        settings: "LmcacheSettings",
        chunking: Chunking | EngineChunking,
        bytes_per_token: int | None,
    ) -> None:
        """Connects when it is first asked. `bytes_per_token` where the operator said it."""
        from redis import asyncio as client  # noqa: PLC0415 - only for those who want it
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.exceptions import RedisError  # noqa: PLC0415

        self._errors = (RedisError, OSError, TimeoutError)
        self._chunking = chunking
        self._bytes = bytes_per_token
        password = settings.password
        pool = client.BlockingConnectionPool.from_url(
            str(settings.redis),
            password=password.get_secret_value() if password else None,
            max_connections=CONNECTIONS,
            timeout=PATIENCE_S,
            socket_timeout=PATIENCE_S,
            socket_connect_timeout=PATIENCE_S,
            retry=Retry(NoBackoff(), 0),  # whoever asks has a deadline
        )
        self._redis = client.Redis.from_pool(pool)
        self._url = settings.redis
        self._pattern = ENGINES if isinstance(chunking, EngineChunking) else SERVERS

    @property
    def chunk(self) -> int:
        """As the seam has it."""
        return self._chunking.tokens

    async def held(self, ids: bytes, model: str, salt: str) -> int:
        """As the seam has it."""
        names = self._chunking.names(model, ids, salt, MOST_CHUNKS)
        found = 0
        for start in range(0, len(names), BATCH):
            some = names[start : start + BATCH]
            here = await self._leading(some)
            found += here
            if here < len(some):
                break
        return found * self._chunking.tokens

    async def _leading(self, names: Sequence[str]) -> int:
        try:
            async with self._redis.pipeline(transaction=False) as line:
                for name in names:
                    line.exists(*self._chunking.keys(name))
                there = await line.execute()
        except self._errors as error:
            raise StoreDown(self._down(error)) from None
        return there.index(0) if 0 in there else len(there)

    async def check(self) -> str:
        """As the seam has it: whether the keys are of the kind, model and size that is expected."""
        try:
            await cast("Awaitable[Any]", self._redis.ping())
            return await self._wrong()
        except self._errors as error:
            raise StoreDown(self._down(error)) from None

    async def _wrong(self) -> str:
        kinds: Counter[str] = Counter()
        ours: bytes | None = None
        looked, expected = 0, False
        async for key in self._redis.scan_iter(count=SAMPLE):
            looked += 1
            kinds[_kind(key)] += 1
            if ours is None and self._is_ours(key):
                expected = True
                ours = None if key.endswith(_APART) else key
            if looked >= SAMPLE:
                break
        if ours is not None:
            return self._size(await self._redis.strlen(ours))
        del kinds[""]
        return self._other(kinds.most_common(1)[0][0]) if kinds and not expected else ""

    def _is_ours(self, key: bytes) -> bool:
        """A chunk of ours, or a part of one."""
        found = self._pattern.fullmatch(key)
        if found is None:
            return False
        chunking, model = self._chunking, found["model"].decode(errors="replace")
        if isinstance(chunking, EngineChunking) and found["dtype"] != chunking.dtype.encode():
            return False
        return key.startswith(chunking.prefix(model).encode())

    def _other(self, kind: str) -> str:
        chunking = self._chunking
        model, dtype = chunking.model or "<model>", ""
        if isinstance(chunking, EngineChunking):
            dtype = f", {chunking.dtype}, named in the engine"
        else:
            dtype = ", named by the server"
        return (
            f"{self._url} holds chunks of {kind}, and settings say {model} with {chunking.gpus}"
            f" GPUs{dtype}: see tiers.l2.lmcache.names, model, gpus and dtype"
        )

    def _size(self, stored: int) -> str:
        """Tell from one value how many tokens a chunk has, if it is known what a token takes."""
        if not self._bytes or not stored:
            return ""
        tokens = stored * self._chunking.gpus / self._bytes
        if tokens == self._chunking.tokens:
            return ""
        return (
            f"{self._url} holds chunks of {stored} bytes on each of {self._chunking.gpus} GPUs,"
            f" which are {tokens:g} tokens at {self._bytes} bytes; tiers.l2.lmcache.chunk is"
            f" {self._chunking.tokens}"
        )

    def _down(self, error: Exception) -> str:
        return f"no Redis answers at {self._url}: {type(error).__name__}"

    async def close(self) -> None:
        """As the seam has it."""
        await self._redis.aclose()


def _kind(key: bytes) -> str:
    """Whose key it is, in words for people; empty where it is none of LMCache's."""
    found = SERVERS.fullmatch(key)
    if found is not None:
        return (
            f"{_told(found['model'])} with {int(found['rank'][:2], 16)} GPUs, named by the server"
        )
    found = ENGINES.fullmatch(key)
    if found is None:
        return ""
    model, gpus, dtype = (_told(found[name]) for name in ("model", "gpus", "dtype"))
    return f"{model} with {gpus} GPUs, {dtype}, named in the engine"


def _told(name: bytes) -> str:
    return re.sub(r"[^ -~]", "?", name.decode(errors="replace"))[:100]
