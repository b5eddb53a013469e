"""The result of a replay, in seconds of the fleet's own time, and as JSON."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import msgspec

from router.replay.plan import Options, Plan
from router.replay.stream import Fault, Usage

_LAG_SHARE = 0.1  # share of the median TTFT above which lag distorts the result
_LAG_FLOOR_S = 0.01  # wall-clock lag that timers and a busy machine cause anyway


class Sample(msgspec.Struct, frozen=True):
    """One request as the client saw it, in seconds of the wall clock."""

    sent_at: float
    ended_at: float
    first_at: float | None = None
    worker: str = "-"
    usage: Usage | None = None
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


def report_of(run: Run, plan: Plan, options: Options, model: str) -> Report:
    """Sum up a run."""
    answered = [sample for sample in run.samples if sample.fault is None]
    used = [sample.usage for sample in answered if sample.usage]
    told = [use.cached_tokens for use in used if use.cached_tokens is not None]
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
        hit_rate=sum(told) / prompt if told and prompt else None,
        ideal_hit_rate=plan.ideal_hit_rate,
        cached_reported=len(told),
        prompt_tokens=prompt,
        cached_tokens=sum(told),
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
    if lag and ttft and lag.p99 > max(_LAG_SHARE * ttft.p50, _LAG_FLOOR_S * options.speed):
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
