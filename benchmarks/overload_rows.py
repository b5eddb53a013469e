"""What came of each level of load. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.overload_load import Visit

#: The share of the peak that must be left at the highest load.
LEAST = 0.9
#: The first part of a level's time is not looked at: a line has to form.
WARM = 0.2
#: How the router refuses: the line is full, or it did not move in time.
_REFUSALS = (429, 503)


@dataclass(frozen=True, slots=True)
class Row:
    """One level; shares are of the requests that came, times in seconds."""

    load: float
    """As a multiple of what the workers can do."""
    offered: float
    """Requests a second that came."""
    goodput: float
    """Answers a second within the deadline."""
    late: float
    """Share answered, but later."""
    refused_429: float
    refused_503: float
    """Shares refused."""
    failed: float
    """Share with any other end."""
    p50: float
    p99: float
    """Of the answers, from the request to the end."""
    refusal_p99: float
    """Until a refusal."""
    router_share: float = 0.0
    """Of a core."""


def row(
    load: float, visits: Sequence[Visit], seconds: float, deadline: float, share: float = 0.0
) -> Row:
    """Sum up a level of so many seconds."""
    counted = [visit for visit in visits if visit.at >= WARM * seconds]
    span, count = (1 - WARM) * seconds, max(len(counted), 1)
    answers = sorted(visit.took for visit in counted if visit.status == 200)
    refusals = sorted(visit.took for visit in counted if visit.status in _REFUSALS)
    good = sum(took <= deadline for took in answers)
    return Row(
        load=load,
        offered=len(counted) / span,
        goodput=good / span,
        late=(len(answers) - good) / count,
        refused_429=sum(visit.status == 429 for visit in counted) / count,
        refused_503=sum(visit.status == 503 for visit in counted) / count,
        failed=(len(counted) - len(answers) - len(refusals)) / count,
        p50=quantile(answers, 0.5),
        p99=quantile(answers, 0.99),
        refusal_p99=quantile(refusals, 0.99),
        router_share=share,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value that so large a share is not above; 0 of nothing."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def peak(rows: Sequence[Row]) -> float:
    """Return the most that was achieved."""
    return max((one.goodput for one in rows), default=0.0)


def kept(rows: Sequence[Row]) -> float:
    """Return what is left of the peak at the highest load."""
    highest = max(rows, key=lambda one: one.load)
    return highest.goodput / peak(rows) if peak(rows) else 0.0
