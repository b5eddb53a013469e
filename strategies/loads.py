"""How long workers take to load blocks from slower tiers (L1, L2), learned as their pace is.

The first guess is bandwidth over bytes a token. Prompts most of which were loaded teach the rest:
what they took, less what computing the others of their tokens takes. A pool learns from all its
workers, for they are alike in this; and loading is believed slower than measured, as computing is,
or it would look cheaper than it is beside it.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from strategies.pace import FASTER, FIRST, FIRST_STEP, LATER_STEP, MARGIN, SLOWER, Pace

#: Tokens a second, where nothing is said of the tiers.
L1_RATE, L2_RATE = 200_000.0, 50_000.0
#: Loading teaches where it is this part of what was predicted, and the pace does where it is less
#: than the other.
MOSTLY, HARDLY = 0.5, 0.1
#: What is loaded takes this part of its prediction at least, whatever else is measured.
LEAST = 0.1


class Held(NamedTuple):
    """Tokens at the start of a prompt that a worker need not compute."""

    gpu: int = 0
    l1: int = 0
    """In the host's memory, beyond those on the GPU."""
    l2: int = 0
    """On a disk or in a shared store, beyond both."""

    @property
    def total(self) -> int:
        """On any tier."""
        return self.gpu + self.l1 + self.l2

    @property
    def tier(self) -> str:
        """Where most of them are: `gpu`, `l1` or `l2`."""
        if self.gpu >= self.l1 and self.gpu >= self.l2:
            return "gpu"
        return "l1" if self.l1 >= self.l2 else "l2"

    def found(self, tokens: int, gpu: int | None = None, l1: int | None = None) -> "Held":
        """Return where so many tokens came from, being believed to lie so.

        What lacks is missing at the end, and what nobody knew of lay on the GPU, where most comes
        to. If the worker told how many lay on its GPU (and on L1), these are they; what it loaded
        and nobody knew of came from L2, as of L1 engines tell.
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

    def stored(self, tokens: int) -> "Held":
        """The same, a store having these first tokens at least."""
        more = tokens - self.gpu - self.l1
        return self if more <= self.l2 else Held(self.gpu, self.l1, more)

    def hosted(self, tokens: int) -> "Held":
        """The same, L1 having these first tokens at least, as far as the GPU has not."""
        l1 = max(self.l1, tokens - self.gpu)
        return Held(self.gpu, l1, max(0, self.total - self.gpu - l1))

    def beyond(self, tokens: int) -> "Held":
        """The same, the GPU having these first tokens at least."""
        gpu = max(self.gpu, tokens)
        l1 = max(0, self.gpu + self.l1 - gpu)
        return Held(gpu, l1, max(0, self.total - gpu - l1))


class Loading(NamedTuple):
    """What a worker has to load for a prompt, and for how many seconds."""

    seconds: float = 0.0
    l1: int = 0
    l2: int = 0

    @property
    def tokens(self) -> int:
        """On both."""
        return self.l1 + self.l2


class Paced(Protocol):
    """Whoever computes at a pace."""

    @property
    def pace(self) -> Pace:
        """How fast it computes."""


class Loads:
    """The tiers of one pool: which there are, and seconds a token of each."""

    __slots__ = ("_has_l1", "_has_l2", "l1_s", "l2_s", "promotes", "seen")

    def __init__(
        self,
        l1_rate: float | None = L1_RATE,
        l2_rate: float | None = L2_RATE,
        *,
        promotes: bool = False,
    ) -> None:
        """Rates in tokens a second; None where there is no such tier. Raises ValueError.

        `promotes`: what a worker loads from L2 stays on its L1.
        """
        for name, rate in (("l1", l1_rate), ("l2", l2_rate)):
            if rate is not None and rate <= 0:
                raise ValueError(f"{name}: loads some tokens a second")
        self._has_l1, self._has_l2 = l1_rate is not None, l2_rate is not None
        self.l1_s = 1.0 / (l1_rate or L1_RATE)
        self.l2_s = 1.0 / (l2_rate or L2_RATE)
        self.promotes = promotes and l1_rate is not None and l2_rate is not None
        """Whether what a worker loads from L2 stays on its L1."""
        self.seen = 0
        """Answers it was learned from."""

    @property
    def rates(self) -> Mapping[str, float]:
        """Tokens a second by tier, of those there are."""
        found = {"l1": 1.0 / self.l1_s} if self._has_l1 else {}
        return {**found, "l2": 1.0 / self.l2_s} if self._has_l2 else found

    @property
    def has_l1(self) -> bool:
        """Whether what lies in the host's memory counts."""
        return self._has_l1

    def counted(self, held: Held) -> Held:
        """Return what lies on tiers that there are; behind a gap nothing counts."""
        if not self._has_l1 and held.l1:
            return Held(held.gpu)
        return held if self._has_l2 else held._replace(l2=0)

    def shown(self, held: Held) -> Held:
        """Return what counts of where tokens were found: nothing of tiers that there are not."""
        l1 = held.l1 if self._has_l1 else 0
        return Held(held.gpu, l1, held.l2 if self._has_l2 else 0)

    def of(self, held: Held, worker: Paced) -> Loading:
        """What it takes to load what is not on the GPU: each tier, or computing it if that is less.

        Which of the two an engine does is its own affair; most load whatever they find.
        """
        l1 = held.l1 * self.l1_s * MARGIN
        l2 = held.l2 * self.l2_s * MARGIN
        prefill = worker.pace.prefill
        l1 = min(l1, prefill(held.l1, held.gpu)) if l1 else 0.0
        l2 = min(l2, prefill(held.l2, held.gpu + held.l1)) if l2 else 0.0
        return Loading(l1 + l2, held.l1, held.l2)

    def learn(self, loading: Loading, rest: tuple[int, int], pace: Pace, seconds: float) -> None:
        """A worker took so many seconds to load this and to compute the rest.

        `rest` is how many tokens it computed, and after how many others. Measured as in
        `strategies.pace`: the first answers count in full, later ones as a moving average of the
        logarithm, each tier by its part in the prediction.
        """
        l1, l2 = loading.l1 * self.l1_s, loading.l2 * self.l2_s
        predicted, computing = l1 + l2, pace.prefill(*rest) / MARGIN
        if predicted < MOSTLY * (predicted + computing) or seconds <= 0.0:
            return
        self.seen += 1
        most = FIRST_STEP if self.seen <= FIRST else LATER_STEP
        step = max(seconds - computing, LEAST * predicted) / predicted
        step = min(most, max(1.0 / most, step))
        weight = max(SLOWER if step > 1.0 else FASTER, 1.0 / self.seen)
        self.l1_s *= step ** (weight * l1 / predicted)
        self.l2_s *= step ** (weight * l2 / predicted)

    def __repr__(self) -> str:
        told = ", ".join(f"{tier} {rate:.0f} tokens/s" for tier, rate in self.rates.items())
        return f"<Loads {told or 'nothing'} seen={self.seen}>"
