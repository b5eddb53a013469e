"""Goals: measurements are compared with the right numbers, and the page shows them."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer import BadParameter

from benchmarks.decision import measured
from benchmarks.routing.__main__ import main
from benchmarks.routing.columns import Cell, Column, chosen, columns, elsewhere, means
from benchmarks.routing.policies import POOLED, POOLED_SHORTEST
from benchmarks.routing.results import (
    Goal,
    Results,
    decisions,
    goals,
    markdown,
    plot,
    sheets,
    terminal,
    write,
)
from benchmarks.routing.workloads import Ideal
from strategies.api import Decision
from strategies.policies.prefix_aware import PrefixAware

(MIXED,) = chosen(["mixed"], columns(None))
#: A column whose trace is not at hand.
X2 = MIXED._replace(workload="conversation x2")


def cell(column: Column, policy: str, ttft_s: float = 1.0, **others: float) -> Cell:
    """Return the results of one policy."""
    made = Cell(column.name, policy, 1, 100, ttft_s, ttft_s, ttft_s, ttft_s, 10.0, 0.3, 1.1)
    return replace(made, **others)


def judged(column: Column, *cells: Cell) -> list[Goal]:
    """Return the goals that can be judged by these cells."""
    return goals(means(cells), [column])


def named(several: list[Goal], name: str, where: str = "", against: str = "") -> Goal:
    """Return the only goal of that name, about `where`, against `against`."""
    (goal,) = (
        one
        for one in several
        if (one.name, where or one.where, against or one.against) == (name, one.where, one.against)
    )
    return goal


@pytest.mark.parametrize(
    ("name", "field", "bound"),
    [
        ("mean TTFT", "ttft_s", 1.05),
        ("p99 TTFT", "ttft_p99_s", 1.15),
        ("mean end to end", "e2e_s", 1.05),
    ],
)
@pytest.mark.parametrize("policy", ["prefixaware", "kvaware"])
def test_against_the_best_peer(name: str, field: str, bound: float, policy: str) -> None:
    """Each number by itself; our own policies, bounds and ideals are no peers."""
    for value, met in ((2.0 * bound - 0.01, True), (2.0 * bound + 0.01, False)):
        reached = judged(
            MIXED,
            replace(cell(MIXED, policy), **{field: value}),
            replace(cell(MIXED, "random"), **{field: 2.0}),
            replace(cell(MIXED, "round robin"), **{field: 3.0}),
            *(replace(cell(MIXED, one), **{field: 0.1}) for one in ("leastload", POOLED)),
            replace(cell(MIXED, "steps end at once"), **{field: 0.1}),
        )
        goal = named(reached, name, "mixed")
        assert goal.value == pytest.approx(value / 2.0)
        assert (goal.bound, goal.against, goal.met) == (bound, "random", met)


def test_on_other_engines_too() -> None:
    """A column by its engine's peers."""
    other = elsewhere(MIXED)[0]
    cells = [cell(one, "random") for one in (MIXED, other)]
    cells += [cell(MIXED, "prefixaware", 0.5), cell(other, "prefixaware", 2.0)]
    reached = goals(means(cells), [MIXED, other])
    assert named(reached, "mean TTFT", MIXED.name).met
    assert not named(reached, "mean TTFT", other.name).met
    both = named(reached, "mean TTFT", "geometric mean of 2 columns")
    assert both.value == pytest.approx(1.0)
    assert not both.met


def test_against_the_better_pooled_bound() -> None:
    """Only where a number is set."""
    cells = [cell(X2, POOLED, 2.0), cell(X2, POOLED_SHORTEST, 1.0), cell(X2, "kvaware", 1.07)]
    goal = named(judged(X2, *cells), "mean TTFT")
    assert (goal.bound, goal.against, goal.met) == (1.08, POOLED_SHORTEST, True)
    assert judged(MIXED, cell(MIXED, POOLED), cell(MIXED, "kvaware")) == []


def test_decisions_are_measured() -> None:
    """Each fleet has its own number and bound; the numbers are those of the current machine."""
    reached = decisions()
    assert [goal.where for goal in reached] == ["8 workers", "64 workers", "500 workers"]
    assert 0 < reached[0].value < reached[-1].value


def test_a_decision_is_measured_among_busy_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker has work booked, so that no cost term is skipped."""
    made: list[Decision] = []
    rank = PrefixAware.rank

    def kept(*given: Any) -> Decision:
        made.append(rank(*given))
        return made[-1]

    monkeypatch.setattr(PrefixAware, "rank", kept)
    measured(8_700, 4)
    for cost in (candidate.cost for candidate in made[-1].candidates):
        assert min(cost.wait, cost.prefill, cost.price, cost.decode, cost.home) > 0.0


def test_seeds_are_averaged() -> None:
    """Goals are judged by the mean over seeds."""
    cells = [cell(MIXED, "random", ttft_s) for ttft_s in (1.0, 3.0)]
    assert means(cells)["mixed", "random"].ttft_s == 2.0


def results(*cells: Cell) -> Results:
    """Return results with a floor of half a second and an ideal hit rate of 0.4."""
    found = means(cells)
    return Results(found, [MIXED], {"mixed": Ideal(0.4, 0.5)}, goals(found, [MIXED]))


def test_tables_show_what_was_run() -> None:
    """Policies that were not run have no row; floors, misses and the pooled bound have theirs."""
    made = results(cell(MIXED, "prefixaware", 1.2), cell(MIXED, "random"), cell(MIXED, POOLED, 0.8))
    shown = {sheet.title: sheet for sheet in sheets(made)}
    assert shown["Mean TTFT, s: stock"].rows == [
        ["prefixaware", "1.200"],
        ["random", "1.000"],
        [POOLED, "0.800"],
        ["zero-queue floor", "0.500"],
    ]
    (beside,) = (sheet for sheet in shown.values() if "Beside" in sheet.title)
    assert list(beside.rows[0])[:8] == [
        *("mixed", "1.200", "1.000", "random", "1.20", "", "0.800", "1.50")
    ]
    goals_sheet = next(iter(shown.values()))
    assert [row[-1] for row in goals_sheet.rows] == ["missed", "missed"] * 2 + ["met", "missed"]
    for sheet in shown.values():
        assert terminal(sheet).row_count == len(sheet.rows)
    assert markdown(shown["p99 TTFT, s: stock"]).startswith("## p99 TTFT, s: stock\n\n|  | mixed |")


def test_what_is_left_is_shown_beside_what_is() -> None:
    """Each ideal as a share of the time that it takes."""
    names = ("prefixaware", "steps end at once", "KV room never short")
    cells = [cell(MIXED, name, 1.0 - 0.2 * n) for n, name in enumerate(names)]
    sheet = next(sheet for sheet in sheets(results(*cells)) if "what is left" in sheet.title)
    rows = {row[0]: row[1] for row in sheet.rows}
    assert (rows[names[1]], rows[names[2]]) == ("0.80", "0.60")


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    """The picture is a PNG, even with a value far beyond the edge."""
    pytest.importorskip("matplotlib")
    plot(results(cell(MIXED, "prefixaware"), cell(MIXED, "random", 1e6)), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_each_part_of_the_page_stays_while_the_other_is_written(tmp_path: Path) -> None:
    """In any order."""
    page = tmp_path / "RESULTS.md"
    write(page, judged="# One\n\nold\n")
    write(page, constants="## Constants\n\nold too\n")
    write(page, judged="# One\n\nnew\n")
    assert page.read_text() == "# One\n\nnew\n\n## Constants\n\nold too\n"
    write(page, constants="## Constants\n\nnewer\n")
    assert page.read_text() == "# One\n\nnew\n\n## Constants\n\nnewer\n"


def test_an_unknown_column_is_an_error() -> None:
    """The error lists the known ones; likewise for policies."""
    with pytest.raises(BadParameter, match=r"no column is called 'nonsense'.*'no_reuse'"):
        main(column=["nonsense"])
    with pytest.raises(BadParameter, match=r"no policy is called 'nonsense'.*'round robin'"):
        main(policy=["nonsense"])


def test_the_command_writes_what_it_found(tmp_path: Path) -> None:
    """Numbers always; the page, its picture and the seeds it names where it judges."""
    numbers, page = tmp_path / "r.json", tmp_path / "RESULTS.md"
    asked: dict[str, Any] = {"column": ["documents"], "policy": ["prefixaware", "round robin"]}
    main(**asked, json_file=numbers, page=page, jobs=2)
    chosen_by = json.loads(numbers.read_text())
    assert chosen_by["seeds"] == [1, 2, 3]
    assert not page.exists()
    main(**asked, json_file=numbers, page=page, judge=7)
    found = json.loads(numbers.read_text())
    assert found["cells"][0]["ttft_s"] != chosen_by["cells"][0]["ttft_s"]
    assert {one["column"] for one in found["cells"]} >= {"documents", "documents, slow card"}
    text = page.read_text()
    assert str(found["seeds"][0]) in text
    assert "| decision, CPU µs, " in text
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
