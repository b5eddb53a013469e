"""`poweroftwo`: of two workers drawn at random, the one with less to do.

Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001): nearly as even as
comparing everybody, at the price of two, and routers that do not know of each other do not herd.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from strategies.base import Candidate, Decision, NoOptions, Outcome, Prompt, WorkerView
from strategies.cost import Costs


class PowerOfTwo:
    """The other workers follow, the cheapest first."""

    Options: ClassVar[type[Any]] = NoOptions
    reads_prompt: ClassVar[bool] = False

    def __init__(self, options: NoOptions) -> None:
        del options
        self._chance = Random()
        self._costs = Costs()

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Draw an order; the cheaper one of the first two goes first."""
        drawn = self._chance.sample(workers, len(workers))
        pair = self._costs.rank(prompt, drawn[:2], now)
        rest = self._costs.rank(prompt, drawn[2:], now) if len(drawn) > 2 else []
        return Decision([*pair, *rest], "load")

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """The booking itself is all there is to know of it."""
        self._costs.placed(prompt, now)

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """The booking itself is all there is to know."""

    def forget(self, worker: str) -> None:
        """Nothing is remembered."""

    def gauges(self) -> Mapping[str, float]:
        """Nothing is kept."""
        return {}
