"""`chbl`: consistent hashing with bounded loads, on the first part of a prompt.

Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads" (SODA 2018), with
rendezvous hashing in place of a ring (Thaler, Ravishankar 1998). It keeps no state: many routers
that do not communicate send a prefix to the same worker, and a worker that joins takes over its
share of the prefixes and moves no others. It considers neither what a cache holds nor how long a
prompt is, so a single router does better with `prefixaware`.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from xxhash import xxh3_64_intdigest

from strategies.api import FREE, Candidate, Decision, Prompt, Strategy, WorkerView, option
from strategies.constants import MAX_LOAD_FACTOR


@dataclass(frozen=True)
class ChblOptions:
    """What an operator may set."""

    prefix: int = option(
        1024,
        "Tokens at the start of a prompt that choose its worker; more than the system prompt that "
        "all share, or all would go to one worker.",
    )

    def __post_init__(self) -> None:
        if self.prefix < 1:
            raise ValueError(f"prefix must be at least 1, not {self.prefix}")


class Chbl(Strategy):
    """Picks the first worker in the prefix's hash order that is below the bound."""

    Options: ClassVar[type[Any]] = ChblOptions

    def __init__(self, options: ChblOptions) -> None:
        self._prefix = options.prefix

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Put workers below the bound first, then the others, both in the prefix's hash order."""
        keys, key = prompt.keys, 0
        if keys:  # that of the block where the prefix ends: it covers all blocks up to there
            depth = bisect_left(prompt.ends, self._prefix / prompt.unit_tokens, 1, len(keys))
            key = keys[depth - 1]
        order = sorted(workers, key=lambda worker: xxh3_64_intdigest(worker.name.encode(), key))
        flying = sum(worker.load.in_flight for worker in workers)
        bound = MAX_LOAD_FACTOR * (flying + 1) / len(workers)
        reason = "prefix" if order[0].load.in_flight < bound else "spill"
        order.sort(key=lambda worker: worker.load.in_flight >= bound)
        return Decision([Candidate(worker, FREE) for worker in order], reason)
