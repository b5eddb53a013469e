"""`roundrobin`: everyone in turn, even while workers come and go."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from strategies.base import FREE, Candidate, Decision, NoOptions, Outcome, Prompt, WorkerView

#: Workers whose last turn is remembered.
MOST: Final = 10_000


class RoundRobin:
    """The worker whose turn is longest ago is next; no index into a list that may change."""

    Options: ClassVar[type[Any]] = NoOptions
    reads_prompt: ClassVar[bool] = False
    reads_load: ClassVar[bool] = False

    def __init__(self, options: NoOptions) -> None:
        del options
        self._turns: dict[str, int] = {}
        self._clock = 0

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Least recently placed first; a newcomer counts as longest ago."""
        turns = self._turns
        order = sorted(workers, key=lambda worker: turns.get(worker.name, 0))
        return Decision([Candidate(worker, FREE) for worker in order], "turn")

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """It has had its turn."""
        self._clock += 1
        turns = self._turns
        turns[worker.name] = self._clock
        if len(turns) > MOST:  # names of workers that are long gone
            for name in sorted(turns, key=turns.__getitem__)[: MOST // 2]:
                del turns[name]

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Outcomes do not matter here."""

    def forget(self, worker: str) -> None:
        """A worker that lost its cache keeps its place in the round."""

    def gauges(self) -> Mapping[str, float]:
        """Nothing is kept that grows."""
        return {}
