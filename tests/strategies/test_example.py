"""The example in docs/routing.md: its numbers are those that the cost function returns."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from strategies.base import Candidate, Prompt
from strategies.cost import Costs
from strategies.load import BACK_S, Load
from strategies.pace import Curve, Pace

PAGE = (Path(__file__).parents[2] / "docs" / "routing.md").read_text()
EXAMPLE = PAGE.split("### An example")[1].split("\n## ")[0]
NOW = 1e4
CURVE = Curve()
CURVE.factor = CURVE.growth = 0.5


@dataclass(eq=False)
class Stand:
    """A worker as a strategy sees it."""

    name: str
    load: Load = field(default_factory=Load)
    pace: Pace = field(default_factory=lambda: Pace(CURVE))
    kv_tokens: int | None = 400_000
    room_tokens: int | None = 400_000


def stand(name: str, *, wait_s: float, decoding: int, kv_tokens: int, busy: float) -> Stand:
    """Return a worker with this work booked, that was busy for the share `busy` of the time."""
    worker = Stand(name)
    load = worker.load
    load.promises.append((0.0, wait_s))
    load.decoding, load.kv_tokens = decoding, kv_tokens
    load.given_s, load.given_at = busy * BACK_S, NOW
    return worker


def ranked(wait_s: float = 0.3, busy: int = 1) -> list[Candidate]:
    """Return A and B, cheapest first, with `busy` of four workers having prefill to do."""
    costs, fleet = Costs(), [Stand(f"w{number}") for number in range(4)]
    for worker in fleet[:busy]:
        worker.load.book(0.0, 1.0)
    for tenths in range(4_000, 0, -1):  # long enough for the shares to settle
        prompt = Prompt("model", 10_000)  # (the initial belief still counts a little)
        costs.rank(prompt, fleet, NOW - tenths / 10, {"w0": 6_018})
        costs.placed(prompt, NOW - tenths / 10)
    workers = [
        stand("A", wait_s=wait_s, decoding=10, kv_tokens=120_000, busy=0.4),
        stand("B", wait_s=0.0, decoding=5, kv_tokens=60_000, busy=0.2),
    ]
    prompt = Prompt("model", 8_000, answer_tokens=256)
    return list(costs.rank(prompt, workers, NOW, {"A": 7_500}))


def test_the_table_is_what_it_comes_to() -> None:
    """The table shows every cost term of both workers; the cheaper worker is the first
    candidate."""
    rows = re.findall(r"^\| (\w), holds .*?\|(.*)\|$", EXAMPLE.replace("*", ""), re.MULTILINE)
    told = {name: [float(number) for number in row.split("|")] for name, row in rows}
    found = ranked()
    assert [candidate.worker.name for candidate in found] == ["A", "B"]
    for candidate in found:
        cost = candidate.cost
        terms = [cost.wait, cost.prefill, cost.price, cost.decode, cost.room, cost.home]
        assert told[candidate.worker.name] == pytest.approx([*terms, cost.total], abs=5e-4)


@pytest.mark.parametrize(("busy", "first"), [(1, "B"), (3, "A")])
def test_so_are_the_other_cases(busy: int, first: str) -> None:
    """The same for more work booked on A, in the same fleet and in a busier one."""
    best, other = ranked(3.0, busy)
    assert best.worker.name == first
    assert f"{best.cost.total:.3f} against {other.cost.total:.3f}" in " ".join(EXAMPLE.split())
