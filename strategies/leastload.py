"""`leastload`: the worker with the least to do, whatever it remembers."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from strategies.base import Candidate, Decision, NoOptions, Outcome, Prompt, WorkerView
from strategies.cost import Costs


class LeastLoad:
    """Compares workers by booked seconds, as if every cache were empty."""

    Options: ClassVar[type[Any]] = NoOptions
    reads_prompt: ClassVar[bool] = False

    def __init__(self, options: NoOptions) -> None:
        del options
        self._costs = Costs()

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Cheapest worker first, none credited with anything."""
        return Decision(self._costs.rank(prompt, workers, now), "load")

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
