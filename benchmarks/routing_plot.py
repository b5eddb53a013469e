"""A plot of the results: a panel for each workload, a dot for each policy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.routing_goals import Found
from benchmarks.routing_policies import POLICIES

_COLOURS = {"ours": "#c8321e", "plain": "#9aa0a6", "peer": "#4a6fa5", "bound": "#2e7d32"}
_WORDS = {"ours": "Warmroute", "plain": "no cache known", "peer": "peers", "bound": "bounds"}
_ACROSS = 4
#: Dots beyond this many times the floor are drawn at the edge, as arrows.
_WIDEST = 100.0


def plot(found: Found, columns: Sequence[str], path: Path) -> None:
    """Plot mean TTFT of all policies to the file `path`. Raises ImportError, OSError."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency
    from matplotlib.lines import Line2D  # noqa: PLC0415

    down = -(-len(columns) // _ACROSS)
    figure = Figure(figsize=(3.9 * _ACROSS, 3.5 * down), layout="constrained", dpi=110)
    axes = figure.subplots(down, _ACROSS, squeeze=False, sharey=True).flat
    names = [policy.name for policy in reversed(POLICIES)]
    names = [name for name in names if any((column, name) in found.means for column in columns)]
    for axis, column in zip(axes, columns, strict=False):
        _panel(axis, found, column, names)
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


def _panel(axis: Any, found: Found, column: str, names: Sequence[str]) -> None:  # noqa: ANN401
    kinds = {policy.name: policy.kind for policy in POLICIES}
    from matplotlib.ticker import LogLocator, NullLocator  # noqa: PLC0415

    floor = found.ideals[column].ttft_s
    for height, name in enumerate(names):
        cell = found.means.get((column, name))
        if cell is not None:
            beyond = cell.ttft_s > _WIDEST * floor
            seconds = _WIDEST * floor if beyond else cell.ttft_s
            axis.plot(seconds, height, ">" if beyond else "o", color=_COLOURS[kinds[name]], ms=5)
    axis.axvline(floor, color="black", linestyle="--", linewidth=0.8)
    axis.set(xscale="log", title=column, yticks=range(len(names)), yticklabels=names)
    axis.tick_params(axis="y", labelsize=7)
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.grid(axis="both", linewidth=0.3)
