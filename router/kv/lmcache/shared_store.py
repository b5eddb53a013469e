"""A shared store (L2), asked within a deadline what it holds of prompts about to be decided.

The answer is kept until the decision. A store that is slow or down costs one deadline, and then one
second passes before it is asked again. If nothing is found, the store's content is checked, as is
whether what workers computed gets stored there under the names that are looked up. If none of it
ever is, nothing will ever be found: the seed, hash, chunk size, model or store differs from the
settings. Any problem is reported.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from math import inf
from operator import itemgetter
from time import monotonic
from typing import NamedTuple, Protocol

from router.kv.answers import Answers
from strategies.api import Prompt

log = logging.getLogger("warmroute.tiers")

#: Most prompts whose answers are kept, and bytes of their ids.
MAX_ANSWERS, MAX_ANSWERS_BYTES = 4096, 64 << 20
#: Most questions in flight: further ones are not asked.
MAX_QUESTIONS = 64
#: Seconds before a failed store is asked again.
RETRY_INTERVAL_S = 1.0
#: Questions in a row without a find, after which the store's content is checked.
MAX_MISSES = 50
#: Least seconds between two such checks, and between two warnings.
MIN_CHECK_INTERVAL_S, MIN_WARNING_INTERVAL_S = 10.0, 300.0
#: Most computed chunks waiting to be looked up; and how many trigger a look.
MAX_WAITING, MIN_WAITING = 8, 4
#: The longest prefix, in tokens, that ends with such a chunk, unless it is a single chunk.
MAX_WRITTEN_TOKENS = 16_384
#: Seconds after the end of an answer within which a chunk must be stored, and after which it may be
#: evicted again.
STORE_TIMEOUT_S, MIN_STAY_S = 5.0, 60.0
#: So many failed looks in a row mean that nothing will ever be stored. A store that lost its data
#: in a restart explains only one.
MAX_FAILED_LOOKS = 4


class LookupFailed(Exception):
    """The store cannot be asked; the message is a sentence."""


class Lookup(Protocol):
    """One store. It is optional: without its answer, decisions rest on what else is known.

    `ids` are token ids, 32 bits each in the machine's byte order. `model` is the name in the
    request, `salt` what separates caches.
    """

    @property
    def chunk(self) -> int:
        """Tokens per chunk; anything shorter is never stored."""

    async def held(self, ids: bytes, model: str, salt: str) -> int:
        """Return how many of the first tokens are stored. Raises LookupFailed."""

    async def wrote(self, ids: bytes, model: str, salt: str) -> bool | None:
        """Return whether the last full chunk of these tokens is stored, whatever comes before it.

        None if that cannot be asked. Raises LookupFailed.
        """

    def compare(self, model: str) -> str:
        """Return the end of a sentence: which names are looked up where, and how to check them."""

    async def check(self) -> str:
        """Return what is wrong with the store's content, as a sentence; empty if nothing is.

        Raises LookupFailed.
        """

    async def close(self) -> None:
        """Close all connections."""


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

    def computed(self, prompt: Prompt, cached: int, asked_at: float, now: float) -> None:
        """Note that a worker has answered, having computed all but the first `cached` tokens.

        `asked_at` is when nothing of the prompt was stored.
        """
        chunk = self._lookup.chunk
        end = (-(-cached // chunk) + 1) * chunk
        if (
            asked_at > self._looked_at
            and len(self._waiting) < MAX_WAITING
            and 4 * end <= len(prompt.ids)
            and end <= max(chunk, MAX_WRITTEN_TOKENS)
        ):
            upto = Prompt(prompt.model, 0, ids=prompt.ids[: 4 * end], salt=prompt.salt)
            self._waiting.append(_Computed(now, upto))

    def due(self, now: float) -> bool:
        """Whether enough chunks have had time to be stored."""
        waiting = self._waiting
        return len(waiting) >= MIN_WAITING and now - waiting[MIN_WAITING - 1].at >= STORE_TIMEOUT_S

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
            if STORE_TIMEOUT_S <= now - at <= MIN_STAY_S:
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
        if number < MAX_FAILED_LOOKS:
            return ""
        return f"what workers computed did not come to lie there {self._lookup.compare(model)}"


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
        self._answers = Answers[tuple[int, float]](MAX_ANSWERS, MAX_ANSWERS_BYTES)
        """For each prompt, the tokens stored, and when that was answered."""
        self.written = Written(lookup)
        """Checks that what workers compute gets stored."""
        self._in_flight = self._misses = 0
        self._retry_at = 0.0
        self._checked_at = self._warn_from = -inf
        self._checking: asyncio.Task[None] | None = None

    async def ask(self, prompt: Prompt) -> None:
        """Ask about a prompt, for no longer than the deadline. Raises nothing."""
        if not prompt.ids or self._in_flight >= MAX_QUESTIONS or self._clock() < self._retry_at:
            return
        self._in_flight += 1
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
            self._in_flight -= 1

    def held(self, prompt: Prompt) -> int:
        """Return how many of the first tokens are stored, as far as was answered in time."""
        answer = self._answers.get(prompt)
        return answer[0] if answer is not None else 0

    def computed(self, prompt: Prompt, cached: int) -> None:
        """Note that a worker has computed a prompt except for its first `cached` tokens.

        If nothing of it was stored, some of it should be soon.
        """
        answer = self._answers.get(prompt)
        if answer is not None and not answer[0]:
            self.written.computed(prompt, cached, answer[1], self._clock())

    async def look(self) -> None:
        """Check whether the store's content can be used, and log if not. Raises LookupFailed."""
        now = self._checked_at = self._clock()
        await self.written.look(now)
        self.wrong = await self.lookup.check() or self.written.lacking
        if self.wrong and now >= self._warn_from:
            self._warn_from = now + MIN_WARNING_INTERVAL_S
            log.warning("no prompt will be found on L2: %s", self.wrong)

    async def close(self) -> None:
        """Close all connections."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
        await self.lookup.close()

    def _answered(self, prompt: Prompt, tokens: int) -> None:
        if self.down:
            log.warning("the L2 store answers again")
        self.down = ""
        tokens = min(tokens, prompt.tokens)  # a directory may claim more
        size = len(prompt.ids) + len(prompt.salt)  # clients choose the length of the salt
        self._answers.keep(prompt, (tokens, self._clock()), size)
        if tokens:
            self.found += 1
            self.written.found(prompt.model)
            self._misses, self.wrong = 0, self.written.lacking
            return
        self.missed += 1
        self._misses += 1
        now = self._clock()
        looks = self._checking is not None and not self._checking.done()
        doubtful = self._misses >= MAX_MISSES or self.written.due(now)
        if doubtful and not looks and now >= self._checked_at + MIN_CHECK_INTERVAL_S:
            self._misses, self._checked_at = 0, now
            self._checking = asyncio.create_task(self._doubt())

    async def _doubt(self) -> None:
        try:
            await self.look()
        except LookupFailed as error:
            self._fail(str(error))

    def _fail(self, why: str) -> None:
        self._retry_at = self._clock() + RETRY_INTERVAL_S
        if not self.down:
            log.warning("the L2 store does not count until it answers: %s", why)
        self.down = why
