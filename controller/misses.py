"""Blocks that an engine did not find where it was said to have put them.

Engines tell what leaves their GPU. What leaves other tiers may go untold: vLLM's host memory when
it is reset, a shared store whenever it pleases. So an answer counts: where a worker says from which
tier its tokens came, what it did not find there is not there; where it tells their sum alone,
loading may have been given up for once, and only the second time counts.
"""

from collections import OrderedDict
from collections.abc import Sequence

from controller.events import Tier
from controller.index import Index
from controller.place import Place
from strategies.base import Prompt
from strategies.loads import Held

#: Blocks that were missed once, and are remembered for it.
REMEMBERED = 1024


class Misses:
    """Takes out of the index what was missed."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._once: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.counts = {Tier.L1: 0, Tier.L2: 0}
        """Blocks taken out, by tier."""

    def note(self, engine: str, prompt: Prompt, believed: Held, found: Held, *, sure: bool) -> None:
        """An engine found a prompt otherwise than it was believed to hold it."""
        on_host = believed.gpu + believed.l1
        reached = found.gpu + found.l1 if sure else found.total
        lost = max(reached, believed.gpu), on_host
        self._missed(self._index.place(engine, Tier.L1), prompt, lost, sure=sure)
        lost = max(found.total, on_host), believed.total
        for name in (engine, ""):
            self._missed(self._index.place(name, Tier.L2), prompt, lost, sure=sure)

    def note_one_of(
        self, engines: Sequence[str], prompt: Prompt, lost: tuple[int, int], *, sure: bool
    ) -> None:
        """One of these found so many tokens alone, and nobody knows which: of a prompt that was
        believed to reach to the second number.

        Whichever it was, it would have loaded what follows from L2, had that been there: from the
        store, or else from its own, which is to be doubted where all of them have it.
        """
        self._missed(self._index.place("", Tier.L2), prompt, lost, sure=sure)
        places = [self._index.place(name, Tier.L2) for name in engines]
        if all(place is not None and self._has(place, prompt, lost[0]) for place in places):
            for place in places:
                self._missed(place, prompt, lost, sure=False)

    def _has(self, place: Place, prompt: Prompt, token: int) -> bool:
        """Whether a place holds the first block that begins there or after."""
        found = {size: self._index.find(prompt.blocks.get(size, ())) for size in place.sizes}
        return any(
            one.reach(place.bit, -(-token // size)) > -(-token // size)
            for size, one in found.items()
        )

    def _missed(
        self, place: Place | None, prompt: Prompt, lost: tuple[int, int], *, sure: bool
    ) -> None:
        """Of a prompt, one tier has no tokens from the first number up to the second."""
        start, stop = lost
        if place is None or stop <= start:
            return
        for size in list(place.sizes):
            keys = prompt.blocks.get(size, ())
            first, last = -(-start // size), min(stop // size, len(keys))
            if first >= last:
                continue
            if place.excused:
                place.excused -= 1
                return
            if place.tier is Tier.L2:
                last = first + 1  # what else is there will not be told again
            elif place.since is not None:
                self._index.doubt(place.worker)
            if sure or self._again(place, keys[first]):
                self.counts[place.tier] += self._index.holdings.lose(place, keys, first, last)

    def _again(self, place: Place, key: int) -> bool:
        """Whether a block is missed for the second time; then that is over."""
        missed = (place.bit, key)
        if missed in self._once:
            del self._once[missed]
            return True
        self._once[missed] = None
        if len(self._once) > REMEMBERED:
            self._once.popitem(last=False)
        return False
