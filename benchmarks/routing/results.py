"""The goals of the routing benchmark, and its results: as tables, RESULTS.md, and a picture."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, log
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from msgspec import Struct
from rich.table import Table

from benchmarks.decision import measured
from benchmarks.routing.bounds import IDEALS
from benchmarks.routing.columns import STOCK, Cell, Column
from benchmarks.routing.policies import OURS, PEERS, POLICIES, POOLED, POOLED_SHORTEST
from benchmarks.routing.workloads import Ideal
from strategies.cost import cost

#: The title of what `benchmarks.routing.sensitivity` writes into the page, after all else.
CONSTANTS = "Constants"


class Sheet(NamedTuple):
    """A table as plain text; the columns in `right` are numbers, the others words."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int]
    text: str = ""
    """What a document says about it."""


def terminal(sheet: Sheet) -> Table:
    """Return a sheet as a table with colours."""
    table = Table(title=sheet.title)
    for place, heading in enumerate(sheet.headings):
        table.add_column(heading, justify="right" if place in sheet.right else "left")
    for row in sheet.rows:
        table.add_row(*(f"[bold red]{text}[/]" if "missed" in text else text for text in row))
    return table


def markdown(sheet: Sheet) -> str:
    """Return a sheet as a section of GitHub-flavoured Markdown."""
    rule = ["---:" if place in sheet.right else "---" for place in range(len(sheet.headings))]
    lines = (f"| {' | '.join(cells)} |" for cells in (sheet.headings, rule, *sheet.rows))
    return "\n\n".join(part for part in (f"## {sheet.title}", sheet.text, "\n".join(lines)) if part)


def write(page: Path, *, judged: str = "", constants: str = "") -> None:
    """Write a part of the page, and keep the other one as it is there."""
    old = page.read_text() if page.exists() else ""
    head, found, tail = old.partition(f"## {CONSTANTS}\n")
    parts = (judged or head, constants or found + tail)
    page.write_text("\n".join(part.strip() + "\n" for part in parts if part))


Means = Mapping[tuple[str, str], Cell]
Number = Callable[[Cell], float]

#: What is compared with the best peer, and how many times that is good enough.
MEASURES: dict[str, tuple[Number, float]] = {
    "mean TTFT": (attrgetter("ttft_s"), 1.05),
    "p99 TTFT": (attrgetter("ttft_p99_s"), 1.15),
    "mean end to end": (attrgetter("e2e_s"), 1.05),
}
#: At most so much is the geometric mean over all columns of mean TTFT over the best peer's.
GEOMETRIC = 0.90
#: Mean TTFT, as a multiple of the better of the pooled bounds.
OVER_POOLED = {
    "conversation x1": 1.02,
    "conversation tight x1.75": 1.02,
    "conversation x2": 1.08,
    "conversation x2.2": 1.20,
}
#: CPU microseconds that a decision on 8,000 tokens (35 kB) may take, by number of workers: to rank
#: them, all busy, and to record the choice. Computing the keys is extra (`benchmarks.steps`).
DECISION_BYTES = 35_000
DECISION_US = {8: 25.0, 64: 80.0, 500: 450.0}


class Goal(Struct, frozen=True):
    """A goal: `value` must be at most `bound`."""

    name: str
    policy: str
    where: str
    """The column, or what else it is about."""
    value: float
    bound: float
    against: str = ""
    """What the value is a multiple of."""

    @property
    def met(self) -> bool:
        """Whether the goal is met."""
        return self.value <= self.bound


def goals(means: Means, columns: Sequence[Column]) -> list[Goal]:
    """Return every goal that can be judged from what was measured."""
    return [*_beside_peers(means, columns), *_geometric(means, columns), *_beside_bounds(means)]


def decisions() -> list[Goal]:
    """Measure the cost of ranking and recording on this machine, as goals."""
    how = "interpreted" if (cost.__file__ or "").endswith(".py") else "compiled"
    found = []
    for workers, bound in DECISION_US.items():
        _, rank, record = measured(DECISION_BYTES, workers)
        found.append(
            Goal(f"decision, CPU µs, {how}", OURS[0], f"{workers} workers", rank + record, bound)
        )
    return found


def best(means: Means, column: str, among: Sequence[str], number: Number) -> Cell | None:
    """Return the policy of `among` with the least `number` in a column; None if none was run."""
    cells = [means[column, name] for name in among if (column, name) in means]
    return min(cells, key=number, default=None)


def pooled(means: Means, column: str) -> Cell | None:
    """Return the better of the pooled bounds, by mean TTFT."""
    return best(means, column, (POOLED, POOLED_SHORTEST), attrgetter("ttft_s"))


def _beside_peers(means: Means, columns: Sequence[Column]) -> Iterator[Goal]:
    for name, (number, bound) in MEASURES.items():
        for column in columns:
            rival = best(means, column.name, PEERS, number)
            for policy in OURS:
                cell = means.get((column.name, policy))
                if cell is not None and rival is not None:
                    ratio = number(cell) / number(rival)
                    yield Goal(name, policy, column.name, ratio, bound, rival.policy)


def _geometric(means: Means, columns: Sequence[Column]) -> Iterator[Goal]:
    number, _ = MEASURES["mean TTFT"]
    for policy in OURS:
        ratios = []
        for column in columns:
            cell, rival = means.get((column.name, policy)), best(means, column.name, PEERS, number)
            if cell is not None and rival is not None:
                ratios.append(number(cell) / number(rival))
        if ratios:
            value = exp(fmean(map(log, ratios)))
            where = f"geometric mean of {len(ratios)} columns"
            yield Goal("mean TTFT", policy, where, value, GEOMETRIC, "each column's best peer")


def _beside_bounds(means: Means) -> Iterator[Goal]:
    for column, bound in OVER_POOLED.items():
        least = pooled(means, column)
        for policy in OURS:
            cell = means.get((column, policy))
            if cell is not None and least is not None:
                ratio = cell.ttft_s / least.ttft_s
                yield Goal("mean TTFT", policy, column, ratio, bound, least.policy)


#: Columns per table, so that it fits on a wide terminal.
_WIDE = 8
_NUMBERS: dict[str, Callable[[Cell], str]] = {
    "Mean TTFT, s": lambda cell: _short(cell.ttft_s),
    "p99 TTFT, s": lambda cell: _short(cell.ttft_p99_s),
    "Mean end to end, s": lambda cell: _short(cell.e2e_s),
    "Hit rate": lambda cell: f"{cell.hit_rate:.3f}",
    "Prefill, max over mean": lambda cell: f"{cell.imbalance:.2f}",
}
#: What the page says about some tables.
_BESIDE = """\
`prefixaware`, and `kvaware` where a heading says so. A ratio above 1 is slower than the best peer,
or than the pooled bound: one queue (first come or shortest first, whichever is better) before as
many engines with one cache as large as all of theirs together. That bound is not strict: it does
not plan ahead, and shortest first lets long prompts wait where KV room is short."""
_RESCALED = """\
On engines of another pace or KV cache, rates are such that workers are as busy as stock ones: by
the time that goes to prefill, or by the share of the KV cache that requests take, whichever is
more. Prompts that do not fit an engine are left out there."""
_LEFT = "Mean TTFT of `prefixaware` with one thing made ideal, as a share of what it is without."
_COLOURS = {"ours": "#c8321e", "plain": "#9aa0a6", "peer": "#4a6fa5", "bound": "#2e7d32"}
_WORDS = {"ours": "Warmroute", "plain": "no cache known", "peer": "peers", "bound": "bounds"}
#: Panels beside each other; and the largest multiple of the floor that is drawn in its place.
_ACROSS, _WIDEST = 4, 100.0


class Results(NamedTuple):
    """Everything that was measured."""

    means: Means
    columns: Sequence[Column]
    ideals: Mapping[str, Ideal]
    """By column on the stock engine."""
    goals: Sequence[Goal]

    @property
    def engines(self) -> dict[str, list[Column]]:
        """The columns by engine."""
        found: dict[str, list[Column]] = {}
        for column in self.columns:
            found.setdefault(column.engine, []).append(column)
        return found


def sheets(results: Results) -> Iterator[Sheet]:
    """Yield the goals, each engine beside the best peer, what is left, and all numbers."""
    yield _goal_sheet(results.goals)
    for engine, columns in results.engines.items():
        yield _beside_sheet(results.means, engine, columns)
    if len(results.engines) > 1:
        yield _rate_sheet(results)
    if any(name in IDEALS for _, name in results.means):
        yield _ideal_sheet(results)
    for engine, columns in results.engines.items():
        titles = list(_NUMBERS) if engine == STOCK else list(_NUMBERS)[:1]
        for title in titles:
            for start in range(0, len(columns), _WIDE):
                sheet = _number_sheet(results, title, columns[start : start + _WIDE])
                yield sheet._replace(title=f"{sheet.title}, continued") if start else sheet


def _goal_sheet(goals: Sequence[Goal]) -> Sheet:
    """Return a row for each kind of goal beside peers, for each miss, and for each other goal."""
    rows, kinds = [], dict[tuple[str, str], list[Goal]]()
    for goal in goals:
        if goal.against in PEERS:
            kinds.setdefault((goal.name, goal.policy), []).append(goal)
    for (name, policy), several in kinds.items():
        met = [goal for goal in several if goal.met]
        worst = max(goal.value for goal in several)
        says = "met" if len(met) == len(several) else "missed"
        where = f"{len(met)} of {len(several)} columns"
        bound = f"{several[0].bound:g}"
        rows.append([name, policy, where, f"worst {worst:.3f}", bound, "the best peer", says])
        rows += [_goal_row(goal) for goal in several if not goal.met]
    rows += [_goal_row(goal) for goal in goals if goal.against not in PEERS]
    met_all = sum(goal.met for goal in goals)
    headings = ("goal", "strategy", "where", "is", "at most", "times", "")
    return Sheet(f"Goals, {met_all} of {len(goals)} met", headings, rows, (3, 4))


def _goal_row(goal: Goal) -> list[str]:
    digits = 3 if goal.against else 0
    return [
        *(goal.name, goal.policy, goal.where, f"{goal.value:.{digits}f}"),
        *(f"{goal.bound:g}", goal.against, "met" if goal.met else "missed"),
    ]


def _beside_sheet(means: Means, engine: str, columns: Sequence[Column]) -> Sheet:
    rows = [[column.workload, *_beside(means, column.name)] for column in columns]
    headings = ["", "mean TTFT, s", "best peer, s", "", "ratio", "kvaware's", "pooled, s", "ratio"]
    headings += ["p99, ratio", "kvaware's", "end to end, ratio", "kvaware's"]
    title = f"Beside the best peer and the pooled bound: {engine}"
    text = _BESIDE if engine == STOCK else ""
    return Sheet(title, headings, rows, (1, 2, *range(4, 12)), text)


def _beside(means: Means, column: str) -> list[str]:
    mine = means.get((column, OURS[0]))
    ttft, *others = (number for number, _ in MEASURES.values())
    rival, bound = best(means, column, PEERS, ttft), pooled(means, column)
    texts = ["" if mine is None else _short(mine.ttft_s)]
    texts += ["", ""] if rival is None else [_short(rival.ttft_s), rival.policy]
    texts += [_ratio(means.get((column, name)), rival, ttft) for name in OURS]
    texts += ["" if bound is None else _short(bound.ttft_s), _ratio(mine, bound, ttft)]
    for number in others:
        rival = best(means, column, PEERS, number)
        texts += [_ratio(means.get((column, name)), rival, number) for name in OURS]
    return texts


def _ratio(one: Cell | None, other: Cell | None, number: Number) -> str:
    return "" if one is None or other is None else f"{number(one) / number(other):.2f}"


def _rate_sheet(results: Results) -> Sheet:
    """Return the arrival rates of the other engines, as multiples of the stock engine's."""
    stock = {one.workload: one.rate for one in results.engines.get(STOCK, ())}
    others = {name: several for name, several in results.engines.items() if name != STOCK}
    workloads = list(dict.fromkeys(one.workload for several in others.values() for one in several))
    rows = []
    for engine, several in others.items():
        rates = {one.workload: one.rate for one in several}
        rows.append(
            [engine, *(_share(rates.get(one), stock.get(one)) for one in workloads)],
        )
    title = "Arrival rates on other engines, as multiples of those on the stock engine"
    return Sheet(title, ["", *workloads], rows, range(1, len(workloads) + 1), _RESCALED)


def _share(rate: float | None, usual: float | None) -> str:
    return "" if rate is None or usual is None else f"{rate / usual:.2f}"


def _ideal_sheet(results: Results) -> Sheet:
    """Return mean TTFT with one thing made ideal, as a multiple of what it is."""
    means, (ttft, _) = results.means, MEASURES["mean TTFT"]
    shown = {name for name, policy in means if policy in IDEALS}
    columns = [one.name for one in results.columns if one.name in shown]
    usual = [means.get((one, OURS[0])) for one in columns]
    ideal = {name: [means.get((one, name)) for one in columns] for name in IDEALS}
    ideal["the pooled bound"] = [pooled(means, one) for one in columns]
    rows = [[f"{OURS[0]}, mean TTFT in s", *(_short(one.ttft_s) if one else "" for one in usual)]]
    for name, cells in ideal.items():
        rows.append(
            [name, *(_ratio(one, as_is, ttft) for one, as_is in zip(cells, usual, strict=True))]
        )
    title = "Where what is left goes"
    return Sheet(title, ["", *columns], rows, range(1, len(columns) + 1), _LEFT)


def _number_sheet(results: Results, title: str, columns: Sequence[Column]) -> Sheet:
    text, rows = _NUMBERS[title], []
    for policy in POLICIES:
        if policy.kind != "ideal":
            cells = [results.means.get((column.name, policy.name)) for column in columns]
            if any(cells):
                rows.append([policy.name, *("" if one is None else text(one) for one in cells)])
    ideals = [results.ideals.get(column.name) for column in columns]
    if title.startswith("Mean TTFT") and all(ideals):
        rows.append(["zero-queue floor", *(_short(one.ttft_s) for one in ideals if one)])
    if title == "Hit rate" and all(ideals):
        rows.append(["one infinite cache", *(f"{one.hit_rate:.3f}" for one in ideals if one)])
    headings = ["", *(column.workload for column in columns)]
    return Sheet(f"{title}: {columns[0].engine}", headings, rows, range(1, len(columns) + 1))


def _short(seconds: float) -> str:
    """Format seconds with at least three significant digits."""
    if seconds < 10:
        return f"{seconds:.3f}"
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:,.0f}"


def plot(results: Results, path: Path) -> None:
    """Plot mean TTFT on the stock engine to the file `path`. Raises ImportError, OSError."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency
    from matplotlib.lines import Line2D  # noqa: PLC0415

    columns = [column.name for column in results.engines.get(STOCK, ())]
    down = -(-len(columns) // _ACROSS)
    figure = Figure(figsize=(3.4 * _ACROSS, 2.8 * down), layout="constrained", dpi=80)
    axes = figure.subplots(down, _ACROSS, squeeze=False, sharey=True).flat
    shown = [policy for policy in reversed(POLICIES) if policy.kind in _COLOURS]
    names = [one.name for one in shown if any((c, one.name) in results.means for c in columns)]
    for axis, column in zip(axes, columns, strict=False):
        _panel(axis, results, column, names)
    for axis in list(axes)[len(columns) :]:
        axis.set_axis_off()
    figure.legend(
        handles=[
            Line2D([], [], color=colour, marker="o", linestyle="", label=_WORDS[kind])
            for kind, colour in _COLOURS.items()
        ],
        ncols=len(_COLOURS),
        loc="outside upper center",
    )
    figure.supxlabel(
        "mean seconds to the first token (log); the dashed line is the floor: no queue"
    )
    figure.savefig(path)


def _panel(axis: Any, results: Results, column: str, names: Sequence[str]) -> None:  # noqa: ANN401
    kinds = {policy.name: policy.kind for policy in POLICIES}
    from matplotlib.ticker import LogLocator, NullLocator  # noqa: PLC0415

    floor = results.ideals[column].ttft_s
    for height, name in enumerate(names):
        cell = results.means.get((column, name))
        if cell is not None:
            beyond = cell.ttft_s > _WIDEST * floor
            seconds = _WIDEST * floor if beyond else cell.ttft_s
            axis.plot(seconds, height, ">" if beyond else "o", color=_COLOURS[kinds[name]], ms=4)
    axis.axvline(floor, color="black", linestyle="--", linewidth=0.8)
    axis.set(xscale="log", title=column, yticks=range(len(names)), yticklabels=names)
    axis.tick_params(axis="both", labelsize=6)
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.grid(axis="both", linewidth=0.3)
