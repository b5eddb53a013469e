"""A baseline: booked seconds only. Goals compare with it what the other cost terms lose, if any."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar

from benchmarks.routing_fleet import Seat
from strategies.base import Candidate, Cost, Decision, NoOptions, Outcome, Prompt, WorkerView
from strategies.preemption import promised


class BookedSeconds:
    """Compares the prefill booked on, or promised to, each worker, and this prompt's own.

    In seconds by the pace that the router has learned. Answers count for nothing, nor does room in
    KV caches. It may be held in the router as Warmroute's strategies are.
    """

    Options: ClassVar[type[Any]] = NoOptions
    reads_prompt: ClassVar[bool] = False

    def __init__(self, seats: Sequence[Seat], seed: int = 0) -> None:
        del seats, seed

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Put the worker that is free soonest first; of equals, the least recently chosen."""
        rows = []
        for place, worker in enumerate(workers):
            load, prefill = worker.load, worker.pace.prefill(prompt.tokens, 0)
            wait = load.wait(now) + promised(load, prefill, now)[0]
            rows.append((wait + prefill, load.turn, place, Cost(wait, prefill)))
        rows.sort(key=itemgetter(0, 1, 2))
        return Decision([Candidate(workers[place], cost) for _, _, place, cost in rows], "load")

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Do nothing: the worker's load has the booking."""

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Do nothing: the worker's load has the booking."""

    def forget(self, worker: str) -> None:
        """Do nothing: no cache contents are remembered."""

    def gauges(self) -> Mapping[str, float]:
        """Return nothing: no cache contents are remembered."""
        return {}
