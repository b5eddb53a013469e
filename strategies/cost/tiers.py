"""How long workers take to load blocks from slower tiers (L1, L2), learned like their pace.

The first guess is bandwidth over bytes per token. Then prompts that were mostly loaded are timed,
minus the time to compute the rest of their tokens. All workers of a pool count as alike in this.
"""

from collections.abc import Mapping
from typing import NamedTuple

from strategies.cost.prefill import Pace, bounded, weight


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

    def learn(self, found: Held, rest: tuple[int, int], pace: Pace, seconds: float) -> None:
        """Learn from a worker that took `seconds` to load what it `found`, and to compute the rest.

        `rest` is how many tokens it computed, and how many precede them. It tells something if it
        took longer to load than to compute; each tier moves by its share in the prediction.
        """
        l1, l2 = found.l1 * self.l1_s, found.l2 * self.l2_s
        predicted, computing = l1 + l2, pace.prefill(*rest)
        if predicted <= computing or seconds <= 0.0:
            return
        self.seen += 1
        step, part = bounded((seconds - computing) / predicted), weight(self.seen)
        self.l1_s *= step ** (part * l1 / predicted)
        self.l2_s *= step ** (part * l2 / predicted)
