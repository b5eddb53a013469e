"""`session`: keeps a session on its worker; another strategy, below it, decides everything else.

The bindings are stored elsewhere: `Prompt.bound` names the worker of the request's session. The
strategy below chooses where a session starts, and its costs compare staying with moving.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from xxhash import xxh3_64_intdigest

from strategies.api import (
    Capabilities,
    Decision,
    KvSources,
    Other,
    Prompt,
    Seconds,
    WorkerView,
    option,
)
from strategies.cost.cost import led_by
from strategies.registry import make


@dataclass(frozen=True)
class SessionOptions:
    """What an operator may set."""

    over: Other = option(
        Other("prefixaware"),
        "Strategy that chooses a session's worker, and serves requests without a session.",
    )
    spill: Seconds | None = option(
        None,
        "A session moves when another worker would answer sooner by more than this; `off`: it "
        "stays however long the queue.",
    )

    def __post_init__(self) -> None:
        """Refuse `session` as the strategy below."""
        if self.over.name == "session":
            raise ValueError("over: must be another strategy than session itself")


class Session:
    """Keeps the requests of a session on one worker."""

    Options: ClassVar[type[Any]] = SessionOptions

    def __init__(self, options: SessionOptions) -> None:
        below = make(options.over.name, dict(options.over.options))
        self._spill, self._rank = options.spill, below.rank
        self.capabilities: Capabilities = replace(
            below.capabilities, keeps_sessions=True, moves_sessions=options.spill is not None
        )
        self.kv: KvSources | None = below.kv
        self.placed, self.settled, self.waits = below.placed, below.settled, below.waits
        self.forget, self.gauges, self.dump_state = below.forget, below.gauges, below.dump_state
        self.restore_state, self.known_workers = below.restore_state, below.known_workers

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Put the session's worker first, unless moving pays; the rest as the strategy below."""
        decision = self._rank(prompt, workers, now)
        if prompt.bound is None:
            return decision
        ranked = decision.candidates
        if not prompt.bound:
            return Decision(ranked, "bind")
        led = led_by(ranked, prompt.bound)
        if led is None:
            return Decision(ranked, "rebind")
        more = led[0].cost.total - ranked[0].cost.total
        if self._spill is not None and more > self._spill:
            return Decision(ranked, "spill", drawn=decision.drawn)
        return Decision(led, "session", stays=self._spill is None)


def owner(key: str, names: Iterable[str]) -> str:
    """Return the name that `key` belongs to, in every process. Raises ValueError if there is none.

    By rendezvous hashing (Thaler and Ravishankar 1998): when a name goes, only its keys move.
    """
    text = key.encode()
    return max(
        names, key=lambda name: (xxh3_64_intdigest(text, xxh3_64_intdigest(name.encode())), name)
    )
