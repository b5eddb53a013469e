"""Goals that a few seeds do not decide, and that are judged by more.

The differences between seeds are often larger than those that goals allow. So where the bound lies
within some standard errors of what was measured, both sides are run with more seeds. Which goals
these are goes by how much the seeds differ, not by whether the goal was met.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from statistics import fmean, stdev

from msgspec.structs import replace

from benchmarks.routing_cells import Cell
from benchmarks.routing_goals import Goal, times

#: A bound that is so many standard errors away, or fewer, leaves a goal undecided. Three of three
#: seeds are wrong once in ten times (Student's t with two degrees of freedom), two twice as often.
ERRORS = 3.0

Seeds = Mapping[tuple[str, str], Mapping[int, Cell]]
"""Cells by column and policy, then by seed."""


def by_seed(cells: Iterable[Cell]) -> Seeds:
    """Return the cells by column and policy, then by seed."""
    found: dict[tuple[str, str], dict[int, Cell]] = {}
    for cell in cells:
        found.setdefault((cell.column, cell.policy), {})[cell.seed] = cell
    return found


def unsure(goals: Sequence[Goal], seeds: Seeds) -> list[Goal]:
    """Return the goals that are not decided by the seeds they were judged by."""
    return [goal for goal in goals if goal.measure and not _decided(goal, seeds)]


def needed(goals: Sequence[Goal]) -> list[tuple[str, str]]:
    """Return the columns and policies of which these goals need more seeds."""
    every = ((goal.column, name) for goal in goals for name in (goal.policy, *goal.rivals))
    return list(dict.fromkeys(every))


def judged(goal: Goal, seeds: Seeds) -> Goal:
    """Judge a goal anew, by all seeds that all sides were run with."""
    sides = [seeds.get((goal.column, name), {}) for name in (goal.policy, *goal.rivals)]
    common = sorted(set(sides[0]).intersection(*sides[1:]))
    means = [fmean(getattr(side[seed], goal.measure) for seed in common) for side in sides]
    goal = replace(goal, value=means[0], seeds=len(common))
    if not goal.rivals:
        return goal
    least, name = min(zip(means[1:], goal.rivals, strict=True))
    return replace(goal, bound=goal.over * least, against=times(name, goal.over))


def _decided(goal: Goal, seeds: Seeds) -> bool:
    """Whether the bound is far enough from what was measured, given how much seeds differ."""
    mine = seeds[goal.column, goal.policy]
    theirs = seeds.get((goal.column, goal.rivals[0]), {}) if goal.rivals else None
    over = [
        getattr(cell, goal.measure) - _bound(goal, theirs, seed)
        for seed, cell in mine.items()
        if seed <= goal.seeds and (theirs is None or seed in theirs)
    ]
    error = stdev(over) / len(over) ** 0.5 if len(over) > 1 else inf
    return abs(fmean(over)) > ERRORS * error if over else True


def _bound(goal: Goal, theirs: Mapping[int, Cell] | None, seed: int) -> float:
    """Return the bound with one seed."""
    if theirs is None:
        return goal.bound
    bound: float = goal.over * getattr(theirs[seed], goal.measure)
    return bound
