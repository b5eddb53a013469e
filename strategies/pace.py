"""How fast a worker computes prompts, learned from its own first bytes.

The form of the curve is fixed: seconds grow with the uncached tokens, and with the context those
tokens attend to. One factor is learned. It starts from a deliberately slow guess, because
believing a worker twice too slow costs nothing and twice too fast costs dearly.
"""

#: Tokens a second of a short prompt. An 8B model on one H100 does about 20,000; this is slower.
RATE = 10_000.0
#: Context, in tokens, at which attention has doubled the work of one more token.
GROWTH = 30_000.0
#: Below this guess, fixed overheads (network, one decode step) drown what is to be learned.
SHORTEST_S = 0.05
#: No single answer may move the factor by more than this, however odd it was.
LARGEST_STEP = 4.0


class Pace:
    """The learned speed of one worker."""

    __slots__ = ("_seen", "factor")

    def __init__(self) -> None:
        self.factor = 1.0
        """Measured over guessed seconds; above one is slower than the guess."""
        self._seen = 0

    @staticmethod
    def guess(uncached: float, cached: float) -> float:
        """Seconds to compute `uncached` tokens that follow `cached` ones, before any learning."""
        return uncached / RATE * (1.0 + (cached + uncached / 2.0) / GROWTH)

    def prefill(self, uncached: float, cached: float) -> float:
        """Seconds to compute `uncached` tokens that follow `cached` ones, as learned."""
        return self.factor * uncached / RATE * (1.0 + (cached + uncached / 2.0) / GROWTH)

    def observe(self, guessed_s: float, actual_s: float) -> None:
        """Learn from one first byte, which was guessed to take `guessed_s`, waiting included.

        The first answers count in full, later ones as a moving average in the logarithm; slower
        is believed three times as fast as faster.
        """
        if guessed_s < SHORTEST_S or actual_s <= 0.0:
            return
        step = actual_s / guessed_s / self.factor
        step = min(LARGEST_STEP, max(1.0 / LARGEST_STEP, step))
        self._seen += 1
        self.factor *= step ** max(0.15 if step > 1.0 else 0.05, 1.0 / self._seen)

    def __repr__(self) -> str:
        return f"<Pace {RATE / self.factor:.0f} tokens/s seen={self._seen}>"
