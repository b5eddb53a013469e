"""`leastload`: the least loaded worker, whatever its cache holds."""

from collections.abc import Sequence

from strategies.api import Capabilities, Decision, NoOptions, Prompt, Strategy, WorkerView
from strategies.cost.cost import Costs


class LeastLoad(Strategy):
    """Compares workers by cost, as if every cache were empty."""

    capabilities = Capabilities(reads_prompt=False)

    def __init__(self, options: NoOptions) -> None:
        del options
        self._costs = Costs()

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Put the cheapest worker first; none is credited with cached tokens."""
        return Decision(self._costs.rank(prompt, workers, now), "load")

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Tell the cost model; the worker's load has the booking."""
        self._costs.placed(prompt, now)
