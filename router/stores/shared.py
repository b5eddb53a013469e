"""What a shared store has of prompts that are about to be decided on: asked in time, or not at all.

The answer is kept until the decision is made. A store that is slow or away costs its deadline and
then, for a second, nothing: it is left alone meanwhile. One in which nothing is found is looked at,
and so is whether what workers computed came to lie there; what is wrong with it is said.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from time import monotonic

from router.stores.lookup import Lookup, StoreDown
from router.stores.written import Written
from strategies.base import Prompt

log = logging.getLogger("warmroute.tiers")

#: Prompts whose answers are kept, and bytes of their ids; questions under way, more are not asked.
KEPT, KEPT_BYTES, AT_ONCE = 4096, 64 << 20, 64
#: Seconds for which a store that failed is left alone.
PAUSE_S = 1.0
#: Questions in a row that find nothing, after which it is looked at what lies there.
SUSPECT = 50
#: Seconds between two such looks at least, and between two warnings.
LOOK_S, AGAIN_S = 10.0, 300.0


class SharedStore:
    """One store, as `kvaware` asks it."""

    def __init__(
        self, lookup: Lookup, deadline_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        """`deadline_s`: seconds that a decision waits for it."""
        self.lookup = lookup
        self.found = self.missed = self.slow = self.failed = 0
        """Questions that found something, or nothing; that were not in time; that failed."""
        self.down = ""
        """Why it cannot be asked, in a sentence; empty while it can."""
        self.wrong = ""
        """What is wrong with what lies there, in a sentence."""
        self._deadline_s = deadline_s
        self._clock = clock
        self._said: OrderedDict[int, tuple[Prompt, int, float]] = OrderedDict()
        """Of each prompt the tokens that lie there, and when that was said."""
        self.written = Written(lookup)
        """Whether what workers compute comes to lie there."""
        self._bytes = self._flying = self._in_vain = 0
        self._again = 0.0
        self._look_at = self._warn_at = -inf
        self._looking: asyncio.Task[None] | None = None

    async def ask(self, prompt: Prompt) -> None:
        """Ask about a prompt, for no longer than the deadline. Raises nothing."""
        if not prompt.ids or self._flying >= AT_ONCE or self._clock() < self._again:
            return
        self._flying += 1
        try:
            async with asyncio.timeout(self._deadline_s):
                tokens = await self.lookup.held(prompt.ids, prompt.model, prompt.salt)
        except TimeoutError:
            self.slow += 1
            self._fail(f"it does not answer within {self._deadline_s:g}s")
        except StoreDown as error:
            self.failed += 1
            self._fail(str(error))
        else:
            self._answered(prompt, tokens)
        finally:
            self._flying -= 1

    def held(self, prompt: Prompt) -> int:
        """Tokens from the first on that lie there, as far as it was told in time."""
        said = self._said.get(id(prompt))  # kept with it, so nobody else can have that number
        return said[1] if said is not None else 0

    def computed(self, prompt: Prompt, cached: int) -> None:
        """A worker has computed a prompt, but for its first `cached` tokens: if nothing of it lay
        there, some of it must come to."""
        said = self._said.get(id(prompt))
        if said is not None and not said[1]:
            self.written.computed(prompt, cached, said[2], self._clock())

    async def look(self) -> None:
        """See whether what lies there can be understood, and say so. Raises StoreDown."""
        now = self._look_at = self._clock()
        await self.written.look(now)
        self.wrong = await self.lookup.check() or self.written.lacking
        if self.wrong and now >= self._warn_at:
            self._warn_at = now + AGAIN_S
            log.warning("no prompt will be found on L2: %s", self.wrong)

    async def close(self) -> None:
        """Let go of connections."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self.lookup.close()

    def _answered(self, prompt: Prompt, tokens: int) -> None:
        if self.down:
            log.warning("the L2 store answers again")
        self.down = ""
        tokens = min(tokens, prompt.tokens)  # whatever a directory says
        self._keep(prompt, tokens)
        if tokens:
            self.found += 1
            self.written.found(prompt.model)
            self._in_vain, self.wrong = 0, self.written.lacking
            return
        self.missed += 1
        self._in_vain += 1
        now = self._clock()
        looks = self._looking is not None and not self._looking.done()
        doubtful = self._in_vain >= SUSPECT or self.written.due(now)
        if doubtful and not looks and now >= self._look_at + LOOK_S:
            self._in_vain, self._look_at = 0, now
            self._looking = asyncio.create_task(self._doubt())

    def _keep(self, prompt: Prompt, tokens: int) -> None:
        before = self._said.pop(id(prompt), None)
        self._bytes += _bytes(prompt) if before is None else 0
        self._said[id(prompt)] = (prompt, tokens, self._clock())
        while len(self._said) > KEPT or (self._bytes > KEPT_BYTES and len(self._said) > 1):
            _, (gone, *_) = self._said.popitem(last=False)
            self._bytes -= _bytes(gone)

    async def _doubt(self) -> None:
        try:
            await self.look()
        except StoreDown as error:
            self._fail(str(error))

    def _fail(self, why: str) -> None:
        self._again = self._clock() + PAUSE_S
        if not self.down:
            log.warning("the L2 store does not count until it answers: %s", why)
        self.down = why


def _bytes(prompt: Prompt) -> int:
    """What keeping it takes; its client chose how long its salt is."""
    return len(prompt.ids) + len(prompt.salt)
