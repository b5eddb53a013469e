"""`prefixaware`: a prompt goes where its prefix was sent before, unless waiting costs more."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from strategies.api import (
    Bytes,
    Candidate,
    Capabilities,
    Decision,
    KvSources,
    Outcome,
    Prompt,
    WorkerView,
)
from strategies.constants import SLACK
from strategies.cost.cost import Costs, held_tokens
from strategies.prefix.block_keys import FINENESS
from strategies.prefix.dump import dump, restore
from strategies.prefix.tree import Placement, PrefixTree

#: If blocks are bytes, a report confirms a prediction from which it differs by no more than this
#: share: what a prompt has in common with others may end within a block, and tokens per byte differ
#: from part to part of a prompt.
ROUGHLY: Final = 2 / FINENESS


@dataclass(frozen=True)
class PrefixAwareOptions:
    """What an operator may set."""

    memory: Bytes = field(
        default=Bytes(64 << 20),
        metadata={"doc": "Most memory for the prefix tree; the oldest prefixes go first."},
    )


class PrefixAware:
    """The default strategy: assumes that a worker holds what this router sent it most recently."""

    Options: ClassVar[type[Any]] = PrefixAwareOptions
    capabilities: Capabilities = Capabilities(hears_others=True, keeps_state=True)
    kv: KvSources | None = None

    def __init__(self, options: PrefixAwareOptions) -> None:
        self.tree = PrefixTree(options.memory)
        self.costs = Costs()
        # By prompt and worker; only requests in flight have an entry.
        self._placed: dict[tuple[int, str], Placement] = {}

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Put the cheapest worker first; each is credited with the blocks it was sent."""
        match = self.tree.match(prompt.keys)
        held, tokens = dict[str, int](), dict[int, int]()
        for name, blocks in match.held().items():
            if blocks not in tokens:  # many workers hold the same number
                tokens[blocks] = held_tokens(prompt, blocks)
            held[name] = tokens[blocks]
        candidates = self.costs.rank(prompt, workers, now, held, match=match)
        most = max([held.get(worker.name, 0) for worker in workers]) if held else 0
        return Decision(candidates, reason(candidates[0].held_tokens, most))

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Count the placement at once, so that the second request of a burst finds the first."""
        self.costs.placed(prompt, now)
        name, gpu_only = worker.name, worker.kv_tokens is None
        capacity = worker.room_tokens if gpu_only else worker.kv_tokens
        keys, ends, unit = prompt.keys, prompt.ends, prompt.unit_tokens
        tail = max(0.0, prompt.tokens - ends[len(keys)] * unit)
        self._placed[id(prompt), name] = self.tree.insert(
            keys, name, capacity, ends, unit, tail=tail, gpu_only=gpu_only
        )
        worker.load.share(self.tree.shared(name), now)

    def waits(self, prompt: Prompt) -> Callable[[], object]:
        """Count a request that is held in the router, until the returned function is called."""
        return self.tree.wait(prompt.keys)

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Learn from what the worker reported, and take back what it refused."""
        self.end(prompt, candidate, outcome, now, corrects=True)

    def end(
        self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float, *, corrects: bool
    ) -> None:
        """End a request; reported cached tokens are learned from only if that `corrects`."""
        worker, tree = candidate.worker, self.tree
        placement = self._placed.pop((id(prompt), worker.name), None)
        if placement is None:
            return
        tree.close(placement, outcome.answer_tokens or 0)
        worker.load.share(tree.shared(worker.name), now)
        cached = outcome.cached_tokens
        if not outcome.began:
            tree.take_back(placement)
        elif outcome.kept_tokens is not None:
            tree.keep(placement, prompt.blocks_in(outcome.kept_tokens))
        elif corrects and cached is not None and prompt.keys and not prompt.resumed:
            held, length = candidate.held_tokens, outcome.prompt_tokens
            tree.correct(placement, fewer=_is_fewer(prompt, held, cached, length))

    def forget(self, worker: str) -> None:
        """Drop the worker's prefixes."""
        self.tree.forget(worker)

    def dump_state(self) -> bytes:
        """Return the tree as bytes, for the next router process to start with."""
        return dump(self.tree)

    def restore_state(self, data: bytes) -> str:
        """Start with what another process left; return a description of it. Raise BadDump."""
        restore(self.tree, data)
        return f"it goes on with {len(self.tree)} blocks of prefixes that were left for it"

    def known_workers(self) -> Iterable[str]:
        """Return the name of every worker that has prefixes here."""
        return [shadow.worker for shadow in self.tree.shadows()]

    def gauges(self) -> Mapping[str, float]:
        """Return the size of the tree."""
        return {"prefix_tree_blocks": len(self.tree), "prefix_tree_bytes": self.tree.bytes}


def _is_fewer(prompt: Prompt, held: int, cached: int, reported: int | None) -> bool:
    """Return true if fewer tokens were cached than `held`, as predicted.

    `reported` is the length of the prompt by its worker. If that is not as estimated, what was held
    may be off by as much (some text has twice as many bytes to a token as other), or not at all (if
    only the rest is of another kind), so all between counts as predicted.
    """
    in_proportion = held * reported // prompt.tokens if reported and prompt.tokens else held
    slack = max(SLACK, 0 if prompt.unit_tokens == 1.0 else ROUGHLY * max(held, in_proportion))
    return cached < min(held, in_proportion) - slack


def reason(held: int, most: int) -> str:
    """Return `cold` (nothing is held), `prefix` (the best holder won) or `spill` (it did not)."""
    if most == 0:
        return "cold"
    return "prefix" if held == most else "spill"
