"""What a worker tells of the endpoints and media that it serves.

Asks workers whether they have got a model, when a request names one that none is known to have.

Adapters are loaded while workers run, and requests come at once. Clients may also send any number
of names that never existed: after one that no worker has, a pool's workers are not asked again for
a few seconds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from math import inf

import msgspec

from router.api.endpoints import ENDPOINTS, Prompted
from router.fleet.inquiries import InquiryAnswer, NoAnswer
from router.fleet.pool import Pool
from router.fleet.worker import DOUBT_S, Worker

#: FastAPI's description of all paths. vLLM adds only those of the model's tasks (`build_app` in
#: vllm/entrypoints/openai/api_server.py); SGLang adds all.
PATHS = "/openapi.json"
#: SGLang's description of its model, and the older path of that (sglang/srt/entrypoints).
MODEL = ("/model_info", "/get_model_info")
#: Most lists and objects in such a description that is read; vLLM's has some ten thousand.
MAX_SPEC_VALUES = 1 << 17

#: What a model that generates does not do, and what one that does not generate cannot.
_EMBEDS = frozenset(
    path
    for path, endpoint in ENDPOINTS.items()
    if endpoint.prompted is Prompted.INPUT and not endpoint.answers
)
_GENERATES = frozenset(
    path for path, endpoint in ENDPOINTS.items() if endpoint.answers and not endpoint.form
)


class _Api(msgspec.Struct):
    paths: dict[str, msgspec.Raw]


class _Model(msgspec.Struct):
    is_generation: bool | None = None
    has_image_understanding: bool | None = None
    has_audio_understanding: bool | None = None


_api = msgspec.json.Decoder(_Api)
_model = msgspec.json.Decoder(_Model)


async def lacking(ask: Callable[[str], Awaitable[InquiryAnswer]]) -> frozenset[str]:
    """Return the paths of endpoints, and kinds of media, that a worker says it does not serve.

    `ask` fetches a document from it. Raises what that raises.
    """
    paths = _paths(await ask(PATHS))
    missing = [path for path in ENDPOINTS if not _serves(paths, path)]
    if len(missing) == len(ENDPOINTS):  # it tells of none, so there may be any
        return frozenset()
    described = next((path for path in MODEL if path in paths), None)
    return frozenset(missing) | (_unable(await ask(described)) if described else frozenset())


def _paths(answer: InquiryAnswer) -> Collection[str]:
    body = answer.body
    if not answer.good or body.count(b"{") + body.count(b"[") > MAX_SPEC_VALUES:
        return ()
    try:
        return _api.decode(body).paths
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()


def _serves(paths: Collection[str], path: str) -> bool:
    """Whether a path is among these, perhaps as one of all below a prefix (`/v1/{rest}`)."""
    return path in paths or any(
        path.startswith(served.partition("{")[0]) for served in paths if "{" in served
    )


def _unable(answer: InquiryAnswer) -> frozenset[str]:
    """Return what SGLang's description of the model excludes."""
    try:
        model = _model.decode(answer.body) if answer.good else _Model()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        model = _Model()
    excluded = set[str]()
    if model.is_generation is not None:
        excluded |= _EMBEDS if model.is_generation else _GENERATES
    if model.has_image_understanding is False:
        excluded.add("images")
    if model.has_audio_understanding is False:
        excluded.add("audio")
    return frozenset(excluded)


class _Round:
    """One time that the workers of a pool are asked."""

    def __init__(self) -> None:
        self.waiting: dict[asyncio.Future[None], str] = {}
        """Requests that wait for a model, each until a worker has it, or all have answered."""
        self.task: asyncio.Task[None] | None = None

    def wake(self, worker: Worker | None = None) -> bool:
        """Wake the requests for a model that the worker has; without a worker, all.

        Returns whether there were any.
        """
        waiters = [
            waiter
            for waiter, model in self.waiting.items()
            if not waiter.done() and (worker is None or model in worker.models)
        ]
        for waiter in waiters:
            waiter.set_result(None)
        return bool(waiters)


class ModelSearch:
    """Asks the workers of pools for their models, out of turn."""

    def __init__(self, ask: Callable[[Worker], Awaitable[None]]) -> None:
        """`ask` reads the models of a worker, for a bounded time; it may raise NoAnswer."""
        self._ask = ask
        self._rounds: dict[Pool, _Round] = {}
        """Those that are under way."""

    async def seek(self, pool: Pool, model: str) -> None:
        """Ask the pool's workers for their models, unless they were asked a moment ago.

        Returns when one has the model, or all have answered.
        """
        search = self._rounds.get(pool) or self._begin(pool)
        if search is None:
            return
        waiter = asyncio.get_running_loop().create_future()
        search.waiting[waiter] = model
        try:
            await waiter
        finally:
            del search.waiting[waiter]

    def stop(self) -> None:
        """Ask no more."""
        for search in self._rounds.values():
            if search.task is not None:
                search.task.cancel()

    def _begin(self, pool: Pool) -> _Round | None:
        now = asyncio.get_running_loop().time()
        workers = [worker for worker in pool.taking if worker.ready and not worker.fixed_models]
        if not workers or now - pool.sought_at < DOUBT_S:
            return None
        pool.sought_at = now
        self._rounds[pool] = search = _Round()
        search.task = asyncio.create_task(self._all(pool, workers, search))
        return search

    async def _all(self, pool: Pool, workers: Sequence[Worker], search: _Round) -> None:
        try:
            await asyncio.gather(*(self._one(pool, worker, search) for worker in workers))
        finally:
            del self._rounds[pool]
            search.wake()

    async def _one(self, pool: Pool, worker: Worker, search: _Round) -> None:
        with suppress(NoAnswer):
            await self._ask(worker)
            if search.wake(worker):  # no client can invent such a name: the next may be asked for
                pool.sought_at = -inf
