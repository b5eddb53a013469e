"""Checks that what workers compute is stored under the names that are looked up.

If none of it ever is, nothing will ever be found: the seed, hash, chunk size, model or store
differs from the settings.
"""

from collections import Counter
from math import inf
from operator import itemgetter
from typing import NamedTuple

from router.kv.lmcache.lookup import Lookup
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
        """Look up the chunks that had time to be stored, if there are enough. Raises StoreDown."""
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
