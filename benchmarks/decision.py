"""The cost of a routing decision: `python -m benchmarks.decision`.

Measures the CPU microseconds to turn a prompt into keys, to rank the workers and to record the
placement, for several prompt lengths and fleet sizes, with the ratio to the smallest case of the
same run. Every worker is busy, so that every term of the cost is computed. The microseconds depend
on the machine's speed; the ratios do not.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from time import process_time

from rich.console import Console
from rich.progress import track
from rich.table import Table

from strategies.base import Prompt, Strategy
from strategies.blocks import TEXT_ENDS, chain, root_key
from strategies.load import Load
from strategies.pace import Curve, Pace
from strategies.registry import make

SIZES = (400, 8_700, 35_000, 261_000)
FLEETS = (8, 64, 500)
ROUNDS = 200
#: Prompts placed beforehand, so that the tree is not empty and has half of each new prompt.
KNOWN = 200
#: Requests decoding on every worker, besides one in prefill.
DECODING = 4
#: Seconds between two decisions.
APART_S = 0.001


@dataclass(eq=False)
class Stand:
    """A worker as a strategy sees it."""

    name: str
    load: Load = field(default_factory=Load)
    pace: Pace = field(default_factory=Pace)
    kv_tokens: int | None = 400_000
    room_tokens: int | None = 400_000


def main() -> None:
    """Measure and print the table."""
    table = Table(title="CPU µs a decision (prefixaware)")
    for heading in ("prompt bytes", "workers", "keys", "rank", "record", "sum", "ratio"):
        table.add_column(heading, justify="right")
    first = 0.0
    cases = [(size, count) for count in FLEETS for size in SIZES]
    for size, count in track(cases, "Measuring", console=Console(stderr=True), transient=True):
        costs = measured(size, count)
        first = first or sum(costs)
        cells = [*costs, sum(costs)]
        table.add_row(
            f"{size:,}", str(count), *(f"{c:.1f}" for c in cells), f"{sum(costs) / first:.1f}x"
        )
    Console().print(table)


def measured(size: int, count: int) -> tuple[float, float, float]:
    """CPU microseconds for keys, rank and record: a prompt of `size` bytes, `count` workers."""
    chance = random.Random(size + count)
    curve = Curve()  # shared by the workers of a pool
    workers = [_busy(Stand(f"w{number}", pace=Pace(curve))) for number in range(count)]
    strategy: Strategy = make("prefixaware", {})
    head = chance.randbytes(size // 2)
    for number in range(KNOWN):
        text = (head if number % 2 else b"") + chance.randbytes(size // 2)
        strategy.placed(_prompt(text), workers[number % count], 0.0)
    texts = [head + chance.randbytes(size - size // 2) for _ in range(ROUNDS)]
    prompts: list[Prompt] = []
    keys = _cpu(lambda: prompts.extend(map(_prompt, texts)))
    rank = _cpu(lambda: _rank_all(strategy, prompts, workers))
    record = _cpu(lambda: _place_all(strategy, prompts, workers[0]))
    return keys, rank, record


def _busy(worker: Stand) -> Stand:
    """Give the worker requests that decode and one in prefill, so that it has a wait."""
    for _ in range(DECODING):
        worker.load.first_byte(worker.load.book(0.0, 0.5, 8_000), 0.0)
    worker.load.book(0.0, 0.5, 8_000)
    return worker


def _rank_all(strategy: Strategy, prompts: list[Prompt], workers: list[Stand]) -> None:
    """Rank the prompts at advancing times, because a strategy updates its state over time."""
    for number, prompt in enumerate(prompts, 1):
        strategy.rank(prompt, workers, number * APART_S)


def _place_all(strategy: Strategy, prompts: list[Prompt], worker: Stand) -> None:
    for prompt in prompts:
        strategy.placed(prompt, worker, 0.0)


def _prompt(text: bytes) -> Prompt:
    keys = chain(root_key("CHAT", "model", ""), text)
    return Prompt("model", len(text) // 4, keys, TEXT_ENDS, 0.25)


def _cpu(work: Callable[[], object]) -> float:
    """CPU microseconds of `work`, divided by `ROUNDS`."""
    began = process_time()
    work()
    return (process_time() - began) / ROUNDS * 1e6


if __name__ == "__main__":
    main()
