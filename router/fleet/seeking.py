"""Asks workers whether they have got a model, when a request names one that none is known to have.

Adapters are loaded while workers run, and requests come at once. Clients may also send any number
of names that never existed: after one that no worker has, a pool's workers are not asked again for
a few seconds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from math import inf

from router.fleet.pool import Pool
from router.fleet.worker import DOUBT_S, Worker
from router.upstream.client import NoAnswer


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


class Seeking:
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
        asked = self._rounds.get(pool) or self._begin(pool)
        if asked is None:
            return
        waiter = asyncio.get_running_loop().create_future()
        asked.waiting[waiter] = model
        try:
            await waiter
        finally:
            del asked.waiting[waiter]

    def stop(self) -> None:
        """Ask no more."""
        for asked in self._rounds.values():
            if asked.task is not None:
                asked.task.cancel()

    def _begin(self, pool: Pool) -> _Round | None:
        now = asyncio.get_running_loop().time()
        workers = [one for one in pool.taking if one.ready and not one.fixed_models]
        if not workers or now - pool.sought_at < DOUBT_S:
            return None
        pool.sought_at = now
        self._rounds[pool] = asked = _Round()
        asked.task = asyncio.create_task(self._all(pool, workers, asked))
        return asked

    async def _all(self, pool: Pool, workers: Sequence[Worker], asked: _Round) -> None:
        try:
            await asyncio.gather(*(self._one(pool, worker, asked) for worker in workers))
        finally:
            del self._rounds[pool]
            asked.wake()

    async def _one(self, pool: Pool, worker: Worker, asked: _Round) -> None:
        with suppress(NoAnswer):
            await self._ask(worker)
            if asked.wake(worker):  # no client can invent such a name: the next may be asked for
                pool.sought_at = -inf
