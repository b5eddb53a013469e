"""LMCache's chunks in a Redis: only the existence of keys is checked, except for one value's size.

Values are neither read nor written.
"""

from collections import Counter, deque
from collections.abc import Awaitable, Collection
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from router.kv.lmcache.names import Chunking, Kind, kind_of
from router.kv.lmcache.shared_store import LookupFailed

if TYPE_CHECKING:
    from router.settings.fleet import LmcacheSettings

#: Most keys per question, and most chunks of a prompt that are asked about: a million tokens.
MAX_KEYS, MAX_CHUNKS = 256, 4096
#: Chunks in the first question; few, as most prompts are not stored at all. Each further question
#: has about twice as many.
FIRST_CHUNKS = 16
#: Most tokens per question: naming their chunks takes a millisecond, which blocks all requests.
MAX_TOKENS = 16_384
MAX_CONNECTIONS = 8
#: Keys examined to see their kind, and most models remembered from requests.
MAX_EXAMINED_KEYS, MAX_MODELS = 1000, 64
#: The part of a chunk whose size is not the chunk's.
_METADATA = b"metadata"
#: Seconds that a check may take: no request waits for it.
TIMEOUT_S = 5.0


class RedisChunks:
    """Asks about chunks in batches, up to the first that is missing."""

    def __init__(
        self,
        settings: "LmcacheSettings",
        chunking: Chunking,
        bytes_per_token: int | None,
    ) -> None:
        """Set up the client, which connects when first used.

        `bytes_per_token` only if the operator set it.
        """
        from redis import asyncio as client  # noqa: PLC0415 - an extra
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.exceptions import RedisError  # noqa: PLC0415

        self._errors = (RedisError, OSError, TimeoutError)
        self._chunking = chunking
        self._bytes = bytes_per_token
        self._most = max(1, min(MAX_KEYS // chunking.gpus, MAX_TOKENS // chunking.tokens))
        self._password = settings.password
        pool = client.BlockingConnectionPool.from_url(
            str(settings.redis),
            password=self._password.get_secret_value() if self._password else None,
            max_connections=MAX_CONNECTIONS,
            timeout=TIMEOUT_S,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # callers have a deadline
        )
        self._redis = client.Redis.from_pool(pool)
        self._url = str(settings.redis)
        self._models: set[str] = set() if chunking.model is None else {chunking.model}
        """Models whose chunks belong to this fleet."""
        self._seen: Kind | None = None
        """A kind of chunk found at the last check, ours or not."""
        # Compute one name now, so that no prompt has to wait for what the first one needs: loading
        # libraries, or even asking another process.
        next(chunking.names(bytes(4 * chunking.tokens), ""), None)

    @property
    def chunk(self) -> int:
        """See `Lookup`."""
        return self._chunking.tokens

    def compare(self, model: str) -> str:
        """See `Lookup`."""
        seen = f", which holds chunks of {self._seen}" if self._seen else ""
        return (
            f"by the names that tiers.l2.lmcache says ({self._chunking.described(model)}): compare"
            f" them with the engines' own, and see that they write to {self._url}{seen}"
        )

    async def held(self, ids: bytes, model: str, salt: str) -> int:
        """See `Lookup`."""
        if self._chunking.model is None and len(self._models) < MAX_MODELS:
            self._models.add(model)
        names = islice(self._chunking.names(ids, salt), MAX_CHUNKS)
        chunks, number = 0, FIRST_CHUNKS
        while batch := list(islice(names, min(number, self._most))):
            leading = await self._leading(model, batch)
            chunks, number = chunks + leading, 2 * number
            if leading < len(batch):
                break
        return chunks * self._chunking.tokens

    async def wrote(self, ids: bytes, model: str, salt: str) -> bool | None:
        """See `Lookup`."""
        last = deque(self._chunking.names(ids, salt), 1)
        return bool(await self._leading(model, last)) if last else None

    async def _leading(self, model: str, names: Collection[str]) -> int:
        chunks = [self._chunking.keys(model, name) for name in names]
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for sets in chunks:
                    for keys in sets:
                        pipeline.exists(*keys)
                counts = iter(await pipeline.execute())
        except self._errors as error:
            raise LookupFailed(self._down(error)) from None
        whole = [[next(counts) == len(keys) for keys in sets] for sets in chunks]
        stored = [any(sets) for sets in whole]
        return stored.index(False) if False in stored else len(stored)

    async def check(self) -> str:
        """See `Lookup`: checks whether the keys of our models have the expected kind and size."""
        try:
            await cast("Awaitable[Any]", self._redis.ping())
            return await self._wrong()
        except self._errors as error:
            raise LookupFailed(self._down(error)) from None

    async def _wrong(self) -> str:
        """Return what is wrong with our models' chunks; those of other models do not matter."""
        others: Counter[Kind] = Counter()
        looked, expected, self._seen = 0, False, None
        async for key in self._redis.scan_iter(count=MAX_EXAMINED_KEYS):
            kind = kind_of(key)
            self._seen = self._seen or kind
            if kind is not None and kind.model in self._models:
                expected |= kind == self._chunking.kind(kind.model)
                if kind != self._chunking.kind(kind.model):
                    others[kind] += 1
                elif self._tells_size(key, kind.model):
                    return self._size(await self._redis.strlen(key))
            looked += 1
            if looked >= MAX_EXAMINED_KEYS:
                break
        return self._other(others.most_common(1)[0][0]) if others and not expected else ""

    def _tells_size(self, key: bytes, model: str) -> bool:
        """Whether a key's value shows the chunk size: not if there is more than one model."""
        first = self._chunking.prefix(model).encode()
        return len(self._models) == 1 and key.startswith(first) and not key.endswith(_METADATA)

    def _other(self, kind: Kind) -> str:
        return (
            f"{self._url} holds chunks of {kind}, and settings say"
            f" {self._chunking.kind(kind.model)}: see tiers.l2.lmcache.names, gpus and dtype"
        )

    def _size(self, stored: int) -> str:
        """Return what is wrong with the chunk size, by the size of one value and the bytes per
        token."""
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
        from router.runtime.redis import sentence  # noqa: PLC0415 - imports redis, an extra

        setting = "tiers.l2.lmcache.password"
        return sentence(self._url, error, setting, password=self._password is not None)

    async def close(self) -> None:
        """See `Lookup`."""
        await self._redis.aclose()
