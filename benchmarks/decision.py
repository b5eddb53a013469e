"""What a decision costs: `python -m benchmarks.decision`.

CPU microseconds to turn a prompt into keys, to rank the workers and to record the placement, for
several prompt lengths and fleet sizes, with the ratio to the smallest case of the same run. The
machine's speed moves the microseconds; the ratios hold.
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
#: Prompts that were sent before: the tree is not empty, and half of a new prompt is in it.
KNOWN = 200


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
    curve = Curve()  # a pool's workers share one
    workers = [Stand(f"w{number}", pace=Pace(curve)) for number in range(count)]
    strategy: Strategy = make("prefixaware", {})
    head = chance.randbytes(size // 2)
    for number in range(KNOWN):
        text = (head if number % 2 else b"") + chance.randbytes(size // 2)
        strategy.placed(_prompt(text), workers[number % count], 0.0)
    texts = [head + chance.randbytes(size - size // 2) for _ in range(ROUNDS)]
    prompts: list[Prompt] = []
    keys = _cpu(lambda: prompts.extend(map(_prompt, texts)))
    rank = _cpu(lambda: [strategy.rank(prompt, workers, 0.0) for prompt in prompts])
    record = _cpu(lambda: _place_all(strategy, prompts, workers[0]))
    return keys, rank, record


def _place_all(strategy: Strategy, prompts: list[Prompt], worker: Stand) -> None:
    for prompt in prompts:
        strategy.placed(prompt, worker, 0.0)


def _prompt(text: bytes) -> Prompt:
    keys = chain(root_key("CHAT", "model", ""), text)
    return Prompt("model", len(text) // 4, keys, TEXT_ENDS, 0.25)


def _cpu(work: Callable[[], object]) -> float:
    """Microseconds of CPU for one of `ROUNDS`."""
    began = process_time()
    work()
    return (process_time() - began) / ROUNDS * 1e6


if __name__ == "__main__":
    main()
