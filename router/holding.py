"""Holds requests until a worker is about to be free: asyncio around `strategies/latebinding.py`.

One request is released at a time: it is decided again and booked before the next is considered, so
that each sees the bookings before it. Held requests are checked whenever a prefill or an answer has
ended somewhere, and every `TICK_S`, because predicted work also passes with time, and workers join.
None is released while no worker has room for it: a held request keeps the place it came with
(`admission.py`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from router.admission import Wait
from router.errors import DoorError
from router.pool import Pool
from router.worker import Worker
from strategies.base import Decision, Prompt
from strategies.held import Held
from strategies.latebinding import LateBinding

log = logging.getLogger("warmroute.fleet")

#: Seconds between two checks of the held requests.
TICK_S = 0.05
#: Seconds until a check after another process of the router has reported an end. That process
#: checks its own held requests at once, and it may report many ends a second.
SOON_S = 0.005

#: The result says whether all were let go because the fleet has changed.
Waiter = asyncio.Future[bool]
#: Ranks the workers of a pool that have room for a prompt now; None if none has.
Rank = Callable[[Pool, Prompt, Sequence[Worker]], Decision | None]


class Holding:
    """Held requests, by pool; bounded in number by `limit` and in time by each one's deadline."""

    def __init__(self, rank: Rank) -> None:
        self.held = 0
        """Number of requests held so far."""
        self.limit = 0
        """How many may be held at once; further requests are sent without being held."""
        self._rank = rank
        self._pools: dict[Pool, LateBinding[Waiter]] = {}
        self._models: Counter[tuple[Pool, str]] = Counter()
        self._looking: asyncio.TimerHandle | asyncio.Handle | None = None
        self._soon = False
        """The next check is already due as soon as possible."""

    def __len__(self) -> int:
        return sum(len(binding) for binding in self._pools.values())

    def count(self, pool: Pool, model: str) -> int:
        """Return how many requests for that model are held in that pool."""
        return self._models[pool, model] if self._models else 0

    def takes(self, prompt: Prompt, decision: Decision) -> bool:
        """Whether to hold a request: it would only queue at its worker, and `limit` allows it."""
        return LateBinding.must_hold(prompt, decision, monotonic()) and len(self) < self.limit

    async def turn(
        self, pool: Pool, prompt: Prompt, decision: Decision, tenant: str, wait: Wait
    ) -> bool:
        """Wait until a request should be decided again, at the latest when its wait is over.

        Returns False if it may then be held again: new settings have let all go. May be cancelled
        at any time.
        """
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        binding = self._pools.get(pool)
        if binding is None:
            binding = self._pools[pool] = LateBinding(pool.waits, pool.crowd)
        now = monotonic()
        held: Held[Waiter] = binding.enter(waiter, prompt, decision, now, tenant, since=wait.held)
        if wait.held is None:
            wait.held = now
            self.held += 1
        late = loop.call_at(wait.late, _wake, held)
        self._models[pool, prompt.model] += 1
        if self._looking is None:
            self._looking = loop.call_later(TICK_S, self._look)
        try:
            return not await waiter
        finally:
            late.cancel()
            binding.leave(held, monotonic())
            self._models[pool, prompt.model] -= 1
            if not self._models[pool, prompt.model]:
                del self._models[pool, prompt.model]
            if not len(binding) and self._pools.get(pool) is binding:
                del self._pools[pool]
            self.freed()  # the next check runs once this request is booked, or has gone

    def freed(self) -> None:
        """Check soon: a prefill or an answer has ended, or a released request is to be booked."""
        if self._pools:
            if self._looking is not None:
                self._looking.cancel()
            self._looking = asyncio.get_running_loop().call_soon(self._look)
            self._soon = True

    def freed_elsewhere(self) -> None:
        """Check soon: a prefill or an answer sent by another process has ended."""
        if self._pools and not self._soon:
            if self._looking is not None:
                self._looking.cancel()
            self._looking = asyncio.get_running_loop().call_later(SOON_S, self._look)
            self._soon = True

    def let_go(self) -> None:
        """Release all requests to be decided again: the fleet has changed.

        All leave at once, so that no pool takes back what another has promised by then of a worker
        that was its own.
        """
        now = monotonic()
        for binding in self._pools.values():
            for held in binding.let_go(now):
                _wake(held, let_go=True)

    def _look(self) -> None:
        self._soon = False
        now, loop = monotonic(), asyncio.get_running_loop()
        for pool, binding in list(self._pools.items()):
            loads = [worker.load for worker in pool.taking if worker.ready]
            try:
                released = binding.release(partial(self._ranked, pool), now, loads)
            except Exception:
                log.exception("pool %s: its strategy raised an error", pool.name)
                for held in binding:
                    _wake(held)
            else:
                if released is not None:
                    _wake(released[0])
                gone = self._gone(pool)
                for held in binding if gone else ():
                    if held.prompt.model in gone:
                        _wake(held)  # no worker is left for it; the caller reports that
        self._looking = loop.call_later(TICK_S, self._look) if self._pools else None

    def _gone(self, pool: Pool) -> set[str]:
        """Return the models of held requests for which no worker is left.

        (Workers may have thousands of models, so none goes through those of a worker.)
        """
        return {
            model
            for where, model in self._models
            if where is pool and not any(pool.serves(worker, model) for worker in pool.taking)
        }

    def _ranked(self, pool: Pool, prompt: Prompt) -> Decision | None:
        try:
            workers: Sequence[Worker] = pool.eligible(prompt.model, prompt.barred)
        except DoorError:  # no worker is left; `_look` wakes the request
            return None
        return self._rank(pool, prompt, workers)


def _wake(held: Held[Waiter], *, let_go: bool = False) -> None:
    if not held.item.done():
        held.item.set_result(let_go)
