"""`chbl`: consistent hashing with bounded loads, on the first part of a prompt.

Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads" (SODA 2018), with
rendezvous hashing in place of a ring (Thaler, Ravishankar 1998). Nothing is remembered: many
routers that know nothing of each other send one prefix to the same worker, and one that joins
takes its share of the prefixes and moves no other. It sees neither what a cache holds nor how long
a prompt is, so a router that stands alone does better with `prefixaware`.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from xxhash import xxh3_64_intdigest

from strategies.base import FREE, Candidate, Decision, Outcome, Prompt, WorkerView

#: How many times the mean number of requests a worker may have and still be sent more.
BOUND = 1.25


@dataclass(frozen=True)
class ChblOptions:
    """What an operator may set."""

    prefix: int = field(
        default=1024,
        metadata={
            "doc": "Tokens at the start of a prompt that choose its worker; more than the system "
            "prompt that all share, or all would go to one worker."
        },
    )

    def __post_init__(self) -> None:
        if self.prefix < 1:
            raise ValueError(f"prefix must be at least 1, not {self.prefix}")


class Chbl:
    """The first worker in the prefix's own order that is not above the bound."""

    Options: ClassVar[type[Any]] = ChblOptions
    reads_prompt: ClassVar[bool] = True

    def __init__(self, options: ChblOptions) -> None:
        self._prefix = options.prefix

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Those within the bound first, each part in the order of the prefix."""
        key = self._key(prompt)
        order = sorted(workers, key=lambda worker: xxh3_64_intdigest(worker.name.encode(), key))
        flying = sum(worker.load.in_flight for worker in workers)
        bound = BOUND * (flying + 1) / len(workers)
        within = [worker for worker in order if worker.load.in_flight < bound]
        beyond = [worker for worker in order if worker.load.in_flight >= bound]
        reason = "prefix" if within and within[0] is order[0] else "spill"
        return Decision([Candidate(worker, FREE) for worker in (*within, *beyond)], reason)

    def _key(self, prompt: Prompt) -> int:
        """Return the key of the block where the prefix ends; a chained key names all before it."""
        if not prompt.keys:
            return 0
        depth = bisect_left(prompt.ends, self._prefix / prompt.unit_tokens, 1, len(prompt.keys))
        return prompt.keys[depth - 1]

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """The booking itself is all there is to know."""

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """The booking itself is all there is to know."""

    def forget(self, worker: str) -> None:
        """Nothing is remembered."""

    def gauges(self) -> Mapping[str, float]:
        """Nothing is kept."""
        return {}
