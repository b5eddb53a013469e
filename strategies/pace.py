"""How fast workers compute prompts, learned from their own first bytes.

The form of the curve is fixed: seconds grow with the uncached tokens, and with the context those
tokens attend to. A pool learns one curve from all its workers, and how much slower than the curve
each of them is: so what one has shown all know at once, and two that are alike are believed to be
(were one thought faster by chance, conversations would settle there and stay). The curve starts
from a deliberately slow guess, and all is believed slower than it is measured: workers believed
twice too slow cost nothing, and twice too fast dearly.
"""

from math import exp, log
from typing import Final

#: Tokens a second of a short prompt. An 8B model on one H100 does about 20,000; this is slower.
RATE: Final = 10_000.0
#: Context, in tokens, at which attention has doubled the work of one more token.
GROWTH: Final = 30_000.0
#: Below this prediction, fixed overheads (network, one decode step) drown what is to be learned.
SHORTEST_S = 0.05
#: Unless it was there in this part of the prediction.
EARLY: Final = 0.5
#: How much slower than measured a worker is believed to be.
MARGIN = 1.75
#: No single answer may move a belief by more than this, however odd it was: the first so many
#: answers, and later ones.
FIRST, FIRST_STEP, LATER_STEP = 8, 4.0, 1.5
#: Weight of one answer that was slower than believed, and of one that was faster.
SLOWER, FASTER = 0.06, 0.02
#: Weight of one answer in how much slower than the others its worker is.
OWN = 0.1
#: Workers this much apart, as a logarithm, count as alike.
ALIKE = 0.25


class Curve:
    """What a pool's workers have in common."""

    __slots__ = ("apart", "factor", "growth", "seen", "timed")

    def __init__(self) -> None:
        self.factor = 1.0
        """Measured over guessed seconds a token; above one is slower than the guess."""
        self.growth = 1.0
        """The same for what context adds."""
        self.apart = 0.0
        """How far answers were from the prediction lately, as a logarithm."""
        self.seen = 0
        """Answers it was learned from."""
        self.timed = 0
        """Those of them that timed a prefill; the others only told that it was no slower."""

    def seconds(self, uncached: float, cached: float) -> float:
        """Seconds to compute `uncached` tokens that follow `cached` ones."""
        return uncached / RATE * (self.factor + self.growth * _context(uncached, cached))

    def learn(self, context: float, step: float) -> None:
        """An answer took `step` times what was predicted.

        The first answers count in full, later ones as a moving average in the logarithm; slower
        is believed three times as fast as faster. Each factor moves by its part in the prediction,
        but in the beginning both, as if context mattered to this model as it does to any.
        """
        self.seen += 1
        most = FIRST_STEP if self.seen <= FIRST else LATER_STEP
        step = min(most, max(1.0 / most, step))
        weight = max(SLOWER if step > 1.0 else FASTER, 1.0 / self.seen)
        grown = 0.5
        if self.seen > FIRST:
            grown = self.growth * context / (self.factor + self.growth * context)
        self.factor *= step ** (2.0 * weight * (1.0 - grown))
        self.growth *= step ** (2.0 * weight * grown)


class Pace:
    """The learned speed of one worker."""

    __slots__ = ("_own", "_timed", "curve", "seen", "slower")

    def __init__(self, curve: Curve | None = None) -> None:
        self._own = 0.0
        self._timed = 0
        self.seen = 0
        """Answers it has learned from."""
        self.slower = MARGIN
        """How much slower than the curve it is believed to be."""
        self.follow(curve or Curve())

    def follow(self, curve: Curve) -> None:
        """Share the curve of a pool."""
        self.curve = curve

    @property
    def factor(self) -> float:
        """Measured over guessed seconds a token, without the margin."""
        return self.curve.factor * self.slower / MARGIN

    def prefill(self, uncached: float, cached: float) -> float:
        """Seconds to compute `uncached` tokens that follow `cached` ones, as believed."""
        return self.slower * self.curve.seconds(uncached, cached)

    def observe(self, uncached: float, cached: float, seconds: float) -> None:
        """Learn from a prompt that had the worker for itself and took so many seconds."""
        predicted = self.curve.seconds(uncached, cached)
        if predicted >= SHORTEST_S and seconds > 0.0:
            self._compare(log(seconds / predicted))
            self._learn(_context(uncached, cached), seconds / predicted)
        else:  # overheads only ever make an answer late
            self.bound(uncached, cached, seconds)

    def bound(self, uncached: float, cached: float, seconds: float) -> None:
        """Learn from a prompt that took no more than so many seconds, its answer included."""
        predicted = self.curve.seconds(uncached, cached)
        if 0.0 < seconds < EARLY * predicted:
            self._learn(_context(uncached, cached), seconds / predicted)

    def _learn(self, context: float, step: float) -> None:
        self.seen += 1
        self.curve.learn(context, step)

    def _compare(self, apart: float) -> None:
        """Its prefill took this much more than predicted, as a logarithm: and the others'?

        A curve that is still wrong is wrong for all. One that has shown little is like them.
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
        self.slower = MARGIN * exp(surely if differs > 0.0 else -surely)

    def __repr__(self) -> str:
        return f"<Pace {RATE / self.factor:.0f} tokens/s seen={self.seen}>"


def _context(uncached: float, cached: float) -> float:
    """How many times `GROWTH` tokens each of `uncached` ones attends to, on average."""
    return (cached + uncached / 2.0) / GROWTH


def _moved(by: float, seen: int) -> float:
    """What the latest of so many answers moves an average by."""
    return max(OWN, 1.0 / (seen + 1)) * min(log(FIRST_STEP), max(-log(FIRST_STEP), by))
