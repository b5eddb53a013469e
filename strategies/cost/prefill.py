"""How fast workers compute prompts, learned from the times of their first bytes.

The form of the curve is fixed: seconds grow with the uncached tokens, and with the context that
those tokens attend to. A pool learns one curve from all its workers, plus a factor per worker for
how much slower it is: so every worker benefits at once from what one has shown, and workers that
are alike are treated as alike. The curve starts from a deliberately slow guess.
"""

from collections.abc import Mapping
from math import exp, log, sqrt
from typing import Final, NamedTuple

from strategies.constants import ALIKE, MARGIN, MAX_STEP, MIN_TIMED_S, WEIGHT

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
        linear, more = self.factor + self.growth * cached / GROWTH, self.growth / (2.0 * GROWTH)
        return (sqrt(linear * linear + 4.0 * more * seconds * RATE) - linear) / (2.0 * more)

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
        if predicted >= MIN_TIMED_S and seconds > 0.0:
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
    return min(MAX_STEP, max(1.0 / MAX_STEP, step))


class Held(NamedTuple):
    """Tokens at the start of a prompt that a worker need not compute."""

    gpu: int = 0
    l1: int = 0
    """Tokens in host memory, beyond those on the GPU."""
    l2: int = 0
    """Tokens on a disk or in a shared store, beyond the other two."""

    @property
    def total(self) -> int:
        """Tokens on all tiers together."""
        return self.gpu + self.l1 + self.l2

    @property
    def tier(self) -> str:
        """Tier with most of the tokens: `gpu`, `l1` or `l2`."""
        return self._fields[self.index(max(self))]

    def found(self, tokens: int, gpu: int | None = None, l1: int | None = None) -> "Held":
        """Return on which tiers the worker found `tokens`, given where they were believed to be.

        If there are fewer, the end of the prefix is missing; if more, the others were on the GPU,
        as most are. What the worker reported (`gpu`, perhaps `l1`) is used; loaded tokens that were
        not known about came from L2, because engines do announce L1.
        """
        if gpu is not None:
            gpu = min(gpu, tokens)
            if l1 is None:
                l1 = max(0, self.gpu + self.l1 - gpu)
            l1 = min(l1, tokens - gpu)
            return Held(gpu, l1, tokens - gpu - l1)
        l1 = min(self.l1, max(0, tokens - self.gpu))
        l2 = min(self.l2, max(0, tokens - self.gpu - self.l1))
        return Held(tokens - l1 - l2, l1, l2)

    def at_least(self, gpu: int = 0, l1: int = 0, l2: int = 0) -> "Held":
        """Return the same, with at least the first `gpu` tokens on the GPU, the first `l1` there or
        on L1, and the first `l2` anywhere."""
        gpu = max(gpu, self.gpu)
        host = max(gpu, l1, self.gpu + self.l1)
        return Held(gpu, host - gpu, max(host, l2, self.total) - host)


class Loading(NamedTuple):
    """What a worker has to load for a prompt, in tokens by tier, and the seconds it takes."""

    seconds: float = 0.0
    l1: int = 0
    l2: int = 0

    @property
    def tokens(self) -> int:
        """Tokens from both tiers together."""
        return self.l1 + self.l2


class Loads:
    """The slower tiers of one pool: which exist, and how long each takes to load a token."""

    def __init__(
        self,
        l1_rate: float | None = None,
        l2_rate: float | None = None,
        *,
        promotes: bool = False,
    ) -> None:
        """Take rates in tokens per second; None means there is no such tier. Raises ValueError."""
        for name, rate in (("l1", l1_rate), ("l2", l2_rate)):
            if rate is not None and rate <= 0:
                raise ValueError(f"{name}: loads some tokens a second")
        self.l1_s = 1.0 / l1_rate if l1_rate else 0.0
        """Seconds to load a token from host memory; 0 if what is there does not count."""
        self.l2_s = 1.0 / l2_rate if l2_rate else 0.0
        """The same for a disk or a shared store."""
        self.promotes = promotes and self.l1_s > 0.0 and self.l2_s > 0.0
        """Whether what a worker loads from L2 stays on its L1."""
        self.seen = 0
        """Number of answers that the rates were learned from."""

    @property
    def rates(self) -> Mapping[str, float]:
        """Tokens per second of each tier that exists."""
        tiers = {"l1": self.l1_s, "l2": self.l2_s}
        return {tier: 1.0 / seconds for tier, seconds in tiers.items() if seconds}

    def counted(self, held: Held) -> Held:
        """Return the tokens that count: those on existing tiers, and none after a gap."""
        if not self.l1_s and held.l1:
            return Held(held.gpu)
        return held if self.l2_s else held._replace(l2=0)

    def shown(self, held: Held) -> Held:
        """Return where tokens were found, without tiers that do not exist."""
        return Held(held.gpu, held.l1 if self.l1_s else 0, held.l2 if self.l2_s else 0)

    def of(self, held: Held, pace: Pace) -> Loading:
        """Return the time to load what is not on the GPU; per tier, at most the time to compute it.

        Whether an engine loads or computes is up to the engine; most load whatever they find.
        """
        l1 = min(held.l1 * self.l1_s, pace.prefill(held.l1, held.gpu))
        l2 = min(held.l2 * self.l2_s, pace.prefill(held.l2, held.gpu + held.l1))
        return Loading(l1 + l2, held.l1, held.l2)

    def learn(self, tiers: Held, rest: tuple[int, int], pace: Pace, seconds: float) -> None:
        """Learn from a worker that took `seconds` to load its `tiers`, and to compute the rest.

        `rest` is how many tokens it computed, and how many precede them. It tells something if it
        took longer to load than to compute; each tier moves by its share in the prediction.
        """
        l1, l2 = tiers.l1 * self.l1_s, tiers.l2 * self.l2_s
        predicted, computing = l1 + l2, pace.prefill(*rest)
        if predicted <= computing or seconds <= 0.0:
            return
        self.seen += 1
        step, part = bounded((seconds - computing) / predicted), weight(self.seen)
        self.l1_s *= step ** (part * l1 / predicted)
        self.l2_s *= step ** (part * l2 / predicted)
