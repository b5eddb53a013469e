"""Workers as a strategy sees them, and prompts that are placed on them."""

from dataclasses import dataclass, field

from strategies.api import Prompt, Strategy
from strategies.cost.load import Load
from strategies.cost.prefill import Pace
from strategies.prefix.block_keys import TEXT_ENDS, chain
from strategies.registry import make


@dataclass(eq=False)
class Stand:
    """A worker as a strategy sees it."""

    name: str
    load: Load = field(default_factory=Load)
    pace: Pace = field(default_factory=Pace)
    kv_tokens: int | None = 400_000
    room_tokens: int | None = 400_000


def fleet(count: int) -> list[Stand]:
    """Workers w0, w1, …"""
    return [Stand(f"w{number}") for number in range(count)]


def untold(name: str = "w", kv_tokens: int | None = None) -> Stand:
    """A worker that tells nothing of its GPU's KV cache."""
    return Stand(name, kv_tokens=kv_tokens, room_tokens=None)


def prompt(text: str, answer_tokens: int = 100) -> Prompt:
    """A prompt of this text at four bytes a token."""
    data = text.encode()
    return Prompt("m", len(data) // 4, chain(0, data), TEXT_ENDS, 0.25, answer_tokens, stream=True)


class Run:
    """Places prompts as the router does; the clock stands still unless `now` is given."""

    def __init__(self, strategy: str, workers: list[Stand]) -> None:
        self.strategy: Strategy = make(strategy, {})
        self.workers = workers
        self.turn = 0

    def place(self, asked: Prompt, now: float = 0.0, *, book: bool = True) -> Stand:
        choice = self.strategy.rank(asked, self.workers, now).candidates[0]
        worker = next(w for w in self.workers if w.name == choice.worker.name)
        self.turn += 1
        worker.load.turn = self.turn
        if book:
            worker.load.book(now, choice.cost.prefill, asked.tokens + asked.answer_tokens)
        self.strategy.placed(asked, worker, now)
        return worker


LONG = "the same long document " * 2000
