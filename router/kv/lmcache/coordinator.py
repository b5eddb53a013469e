"""LMCache's coordinator, whose directory tells over HTTP where the chunks of a prompt are.

`POST /directory/lookup` with the whole token sequence returns, for each chunk and each GPU, where
it is stored (`lmcache/v1/mp_coordinator/schemas.py`). By its own account it is eventually
consistent.
"""

from array import array

import httpx
import msgspec

from router.kv.lmcache.names import Chunking
from router.kv.lmcache.shared_store import LookupFailed

#: Largest answer in bytes, and most tokens of a prompt that are sent.
MAX_ANSWER_BYTES, MAX_PROMPT_TOKENS = 16 << 20, 1 << 20
TIMEOUT_S = 5.0


class _Placement(msgspec.Struct):
    shared: bool = False
    """Whether all workers can load the chunk from there."""


class _Chunk(msgspec.Struct):
    placements: list[_Placement] = []
    token_ids: list[int] = []


class _LookupAnswer(msgspec.Struct):
    chunks: int = 0
    results: list[_Chunk] = []


class Coordinator:
    """Asks LMCache's coordinator, which takes whole prompts."""

    def __init__(self, url: str, chunking: Chunking) -> None:
        """`url` is the coordinator's address, without a path."""
        self._url = url
        self._chunking = chunking
        self._client = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False)
        self._wrong = ""

    @property
    def chunk(self) -> int:
        """See `Lookup`."""
        return self._chunking.tokens

    async def held(self, ids: bytes, model: str, salt: str) -> int:
        """See `Lookup`."""
        tokens = array("I", ids)[:MAX_PROMPT_TOKENS].tolist()
        if len(tokens) < self._chunking.tokens:
            return 0
        answer = await self._ask(tokens, model, salt)
        shared = _shared_chunks(answer)
        if not shared:
            return 0
        leading = shared.index(False) if False in shared else len(shared)
        return leading * self._chunk_size(len(tokens), answer)

    async def wrote(self, ids: bytes, model: str, salt: str) -> bool | None:
        """See `Lookup`."""
        tokens = array("I", ids)[:MAX_PROMPT_TOKENS].tolist()
        shared = _shared_chunks(await self._ask(tokens, model, salt))
        return shared[-1] if shared else None

    def compare(self, model: str) -> str:
        """See `Lookup`."""
        return (
            f"by what tiers.l2.lmcache says ({self._chunking.described(model)}): compare it with"
            f" the engines' own, and see that their servers report to {self._url}"
        )

    def _chunk_size(self, tokens: int, answer: _LookupAnswer) -> int:
        """Return the coordinator's chunk size, as stated or as evident; 0 if unknown."""
        stated = next((len(part.token_ids) for part in answer.results if part.token_ids), 0)
        expected = self._chunking.tokens
        if answer.chunks == tokens // expected and stated in {0, expected}:
            self._wrong = ""
            return expected
        size = stated or f"about {tokens // answer.chunks}"
        self._wrong = (
            f"{self._url} cuts prompts into chunks of {size} tokens; tiers.l2.lmcache.chunk is"
            f" {expected}"
        )
        return stated

    async def check(self) -> str:
        """See `Lookup`."""
        expected = self._chunking.tokens
        answer = await self._ask(list(range(expected)), self._chunking.model or "model", "")
        if answer.chunks != 1:
            return (
                f"{self._url} makes {answer.chunks} chunks of {expected} tokens, which is what"
                " tiers.l2.lmcache.chunk says that one has"
            )
        return self._wrong

    async def _ask(self, tokens: list[int], model: str, salt: str) -> _LookupAnswer:
        question = {
            "token_ids": tokens,
            "model_name": self._chunking.model or model,
            "world_size": self._chunking.gpus,
            "cache_salt": salt,
        }
        body = msgspec.json.encode(question)
        try:
            response = await self._client.post("/directory/lookup", content=body)
        except (TimeoutError, httpx.HTTPError, OSError) as error:
            raise LookupFailed(
                f"no coordinator answers at {self._url}: {type(error).__name__}"
            ) from None
        if response.status_code != 200 or len(response.content) > MAX_ANSWER_BYTES:
            raise LookupFailed(f"{self._url} answers {response.status_code} to /directory/lookup")
        try:
            return msgspec.json.decode(response.content, type=_LookupAnswer)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise LookupFailed(f"{self._url} answers something else than a directory") from None

    async def close(self) -> None:
        """See `Lookup`."""
        await self._client.aclose()


def _shared_chunks(answer: _LookupAnswer) -> list[bool]:
    """Return for each chunk whether the parts of all GPUs are where every worker can load them."""
    parts = len(answer.results) // answer.chunks if answer.chunks else 0
    shared = [any(place.shared for place in part.placements) for part in answer.results]
    starts = range(0, len(shared), parts) if parts else ()
    return [all(shared[start : start + parts]) for start in starts]
