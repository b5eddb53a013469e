"""How fast workers compute prompts, learned from the times of their first bytes.

The form of the curve is fixed: seconds grow with the uncached tokens, and with the context that
those tokens attend to. A pool learns one curve from all its workers, plus a factor per worker for
how much slower it is: so every worker benefits at once from what one has shown, and workers that
are alike are treated as alike. The curve starts from a deliberately slow guess.
"""

from math import exp, log, sqrt
from typing import Final

from strategies.constants import ALIKE, MARGIN, MOST_STEP, SHORTEST_S, WEIGHT

#: Initial guess for short prompts, in tokens per second. An 8B model on one H100 reaches 20,000.
RATE: Final = 10_000.0
#: Context, in tokens, at which attention doubles the work for one more token.
GROWTH: Final = 30_000.0


class Curve:
    """The speed that a pool's workers have in common."""

    __slots__ = ("apart", "factor", "growth", "seen", "timed")

    def __init__(self) -> None:
        self.factor = 1.0
        """Measured over guessed seconds per token; above one is slower than the guess."""
        self.growth = 1.0
        """The same for the seconds that context adds."""
        self.apart = 0.0
        """Moving average of log(measured / predicted) of recent prefill times."""
        self.seen = 0
        """Number of answers it was learned from."""
        self.timed = 0
        """Number of those that timed a prefill; the others only gave an upper bound."""

    def seconds(self, uncached: float, cached: float) -> float:
        """Return seconds to compute `uncached` tokens that follow `cached` ones."""
        return uncached / RATE * (self.factor + self.growth * _context(uncached, cached))

    def tokens(self, seconds: float, cached: float) -> float:
        """Return how many tokens that follow `cached` ones have most likely been computed."""
        one, more = self.factor + self.growth * cached / GROWTH, self.growth / (2.0 * GROWTH)
        return (sqrt(one * one + 4.0 * more * seconds * RATE) - one) / (2.0 * more)

    def learn(self, context: float, step: float) -> None:
        """Learn from an answer that took `step` times as long as predicted.

        Both factors move alike, the first answers counting equally. And each moves by its share in
        the prediction, but slowly: at first the influence of context is taken to be the usual one.
        """
        self.seen += 1
        step, both = bounded(step), weight(self.seen)
        grown = self.growth * context / (self.factor + self.growth * context)
        apart = WEIGHT * (1.0 - 2.0 * grown)
        self.factor *= step ** (both + apart)
        self.growth *= step ** (both - apart)


class Pace:
    """The learned speed of one worker."""

    __slots__ = ("_own", "_timed", "curve", "slower")

    def __init__(self, curve: Curve | None = None) -> None:
        self._own = 0.0
        self._timed = 0
        self.slower = 1.0
        """Its seconds over the curve's."""
        self.curve = curve or Curve()
        """The workers of a pool share one."""

    @property
    def factor(self) -> float:
        """Measured over guessed seconds per token."""
        return self.curve.factor * self.slower

    def prefill(self, uncached: float, cached: float) -> float:
        """Return seconds to compute `uncached` tokens that follow `cached` ones."""
        return self.slower * self.curve.seconds(uncached, cached)

    def computed(self, seconds: float, cached: float) -> float:
        """Return how many tokens that follow `cached` ones it has most likely computed by then."""
        return self.curve.tokens(seconds / self.slower, cached)

    def observe(self, uncached: float, cached: float, seconds: float) -> None:
        """Learn from a prompt that had the worker to itself and took this many seconds."""
        predicted = self.curve.seconds(uncached, cached)
        if predicted >= SHORTEST_S and seconds > 0.0:
            self._compare(log(seconds / predicted))
            self.curve.learn(_context(uncached, cached), seconds / predicted)
        else:  # an upper bound is still valid: overheads only ever make an answer later
            self.bound(uncached, cached, seconds)

    def bound(self, uncached: float, cached: float, seconds: float) -> None:
        """Learn from a prompt that took at most this many seconds, including its answer.

        It tells something only if that is clearly less than predicted.
        """
        predicted = self.curve.seconds(uncached, cached)
        if 0.0 < MARGIN * seconds < predicted:
            self.curve.learn(_context(uncached, cached), seconds / predicted)

    def _compare(self, apart: float) -> None:
        """Update this worker's factor; `apart` is log(measured / predicted) of one prefill.

        Only the difference from the pool's average counts, since an inaccurate curve is inaccurate
        for all workers. A worker with few answers is taken to be like the others.
        """
        curve = self.curve
        if not self._timed:
            self._own = curve.apart
        self._timed += 1
        curve.timed += 1
        self._own += _moved(apart - self._own, self._timed)
        curve.apart += _moved(apart - curve.apart, curve.timed)
        differs = self._own - curve.apart
        surely = max(0.0, abs(differs) - ALIKE)
        self.slower = exp(surely if differs > 0.0 else -surely)


def _context(uncached: float, cached: float) -> float:
    """Return the average context of the `uncached` tokens, in multiples of `GROWTH`."""
    return (cached + uncached / 2.0) / GROWTH


def _moved(by: float, seen: int) -> float:
    """Return by how much the latest of `seen` answers moves an average of logarithms."""
    return weight(seen + 1) * log(bounded(exp(by)))


def weight(seen: int) -> float:
    """Return the weight of the latest of `seen` observations: the first ones count equally."""
    return max(WEIGHT, 1.0 / seen)


def bounded(step: float) -> float:
    """Return how many times as long as predicted something counts as having taken."""
    return min(MOST_STEP, max(1.0 / MOST_STEP, step))
