"""What a shared store holds of prompts about to be decided, asked within a deadline.

The answer is kept until the decision. A store that is slow or down costs one deadline, and then one
second passes before it is asked again. If nothing is found, the store's content is checked, as is
whether what workers computed gets stored there; any problem is reported.

Checks that what workers compute is stored under the names that are looked up.

If none of it ever is, nothing will ever be found: the seed, hash, chunk size, model or store
differs from the settings.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from math import inf
from operator import itemgetter
from time import monotonic
from typing import NamedTuple

from router.kv.lmcache.lookup import Lookup, LookupFailed
from strategies.api import Prompt

#: Most computed chunks waiting to be looked up; how many trigger a look; and the longest prefix, in
#: tokens, that ends with such a chunk, unless it is a single chunk.
WAITING, FEW, LONGEST = 8, 4, 16_384
#: Seconds after the end of an answer within which a chunk must be stored, and after which it may be
#: evicted again.
WRITTEN_S, STAYS_S = 5.0, 60.0
#: So many failed looks in a row mean that nothing will ever be stored. A store that lost its data
#: in a restart explains only one.
ENOUGH = 4


class _Computed(NamedTuple):
    at: float
    prompt: Prompt
    """The prompt up to the end of a chunk that was computed completely."""


class Written:
    """Looks up one chunk each of a few prompts at a time.

    A full batch is looked up before the next one starts, so that later prompts cannot push out
    earlier ones, however many there are. A batch has only prompts that were asked about after the
    previous look, so data lost by the store affects no more than one look.
    """

    def __init__(self, lookup: Lookup) -> None:
        self.came = self.missing = 0
        """Chunks looked up that were stored, and those that were not."""
        self._lookup = lookup
        self._waiting: list[_Computed] = []
        self._looked_at = -inf
        self._in_vain: Counter[str] = Counter()
        """Failed looks in a row, by model."""

    def computed(self, prompt: Prompt, cached: int, asked: float, now: float) -> None:
        """Note that a worker has answered, having computed all but the first `cached` tokens.

        `asked` is when nothing of the prompt was stored.
        """
        chunk = self._lookup.chunk
        end = (-(-cached // chunk) + 1) * chunk
        if (
            asked > self._looked_at
            and len(self._waiting) < WAITING
            and 4 * end <= len(prompt.ids)
            and end <= max(chunk, LONGEST)
        ):
            upto = Prompt(prompt.model, 0, ids=prompt.ids[: 4 * end], salt=prompt.salt)
            self._waiting.append(_Computed(now, upto))

    def due(self, now: float) -> bool:
        """Whether enough chunks have had time to be stored."""
        return len(self._waiting) >= FEW and now - self._waiting[FEW - 1].at >= WRITTEN_S

    def found(self, model: str) -> None:
        """Note that something of that model was found in the store."""
        self._in_vain.pop(model, None)

    async def look(self, now: float) -> None:
        """Look up the chunks that had time to be stored, if there are enough.

        Raises LookupFailed.
        """
        if not self.due(now):
            return
        row, self._waiting, self._looked_at = self._waiting, [], now
        there: dict[str, bool] = {}
        for at, prompt in row:
            wrote = None
            if WRITTEN_S <= now - at <= STAYS_S:
                wrote = await self._lookup.wrote(prompt.ids, prompt.model, prompt.salt)
            if wrote is not None:
                there[prompt.model] = wrote or there.get(prompt.model, False)
                self.came += wrote
                self.missing += not wrote
        for model, came in there.items():
            if came:
                self.found(model)
            else:
                self._in_vain[model] += 1

    @property
    def lacking(self) -> str:
        """What is wrong, as a sentence; empty if nothing is."""
        model, number = max(self._in_vain.items(), key=itemgetter(1), default=("", 0))
        if number < ENOUGH:
            return ""
        return f"what workers computed did not come to lie there {self._lookup.compare(model)}"


log = logging.getLogger("warmroute.tiers")

#: Most prompts whose answers are kept, and bytes of their ids; most questions in flight: further
#: ones are not asked.
KEPT, KEPT_BYTES, AT_ONCE = 4096, 64 << 20, 64
#: Seconds before a failed store is asked again.
PAUSE_S = 1.0
#: Questions in a row without a find, after which the store's content is checked.
SUSPECT = 50
#: Least seconds between two such checks, and between two warnings.
MIN_CHECK_INTERVAL_S, MIN_WARNING_INTERVAL_S = 10.0, 300.0


class SharedStore:
    """One store, as used by `kvaware`."""

    def __init__(
        self, lookup: Lookup, deadline_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        """`deadline_s`: seconds that a decision waits for the store."""
        self.lookup = lookup
        self.found = self.missed = self.slow = self.failed = 0
        """Questions that found something; found nothing; were too late; failed."""
        self.down = ""
        """Why the store cannot be asked, as a sentence; empty if it can."""
        self.wrong = ""
        """What is wrong with the store's content, as a sentence."""
        self._deadline_s = deadline_s
        self._clock = clock
        self._said: OrderedDict[int, tuple[Prompt, int, float]] = OrderedDict()
        """For each prompt, the tokens stored, and when that was answered."""
        self.written = Written(lookup)
        """Checks that what workers compute gets stored."""
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
        except LookupFailed as error:
            self.failed += 1
            self._fail(str(error))
        else:
            self._answered(prompt, tokens)
        finally:
            self._flying -= 1

    def held(self, prompt: Prompt) -> int:
        """Return how many of the first tokens are stored, as far as was answered in time."""
        said = self._said.get(id(prompt))  # the prompt is kept too, so its id is not reused
        return said[1] if said is not None else 0

    def computed(self, prompt: Prompt, cached: int) -> None:
        """Note that a worker has computed a prompt except for its first `cached` tokens.

        If nothing of it was stored, some of it should be soon.
        """
        said = self._said.get(id(prompt))
        if said is not None and not said[1]:
            self.written.computed(prompt, cached, said[2], self._clock())

    async def look(self) -> None:
        """Check whether the store's content can be used, and log if not. Raises LookupFailed."""
        now = self._look_at = self._clock()
        await self.written.look(now)
        self.wrong = await self.lookup.check() or self.written.lacking
        if self.wrong and now >= self._warn_at:
            self._warn_at = now + MIN_WARNING_INTERVAL_S
            log.warning("no prompt will be found on L2: %s", self.wrong)

    async def close(self) -> None:
        """Close all connections."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self.lookup.close()

    def _answered(self, prompt: Prompt, tokens: int) -> None:
        if self.down:
            log.warning("the L2 store answers again")
        self.down = ""
        tokens = min(tokens, prompt.tokens)  # a directory may claim more
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
        if doubtful and not looks and now >= self._look_at + MIN_CHECK_INTERVAL_S:
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
        except LookupFailed as error:
            self._fail(str(error))

    def _fail(self, why: str) -> None:
        self._again = self._clock() + PAUSE_S
        if not self.down:
            log.warning("the L2 store does not count until it answers: %s", why)
        self.down = why


def _bytes(prompt: Prompt) -> int:
    """Return the bytes that keeping a prompt takes; clients choose the length of the salt."""
    return len(prompt.ids) + len(prompt.salt)
