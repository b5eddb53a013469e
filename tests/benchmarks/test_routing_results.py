"""Measurements of routing are compared with the right goals, and the page shows them."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.routing.__main__ import main
from benchmarks.routing.columns import Cell, Column, chosen, columns, elsewhere, means
from benchmarks.routing.policies import POOLED
from benchmarks.routing.results import goals

(MIXED,) = chosen(["mixed"], columns(None))


def cell(column: Column, policy: str, ttft_s: float = 1.0, seed: int = 1) -> Cell:
    """Return the results of one policy."""
    return Cell(column.name, policy, seed, 100, ttft_s, ttft_s, ttft_s, ttft_s, 10.0, 0.3, 1.1)


@pytest.mark.parametrize(
    ("name", "field"),
    [("mean TTFT", "ttft_s"), ("p99 TTFT", "ttft_p99_s"), ("mean end to end", "e2e_s")],
)
def test_a_goal_is_against_the_best_peer(name: str, field: str) -> None:
    """By the mean over seeds; our own policies and bounds are no peers."""

    def goal(value: float) -> tuple[float, str, bool]:
        cells = [
            *(replace(cell(MIXED, "prefixaware", seed=n), **{field: value + n}) for n in (-1, 1)),
            replace(cell(MIXED, "random"), **{field: 2.0}),
            replace(cell(MIXED, "round robin"), **{field: 3.0}),
            *(replace(cell(MIXED, one), **{field: 0.1}) for one in ("leastload", POOLED)),
        ]
        (found,) = (
            one
            for one in goals(means(cells), [MIXED])
            if (one.name, one.where, one.against) == (name, "mixed", "random")
        )
        return found.value, found.against, found.met

    assert goal(1.5) == (0.75, "random", True)
    assert goal(4.0) == (2.0, "random", False)


def test_a_goal_holds_on_each_engine() -> None:
    """A column of another engine is judged by that engine's peers."""
    other = elsewhere(MIXED)[0]
    cells = [cell(one, "random") for one in (MIXED, other)]
    cells += [cell(MIXED, "prefixaware", 0.5), cell(other, "prefixaware", 2.0)]
    met = {
        goal.where: goal.met
        for goal in goals(means(cells), [MIXED, other])
        if goal.name == "mean TTFT" and goal.where in {MIXED.name, other.name}
    }
    assert met == {MIXED.name: True, other.name: False}


@pytest.mark.long
def test_only_judging_writes_the_page(tmp_path: Path) -> None:
    """Numbers are written always; the page names the seeds, and has a picture."""
    pytest.importorskip("matplotlib")
    numbers, page = tmp_path / "r.json", tmp_path / "RESULTS.md"
    given: dict[str, Any] = {"column": ["documents"], "policy": ["prefixaware", "round robin"]}
    main(**given, json_file=numbers, page=page, jobs=2)
    assert json.loads(numbers.read_text())["seeds"] == [1, 2, 3]
    assert not page.exists()
    main(**given, json_file=numbers, page=page, judge=7)
    judged = json.loads(numbers.read_text())
    assert {one["column"] for one in judged["cells"]} >= {"documents", "documents, slow card"}
    assert str(judged["seeds"][0]) in page.read_text()
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
