"""Where requests are held until a worker is about to be free: `strategies/latebinding.py`, awaited.

One is let go at a time: it decides anew and is booked before the next is looked at, so each sees
those before it. Looked at are those held whenever a prefill or an answer has ended somewhere, and
every `TICK_S`, for time alone lets predicted work pass, and workers join. Nobody is let go while
no worker has room for it: whoever is held keeps the place it came with (`admission.py`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from router.errors import DoorError
from router.pool import Pool
from router.worker import Worker
from strategies.base import Decision, Prompt
from strategies.latebinding import Held, LateBinding

log = logging.getLogger("warmroute.fleet")

#: Seconds between two looks at those held.
TICK_S = 0.05
#: Seconds until a look at them when another process of the router has told of an end: it looks at
#: those that it holds itself at once, and tells of many ends a second.
SOON_S = 0.005

Waiter = asyncio.Future[None]
#: Ranks those of a pool's workers that have room for a prompt, as they are now; None without any.
Rank = Callable[[Pool, Prompt, Sequence[Worker]], Decision | None]


class Holding:
    """Who is held, pool by pool; bounded in number by the caller and in time by the settings."""

    def __init__(self, rank: Rank) -> None:
        self.held = 0
        """Requests that were held so far."""
        self.limit = 0
        """How many may be held at once; more are sent on."""
        self._rank = rank
        self._pools: dict[Pool, LateBinding[Waiter]] = {}
        self._models: Counter[tuple[Pool, str]] = Counter()
        self._looking: asyncio.TimerHandle | asyncio.Handle | None = None
        self._soon = False
        """The next look is as near as it can be."""

    def __len__(self) -> int:
        return sum(len(binding) for binding in self._pools.values())

    def count(self, pool: Pool, model: str) -> int:
        """How many are held there that ask for that model."""
        return self._models[pool, model] if self._models else 0

    def takes(self, decision: Decision) -> bool:
        """Whether the request should wait here: it would only wait elsewhere, and there is room."""
        return LateBinding.must_hold(decision) and len(self) < self.limit

    async def turn(
        self, pool: Pool, prompt: Prompt, decision: Decision, tenant: str, until: float
    ) -> None:
        """Wait until it should be decided anew, at the latest `until`, by the loop's clock.

        Whoever waits may be cancelled at any time.
        """
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        binding = self._pools.get(pool)
        if binding is None:
            binding = self._pools[pool] = LateBinding()
        held: Held[Waiter] = binding.enter(waiter, prompt, decision, monotonic(), tenant)
        late = loop.call_at(until, _wake, held)
        self.held += 1
        self._models[pool, prompt.model] += 1
        if self._looking is None:
            self._looking = loop.call_later(TICK_S, self._look)
        try:
            await waiter
        finally:
            late.cancel()
            binding.leave(held, monotonic())
            self._models[pool, prompt.model] -= 1
            if not self._models[pool, prompt.model]:
                del self._models[pool, prompt.model]
            if not len(binding) and self._pools.get(pool) is binding:
                del self._pools[pool]
            self.freed()  # the next look comes once this one is booked, or has gone

    def freed(self) -> None:
        """A prefill or an answer has ended, or one that was let go is about to be booked."""
        if self._pools:
            if self._looking is not None:
                self._looking.cancel()
            self._looking = asyncio.get_running_loop().call_soon(self._look)
            self._soon = True

    def freed_elsewhere(self) -> None:
        """A prefill or an answer has ended that another process had sent."""
        if self._pools and not self._soon:
            if self._looking is not None:
                self._looking.cancel()
            self._looking = asyncio.get_running_loop().call_later(SOON_S, self._look)
            self._soon = True

    def let_go(self) -> None:
        """Everybody looks anew: the fleet is another one."""
        for binding in self._pools.values():
            _wake_all(binding)

    def _look(self) -> None:
        self._soon = False
        now, loop = monotonic(), asyncio.get_running_loop()
        for pool, binding in list(self._pools.items()):
            loads = [worker.load for worker in pool.workers if worker.ready]
            try:
                released = binding.release(partial(self._ranked, pool), now, loads)
            except Exception:
                log.exception("pool %s: its strategy raised an error", pool.name)
                _wake_all(binding)
            else:
                if released is not None:
                    _wake(released[0])
                able = {model for worker in pool.taking if worker.ready for model in worker.models}
                for held in binding:
                    if not able or (held.prompt.model and held.prompt.model not in able):
                        _wake(held)  # it is told that nobody is left
        self._looking = loop.call_later(TICK_S, self._look) if self._pools else None

    def _ranked(self, pool: Pool, prompt: Prompt) -> Decision | None:
        try:
            workers: Sequence[Worker] = pool.eligible(prompt.model)
        except DoorError:  # nobody is there: it is told so
            return None
        return self._rank(pool, prompt, workers)


def _wake(held: Held[Waiter]) -> None:
    if not held.item.done():
        held.item.set_result(None)


def _wake_all(binding: LateBinding[Waiter]) -> None:
    for held in binding:
        _wake(held)
