"""The worked example of docs/routing.md: `python -m benchmarks.example`.

Two workers, one prompt: prints every term of the cost, and what changes with more work booked on
one of them, and with a busier fleet.
"""

import typer

from benchmarks.decision import WorkerStub
from strategies.api import Candidate, Prompt
from strategies.constants import SMOOTHED_S
from strategies.cost.cost import Costs
from strategies.cost.load import Load
from strategies.cost.prefill import Curve, Pace

#: Any moment, long after the start; seconds.
NOW = 1e4
#: Tokens of the prompt, of its answer, and of the part that worker A holds.
PROMPT_TOKENS, ANSWER_TOKENS, CACHED_TOKENS = 8_000, 256, 7_500
#: Tokens of each KV cache.
KV_TOKENS = 400_000
#: Workers of the fleet, and the share of recent prompt tokens that some worker held.
WORKERS, REUSED_SHARE = 4, 0.6


def worker_stub(
    name: str, *, wait_s: float, decoding: int, kv_tokens: int, busy: float
) -> WorkerStub:
    """Return a worker where a request waits for `wait_s`, busy for the share `busy` of the time.

    It is twice as fast as the first guess, as an H100 is.
    """
    curve = Curve()
    curve.factor = curve.growth = 0.5
    load = Load()
    worker = WorkerStub(name, load, Pace(curve))
    worker.load.promises.append((0.0, wait_s))
    load.decoding, load.kv_tokens = decoding, kv_tokens
    load.given_s, load.given_at = busy * SMOOTHED_S, NOW
    return worker


def ranked(booked_s: float, busy: int) -> list[Candidate]:
    """Return A and B, cheapest first, with `booked_s` of prefill booked on A.

    `busy` of the fleet's workers have prefill to do.
    """
    costs, fleet = Costs(), [WorkerStub(f"w{number}") for number in range(WORKERS)]
    for worker in fleet[:busy]:
        worker.load.book(0.0, 1.0)
    for tenths in range(4_000, 0, -1):  # long enough for the shares to settle
        prompt = Prompt("model", 10_000)
        costs.rank(prompt, fleet, NOW - tenths / 10, {"w0": int(10_000 * REUSED_SHARE)})
        costs.placed(prompt, NOW - tenths / 10)
    workers = [
        worker_stub("A", wait_s=booked_s, decoding=10, kv_tokens=120_000, busy=0.25),
        worker_stub("B", wait_s=0.0, decoding=5, kv_tokens=60_000, busy=0.1),
    ]
    prompt = Prompt("model", PROMPT_TOKENS, answer_tokens=ANSWER_TOKENS)
    return list(costs.rank(prompt, workers, NOW, {"A": CACHED_TOKENS}))


def row(candidate: Candidate) -> str:
    """Return the terms of one worker as a row of a Markdown table."""
    name, held = candidate.worker.name, candidate.held_tokens
    terms = " | ".join(f"{seconds:.2f}" for seconds in candidate.cost)
    return f"| {name}, holds {held:,} | {terms} | {candidate.cost.total:.2f} |"


def main() -> None:
    """Print the table, and the totals of the other cases."""
    first = ranked(0.2, busy=1)
    print(f"| | {' | '.join(first[0].cost._fields)} | cost |")
    print("|---" * (len(first[0].cost) + 2) + "|")
    for candidate in sorted(first, key=lambda one: one.worker.name):
        print(row(candidate))
    for what, booked_s, busy in (
        ("3 s booked on A", 3.0, 1),
        ("3 s booked on A, three quarters of the fleet busy", 3.0, 3),
    ):
        best, other = ranked(booked_s, busy)
        print(f"{what}: {best.worker.name} wins, {best.cost.total:.2f} against", end=" ")
        print(f"{other.cost.total:.2f}")


if __name__ == "__main__":
    typer.run(main)
