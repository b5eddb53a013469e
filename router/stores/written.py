"""Whether what workers compute comes to lie in a shared store, under the names it is looked for by.

If none of it ever does, nothing will be found: a seed, a hash, a size of chunks or a model is
another one there, or the store is.
"""

from collections import Counter
from math import inf
from operator import itemgetter
from typing import NamedTuple

from router.stores.lookup import Lookup
from strategies.base import Prompt

#: Computed chunks that wait to be looked for; so many make a look; and tokens up to the last of
#: them, or one chunk.
WAITING, FEW, LONGEST = 8, 4, 16_384
#: Seconds in which a chunk must have come, once the answer has ended; after these it may have left.
WRITTEN_S, STAYS_S = 5.0, 60.0
#: So many looks in vain, one after the other, mean that none will come. A store that lost all it
#: had, as it began anew, explains one.
ENOUGH = 4


class _Computed(NamedTuple):
    at: float
    prompt: Prompt
    """Up to the end of a chunk that was computed as a whole."""


class Written:
    """Of a few prompts at a time the chunk that should come: a full row is looked through before
    another one begins, so that none is pushed out by those after it, however many there are.

    A row is of prompts that were asked about after the look before it, so no two looks lack what
    the store lost at once."""

    def __init__(self, lookup: Lookup) -> None:
        self.came = self.missing = 0
        """Chunks that were looked for, and lay there, or did not."""
        self._lookup = lookup
        self._waiting: list[_Computed] = []
        self._looked_at = -inf
        self._in_vain: Counter[str] = Counter()
        """By model, looks since something of it came."""

    def computed(self, prompt: Prompt, cached: int, asked: float, now: float) -> None:
        """A worker has computed all but the first `cached` tokens, and its answer has ended.
        `asked` is when nothing of the prompt lay there."""
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
        """Whether enough of them had time to come."""
        return len(self._waiting) >= FEW and now - self._waiting[FEW - 1].at >= WRITTEN_S

    def found(self, model: str) -> None:
        """Something of that model was found there."""
        self._in_vain.pop(model, None)

    async def look(self, now: float) -> None:
        """Look for those that had time to come, if they are enough. Raises StoreDown."""
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
        """What is wrong, in a sentence; empty if some came of every model."""
        model, number = max(self._in_vain.items(), key=itemgetter(1), default=("", 0))
        if number < ENOUGH:
            return ""
        return f"what workers computed did not come to lie there {self._lookup.compare(model)}"
