"""Replay reports as tables for people; rich omits colours where there is no terminal."""

from collections.abc import Callable, Sequence

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from router.replay.report import Report


def tables(report: Report) -> Group:
    """Return the report for people: times, throughput, workers, errors, warnings."""
    parts: list[Table | Text] = [_times(report), _totals(report), _workers(report)]
    if report.errors:
        parts.append(_errors(report))
    return Group(*parts, *(Text(f"Warning: {said}.") for said in report.warnings))


def comparison(reports: dict[str, Report]) -> Table:
    """Return reports side by side; the last column is the ratio of the last to the first."""
    table = Table(title="Side by side")
    table.add_column("")
    for name in reports:
        table.add_column(Text(name), justify="right")
    first, *_, last = [*reports] * 2 or ["", ""]
    table.add_column(Text(f"{last} / {first}"), justify="right")
    ttfts = [report.ttft_s for report in reports.values()]
    rows: list[tuple[str, list[float | None], Callable[[float | None], str]]] = [
        ("TTFT p50", [ttft.p50 if ttft else None for ttft in ttfts], _seconds),
        ("TTFT p90", [ttft.p90 if ttft else None for ttft in ttfts], _seconds),
        ("TTFT mean", [ttft.mean if ttft else None for ttft in ttfts], _seconds),
        ("Hit rate", [report.hit_rate for report in reports.values()], _percent),
        ("Output tokens/s", [report.output_tokens_per_s for report in reports.values()], _count),
        ("Errors", [float(report.failed) for report in reports.values()], _count),
    ]
    for name, values, show in rows:
        table.add_row(name, *map(show, values), _ratio(values))
    return table


def _times(report: Report) -> Table:
    table = Table(title=Text(f"{report.name} at {report.url}, seconds"))
    for heading in ("", "p50", "p90", "p99", "mean", "max"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = {"TTFT": report.ttft_s, "End to end": report.e2e_s, "Generator's lag": report.lag_s}
    for name, times in rows.items():
        cells = msgspec.structs.astuple(times) if times else [None] * 5
        table.add_row(name, *map(_seconds, cells))
    return table


def _totals(report: Report) -> Table:
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    ideal = report.ideal_hit_rate
    bound = f" (one endless cache: {_percent(ideal)})" if ideal is not None else ""
    rows = {
        "Requests answered": f"{report.answered:,} of {report.planned:,}",
        "Duration": f"{report.duration_s:,.1f} s",
        "Hit rate": _percent(report.hit_rate) + bound,
        "Answers that told cached tokens": f"{report.cached_reported:,}",
        "Requests/s": f"{report.requests_per_s:,.2f}",
        "Input tokens/s": _count(report.input_tokens_per_s),
        "Output tokens/s": _count(report.output_tokens_per_s),
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _workers(report: Report) -> Table:
    table = Table()
    for heading in ("Worker", "Requests", "Share", "Prompt tokens"):
        table.add_column(heading, justify="left" if heading == "Worker" else "right")
    for name, got in report.workers.items():
        table.add_row(
            Text(name), f"{got.requests:,}", _percent(got.share), f"{got.prompt_tokens:,}"
        )
    return table


def _errors(report: Report) -> Table:
    table = Table()
    for heading in ("Error", "Count", "The first one"):
        table.add_column(heading, justify="right" if heading == "Count" else "left")
    for kind, error in report.errors.items():
        table.add_row(Text(kind), f"{error.count:,}", Text(error.first))
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _ratio(values: Sequence[float | None]) -> str:
    if not values or values[-1] is None or not values[0]:
        return "-"
    return f"{values[-1] / values[0]:.2f}x"
