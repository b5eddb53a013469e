"""`prefixaware`: a prompt goes where its prefix went before, unless waiting there costs more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from strategies.base import Bytes, Candidate, Decision, Outcome, Prompt, WorkerView
from strategies.cost import cheapest_first, cost, held_tokens
from strategies.prefixtree import Placement, PrefixTree


@dataclass(frozen=True)
class PrefixAwareOptions:
    """What an operator may set."""

    memory: Bytes = field(
        default=Bytes(64 << 20),
        metadata={"doc": "Bound of the prefix tree in memory; the oldest prefixes go first."},
    )


class PrefixAware:
    """The default strategy. Believes that a worker holds what this router sent it last."""

    Options: ClassVar[type[Any]] = PrefixAwareOptions
    reads_prompt: ClassVar[bool] = True

    def __init__(self, options: PrefixAwareOptions) -> None:
        self._tree = PrefixTree(options.memory)
        # By prompt and worker: no more than there are requests in flight.
        self._placed: dict[tuple[int, str], Placement] = {}

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Cheapest worker first, each credited with the blocks it was sent."""
        held = self._tree.held(prompt.keys)
        if not held:
            cold = [Candidate(worker, cost(prompt, worker, 0, now)) for worker in workers]
            return Decision(cheapest_first(cold), "cold")
        candidates, most = [], 0
        for worker in workers:
            tokens = held_tokens(prompt, held.get(worker.name, 0))
            most = max(most, tokens)
            candidates.append(Candidate(worker, cost(prompt, worker, tokens, now), tokens))
        candidates = cheapest_first(candidates)
        return Decision(candidates, _reason(candidates[0].held_tokens, most))

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Count the placement at once: a burst of siblings finds its first."""
        room = worker.kv_tokens
        capacity = None if room is None else int(room / prompt.unit_tokens)
        placement = self._tree.insert(prompt.keys, worker.name, capacity, prompt.ends)
        self._placed[id(prompt), worker.name] = placement

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Take back what was placed on a worker that refused it."""
        worker = candidate.worker.name
        placement = self._placed.pop((id(prompt), worker), None)
        if placement and not outcome.began:
            self._tree.take_back(prompt.keys, worker, placement)

    def forget(self, worker: str) -> None:
        """Drop the worker's prefixes."""
        self._tree.forget(worker)

    def gauges(self) -> Mapping[str, float]:
        """Size of the tree."""
        return {"prefix_tree_blocks": len(self._tree), "prefix_tree_bytes": self._tree.bytes}


def _reason(held: int, most: int) -> str:
    """`cold`: nobody holds any. `prefix`: the best holder won. `spill`: load outweighed it."""
    if most == 0:
        return "cold"
    return "prefix" if held == most else "spill"
