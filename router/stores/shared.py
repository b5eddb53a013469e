"""What a shared store has of prompts that are about to be decided on: asked in time, or not at all.

The answer is kept until the decision is made. A store that is slow or away costs its deadline and
then, for a second, nothing: it is left alone meanwhile. One in which nothing is ever found is
looked at, and what is wrong with it is said.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic

from router.stores.lookup import Lookup, StoreDown
from strategies.base import Prompt

log = logging.getLogger("warmroute.tiers")

#: Prompts whose answers are kept, and bytes of their ids; questions under way, more are not asked.
KEPT, KEPT_BYTES, AT_ONCE = 4096, 64 << 20, 64
#: Seconds for which a store that failed is left alone.
PAUSE_S = 1.0
#: Questions in a row that find nothing, after which it is looked at what lies there.
SUSPECT = 50
#: Prompts that were not there of late, and seconds in which their chunks must have come, as workers
#: write what they compute.
REMEMBERED, WRITTEN_S = 8, 5.0


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
        self._said: OrderedDict[int, tuple[Prompt, int]] = OrderedDict()
        self._bytes = self._flying = self._in_vain = 0
        self._again = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._computed: deque[tuple[float, Prompt]] = deque(maxlen=REMEMBERED)

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

    async def look(self) -> None:
        """See whether what lies there can be understood, and say so. Raises StoreDown."""
        wrong = await self.lookup.check() or await self._unwritten()
        if wrong and wrong != self.wrong:
            log.warning("nothing will be found on L2: %s", wrong)
        self.wrong = wrong

    async def close(self) -> None:
        """Let go of connections."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self.lookup.close()

    def _answered(self, prompt: Prompt, tokens: int) -> None:
        if self.down:
            log.warning("L2 answers again")
        self.down = ""
        self._keep(prompt, tokens)
        if tokens:
            self.found += 1
            self._in_vain, self.wrong = 0, ""
            return
        self.missed += 1
        self._in_vain += 1
        self._remember(prompt)
        if self._in_vain >= SUSPECT and (self._looking is None or self._looking.done()):
            self._in_vain = 0
            self._looking = asyncio.create_task(self._doubt())

    def _keep(self, prompt: Prompt, tokens: int) -> None:
        before, _ = self._said.pop(id(prompt), (None, 0))
        self._bytes += len(prompt.ids) if before is None else 0
        self._said[id(prompt)] = (prompt, tokens)
        while len(self._said) > KEPT or (self._bytes > KEPT_BYTES and len(self._said) > 1):
            _, (gone, _) = self._said.popitem(last=False)
            self._bytes -= len(gone.ids)

    def _remember(self, prompt: Prompt) -> None:
        """Of what a worker is about to compute, the first chunk."""
        width = 4 * self.lookup.chunk
        if len(prompt.ids) >= width:
            first = Prompt(prompt.model, 0, ids=prompt.ids[:width], salt=prompt.salt)
            self._computed.append((self._clock(), first))

    async def _unwritten(self) -> str:
        """Whether what was computed a while ago has not come either: then it never will."""
        due = [one for at, one in self._computed if self._clock() - at >= WRITTEN_S]
        if len(due) < REMEMBERED // 2:
            return ""
        for one in due:
            if await self.lookup.held(one.ids, one.model, one.salt):
                return ""
        return (
            "what workers computed did not come to lie there under the names that settings say:"
            " another store, or another chunk size, model, hash or seed"
        )

    async def _doubt(self) -> None:
        try:
            await self.look()
        except StoreDown as error:
            self._fail(str(error))

    def _fail(self, why: str) -> None:
        self._again = self._clock() + PAUSE_S
        if not self.down:
            log.warning("L2 does not count until it answers: %s", why)
        self.down = why
