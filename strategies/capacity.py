"""How much a worker turns out to hold, by the cached tokens that it reports.

It may be less than is stated, because others use the cache too, or more, because there is host
memory behind the GPU. And what a request leaves in a cache is known only roughly, so even a correct
number is a few percent off what predicts best. Each wrong prediction tells in which direction; they
are rare, so workers of which about the same is stated also learn from each other.
"""

from collections.abc import Iterator
from typing import Final

#: Bounds of the learned capacity, as multiples of the stated one.
LEAST, MOST = 0.25, 16.0
#: Capacity of a worker that reports cached tokens, as a multiple of its GPU's, if nothing is known
#: of what lies behind the GPU (such as host memory). Too large a value is noticed with the first
#: reports, too small a value only prompt by prompt.
BEHIND = 5.0
#: If more tokens were cached than predicted, it is raised by this factor; if that happens again, by
#: the factor to the power of `STEEPER`, and so on, up to `RISE`. Where it is about right, a larger
#: step would only have to be taken back, prompt by prompt.
FIRST_RISE, STEEPER, RISE = 1.04, 1.5, 1.3
#: If fewer were cached, it is lowered to what is still believed to be held, but by this factor at
#: most; and if a prediction was right, it returns to the stated one with this weight.
LOWER, RETURN = 0.5, 0.001
#: Others like it follow a worker by so much of the way up, and down, divided by one more than the
#: number of times that they were wrong themselves.
UP: Final = 0.5
DOWN: Final = 0.3
#: If the worker itself was wrong more often than this, they follow less in proportion: the first
#: times, it shows what may be true of all, and later on that it is unlike them.
FREELY: Final = 5.0
#: Workers are alike if what is stated of them differs by this share at most: how many blocks an
#: engine finds room for varies a little between equal machines.
ALIKE: Final = 0.05


class Capacity:
    """The learned capacity of one worker."""

    __slots__ = ("_all", "_rise", "reports", "scale", "stated", "told", "wrong")

    def __init__(self, fellows: "dict[Capacity, None]") -> None:
        """Create it as one of `fellows`, all that learn from each other, to which it is added."""
        self.scale = 1.0
        """Learned capacity over stated capacity."""
        self.stated: float | None = None
        """The stated capacity in tokens, as of the last report."""
        self.told = False
        """The stated capacity covers all tiers of the worker."""
        self.reports = False
        """The worker has reported cached tokens, and its capacity was stated by then."""
        self._rise = FIRST_RISE
        self.wrong = 0
        """How often its predictions were wrong."""
        self._all = fellows
        fellows[self] = None

    def hear(self, stated: float | None, *, told: bool) -> bool:
        """Note that the worker reports cached tokens, and whether its capacity was `told`.

        What was learned is void if it is told now and was not before, or the other way round, or if
        another number is told. If nothing is stated at first, it is learned from when it is.
        Returns whether it starts anew.
        """
        known = self.reports and self.told == told and (not told or self.stated == stated)
        self.stated, self.told = stated, told
        self.reports = self.reports or stated is not None
        if known:
            return False
        self._rise, self.wrong = FIRST_RISE, 0
        if told:
            self.scale = 1.0
        else:
            scales = [one.scale for one in self._alike() if LEAST < one.scale < MOST]
            self.scale = sum(scales) / len(scales) if scales else BEHIND
        return True

    def more(self) -> None:
        """Raise it: the worker held more than predicted."""
        if not self.stated:
            return
        by, self._rise = self._rise, min(RISE, self._rise**STEEPER)
        self.scale = min(MOST, self.scale * by)
        self.wrong += 1
        if self.scale == MOST:
            return  # it may report that everything is cached, which says nothing about others
        for other in self._alike():
            if other.scale < self.scale:
                other.scale = min(self.scale, other.scale * by ** (UP * self._weight(other)))

    def less(self, held: float) -> None:
        """Lower it to `held` tokens, all that is still believed to be held."""
        self._rise = FIRST_RISE
        if not self.stated:
            return
        lowest = min(self.scale, held / self.stated)
        self.scale = max(LEAST, self.scale * LOWER, lowest)
        self.wrong += 1
        if self.scale == LEAST:
            return  # as of a worker that caches nothing, which says nothing about others
        for other in self._alike():
            if other.scale > self.scale:
                other.scale *= (self.scale / other.scale) ** (DOWN * self._weight(other))

    def right(self) -> None:
        """Move it back towards what was told: a prediction was right."""
        if self.told:
            self.scale += RETURN * (1.0 - self.scale)

    def _weight(self, other: "Capacity") -> float:
        """Return how much another worker follows this one, at most 1."""
        return 1.0 / (max(1.0, self.wrong / FREELY) * (1 + other.wrong))

    def _alike(self) -> "Iterator[Capacity]":
        """Iterate over the others that report, and of which about the same is stated."""
        stated = self.stated
        if not stated:
            return
        for other in self._all:
            if other is self or not other.reports or other.told != self.told:
                continue
            if other.stated and abs(other.stated - stated) <= ALIKE * stated:
                yield other
