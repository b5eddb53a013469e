"""`roundrobin`: workers in turn, evenly even while workers come and go."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from strategies.api import (
    FREE,
    Candidate,
    Capabilities,
    Decision,
    KvSources,
    NoOptions,
    Outcome,
    Prompt,
    WorkerView,
    nothing,
)

#: Most workers whose last turn is remembered.
MAX_WORKERS: Final = 10_000


class RoundRobin:
    """Picks the worker whose last turn is longest ago, not an index into a list that may change."""

    Options: ClassVar[type[Any]] = NoOptions
    capabilities: Capabilities = Capabilities(reads_prompt=False, reads_load=False)
    kv: KvSources | None = None

    def __init__(self, options: NoOptions) -> None:
        del options
        self._turns: dict[str, int] = {}
        self._clock = 0

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Put the least recently chosen worker first; a new worker has never been chosen."""
        turns = self._turns
        order = sorted(workers, key=lambda worker: turns.get(worker.name, 0))
        return Decision([Candidate(worker, FREE) for worker in order], "turn")

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Note that `worker` has had its turn."""
        self._clock += 1
        turns = self._turns
        turns[worker.name] = self._clock
        if len(turns) > MAX_WORKERS:  # mostly names of workers that are long gone
            for name in sorted(turns, key=turns.__getitem__)[: MAX_WORKERS // 2]:
                del turns[name]

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Do nothing: outcomes do not matter here."""

    def forget(self, worker: str) -> None:
        """Do nothing: a worker that lost its cache keeps its turn."""

    def waits(self, prompt: Prompt) -> Callable[[], object]:
        """Do nothing: those that wait have no turn yet."""
        return nothing

    def gauges(self) -> Mapping[str, float]:
        """Return nothing: there are no sizes worth watching."""
        return {}

    def dump_state(self) -> bytes:
        """Return nothing: another process may start its turns anywhere."""
        return b""

    def restore_state(self, data: bytes) -> str:
        """Take over nothing."""
        return f"{len(data)} bytes"

    def known_workers(self) -> Iterable[str]:
        """Return nothing: names of workers that left are dropped in time."""
        return ()
