"""`poweroftwo`: the less loaded of two workers drawn at random.

Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001): nearly as even as
comparing all workers, for the price of comparing two. Independent routers do not herd.
"""

from collections.abc import Sequence
from random import Random

from strategies.api import Capabilities, Decision, NoOptions, Prompt, Strategy, WorkerView
from strategies.cost.cost import Costs


class PowerOfTwo(Strategy):
    """Puts the cheaper of two random workers first, then the other, then the rest by cost."""

    capabilities = Capabilities(reads_prompt=False)

    def __init__(self, options: NoOptions) -> None:
        del options
        self._chance = Random()
        self._costs = Costs()

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Draw a random order; the cheaper of its first two workers goes first."""
        drawn = self._chance.sample(workers, len(workers))
        pair = self._costs.rank(prompt, drawn[:2], now)
        if len(drawn) <= 2:
            return Decision(pair, "load")
        rest = self._costs.rank(prompt, drawn[2:], now)
        return Decision([*pair, *rest], "load", drawn=True)

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Tell the cost model; the worker's load has the booking."""
        self._costs.placed(prompt, now)
