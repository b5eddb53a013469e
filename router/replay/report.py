"""The result of a replay, in seconds of the fleet's own time: as JSON, or as tables for people.

rich omits colours where there is no terminal.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from router.replay.plan import Options, ReplayPlan
from router.replay.stream import Fault, ReportedUsage

#: Share of the median TTFT above which lag distorts the result.
MAX_LAG_SHARE = 0.1
#: Wall-clock lag that timers and a busy machine cause anyway.
MIN_LAG_S = 0.01


class Sample(msgspec.Struct, frozen=True):
    """One request as the client saw it, in seconds of the wall clock."""

    sent_at: float
    ended_at: float
    first_at: float | None = None
    worker: str = "-"
    usage: ReportedUsage | None = None
    text: str = ""
    fault: Fault | None = None


class Run(msgspec.Struct):
    """What the load generator recorded, in seconds of the wall clock."""

    samples: list[Sample] = []
    lags: list[float] = []
    skipped: int = 0
    waited_for_slot: int = 0
    interrupted: bool = False
    wall_s: float = 0.0


class Spread(msgspec.Struct, frozen=True):
    """The distribution of a time."""

    p50: float
    p90: float
    p99: float
    mean: float
    max: float


class WorkerShare(msgspec.Struct, frozen=True):
    """One worker's part of the answered requests."""

    requests: int
    prompt_tokens: int
    share: float


class ErrorKind(msgspec.Struct, frozen=True):
    """How often a kind of error occurred, and the first one's message."""

    count: int
    first: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one replay. Times are the fleet's: wall-clock seconds times `speed`."""

    name: str
    url: str
    model: str
    rate: float
    speed: float
    planned: int
    answered: int
    skipped: int  # turns not sent because an earlier turn of their conversation failed
    interrupted: bool
    duration_s: float
    ttft_s: Spread | None
    e2e_s: Spread | None
    hit_rate: float | None
    ideal_hit_rate: float | None
    cached_reported: int  # answers that reported their cached tokens
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    workers: dict[str, WorkerShare]
    errors: dict[str, ErrorKind]
    lag_s: Spread | None  # how late the generator sent requests
    waited_for_slot: int  # requests held back by the cap on concurrency
    warnings: list[str]

    @property
    def failed(self) -> int:
        """How many requests ended in an error of any kind."""
        return sum(kind.count for kind in self.errors.values())


def report_of(run: Run, plan: ReplayPlan, options: Options, model: str) -> Report:
    """Sum up a run."""
    answered = [sample for sample in run.samples if sample.fault is None]
    used = [sample.usage for sample in answered if sample.usage]
    cached = [use.cached_tokens for use in used if use.cached_tokens is not None]
    prompt = sum(usage.prompt_tokens for usage in used)
    output = sum(usage.completion_tokens for usage in used)
    firsts = [s.first_at - s.sent_at for s in answered if s.first_at is not None]
    ttft, lag = spread_of(firsts, options.speed), spread_of(run.lags, options.speed)
    duration = run.wall_s * options.speed
    per_s = 1 / duration if duration else 0.0
    return Report(
        name=plan.name,
        url=options.url,
        model=model,
        rate=options.rate,
        speed=options.speed,
        planned=plan.total,
        answered=len(answered),
        skipped=run.skipped,
        interrupted=run.interrupted,
        duration_s=duration,
        ttft_s=ttft,
        e2e_s=spread_of([s.ended_at - s.sent_at for s in answered], options.speed),
        # Workers omit it when nothing was cached. Once any answer reported it, omitted means zero.
        hit_rate=sum(cached) / prompt if cached and prompt else None,
        ideal_hit_rate=plan.ideal_hit_rate,
        cached_reported=len(cached),
        prompt_tokens=prompt,
        cached_tokens=sum(cached),
        output_tokens=output,
        requests_per_s=len(answered) * per_s,
        input_tokens_per_s=prompt * per_s,
        output_tokens_per_s=output * per_s,
        workers=shares_of(answered),
        errors=errors_of(run.samples),
        lag_s=lag,
        waited_for_slot=run.waited_for_slot,
        warnings=_warnings(run, options, ttft, lag, without_usage=len(answered) - len(used)),
    )


def spread_of(times: Sequence[float], scale: float = 1.0) -> Spread | None:
    """Return the quantiles (nearest rank) and the mean of times; None if there are none."""
    if not times:
        return None
    ordered = sorted(times)
    p50, p90, p99 = (
        ordered[min(len(ordered) - 1, int(share * len(ordered)))] * scale
        for share in (0.5, 0.9, 0.99)
    )
    return Spread(p50, p90, p99, fmean(ordered) * scale, ordered[-1] * scale)


def errors_of(samples: Sequence[Sample]) -> dict[str, ErrorKind]:
    """Count errors by kind, most frequent first, with the first message of each."""
    faults = [sample.fault for sample in samples if sample.fault]
    first: dict[str, str] = {}
    for fault in faults:
        first.setdefault(fault.kind, fault.message)
    counts = Counter(fault.kind for fault in faults).most_common()
    return {kind: ErrorKind(count, first[kind]) for kind, count in counts}


def shares_of(answered: Sequence[Sample]) -> dict[str, WorkerShare]:
    """Return each worker's part of the answered requests, by name."""
    requests = Counter(sample.worker for sample in answered)
    tokens: Counter[str] = Counter()
    for sample in answered:
        tokens[sample.worker] += sample.usage.prompt_tokens if sample.usage else 0
    return {
        worker: WorkerShare(requests[worker], tokens[worker], requests[worker] / len(answered))
        for worker in sorted(requests)
    }


def to_json(report: Report) -> str:
    """Return the report as indented JSON: field names as keys, seconds, null for unknown."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def _warnings(
    run: Run, options: Options, ttft: Spread | None, lag: Spread | None, *, without_usage: int
) -> list[str]:
    warnings = []
    if run.interrupted:
        warnings.append("interrupted: only the answers until then are counted")
    if lag and ttft and lag.p99 > max(MAX_LAG_SHARE * ttft.p50, MIN_LAG_S * options.speed):
        warnings.append(
            f"this machine lacked CPU: requests were sent up to {lag.max:.3f} s late"
            f" (p99 {lag.p99:.3f} s), so do not trust these times"
        )
    if run.waited_for_slot:
        warnings.append(
            f"{run.waited_for_slot:,} requests waited, as {options.concurrency:,} were in flight;"
            " their wait is not in these times"
        )
    if without_usage:
        warnings.append(f"{without_usage:,} answers came without usage; tokens and hits lack them")
    return warnings


def tables(report: Report) -> Group:
    """Return the report for people: times, throughput, workers, errors, warnings."""
    parts: list[Table | Text] = [_times(report), _totals(report), _workers(report)]
    if report.errors:
        parts.append(_errors(report))
    return Group(*parts, *(Text(f"Warning: {warning}.") for warning in report.warnings))


def comparison(reports: dict[str, Report]) -> Table:
    """Return reports side by side; the last column is the ratio of the last to the first."""
    first, *_, last = [*reports] * 2 or ["", ""]
    ttfts = [report.ttft_s for report in reports.values()]
    rows: list[tuple[str, list[float | None], Callable[[float | None], str]]] = [
        ("TTFT p50", [ttft.p50 if ttft else None for ttft in ttfts], _seconds),
        ("TTFT p90", [ttft.p90 if ttft else None for ttft in ttfts], _seconds),
        ("TTFT mean", [ttft.mean if ttft else None for ttft in ttfts], _seconds),
        ("Hit rate", [report.hit_rate for report in reports.values()], _percent),
        ("Output tokens/s", [report.output_tokens_per_s for report in reports.values()], _count),
        ("Errors", [float(report.failed) for report in reports.values()], _count),
    ]
    return _table(
        ("", *reports, f"{last} / {first}"),
        [(name, *map(show, values), _ratio(values)) for name, values, show in rows],
        title="Side by side",
    )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> Table:
    """Return a table whose cells are plain text, all but the first of a row to the right."""
    table = Table(title=Text(title) if title else None, show_header=any(headings))
    for place, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if place else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _times(report: Report) -> Table:
    rows = {"TTFT": report.ttft_s, "End to end": report.e2e_s, "Generator's lag": report.lag_s}
    return _table(
        ("", "p50", "p90", "p99", "mean", "max"),
        [
            (name, *map(_seconds, msgspec.structs.astuple(times) if times else [None] * 5))
            for name, times in rows.items()
        ],
        title=f"{report.name} at {report.url}, seconds",
    )


def _totals(report: Report) -> Table:
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
    return _table(("", ""), rows.items())


def _workers(report: Report) -> Table:
    return _table(
        ("Worker", "Requests", "Share", "Prompt tokens"),
        [
            (name, f"{part.requests:,}", _percent(part.share), f"{part.prompt_tokens:,}")
            for name, part in report.workers.items()
        ],
    )


def _errors(report: Report) -> Table:
    table = _table(
        ("Error", "Count", "The first one"),
        [(kind, f"{error.count:,}", error.first) for kind, error in report.errors.items()],
    )
    table.columns[-1].justify = "left"
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
