"""Results of the overload benchmark, one row per load level. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.overload.load import Visit

#: The share of the peak that must be left at the highest load.
LEAST = 0.9
#: Share of a level's time that is not counted at its start, because the queue must build up.
WARM = 0.2
#: How the router refuses: 429 if the queue is full, 503 if a request waited there too long.
_REFUSALS = (429, 503)


@dataclass(frozen=True, slots=True)
class Row:
    """One load level; shares are of the requests counted, times in seconds."""

    load: float
    """As a multiple of the workers' capacity."""
    offered: float
    """Requests a second that arrived."""
    goodput: float
    """Answers a second within the deadline."""
    late: float
    """Share answered after the deadline."""
    refused_429: float
    refused_503: float
    """Share refused, like the one before it."""
    failed: float
    """Share that ended in any other way."""
    p50: float
    p99: float
    """Time of an answer, from the request to its end, like the one before it."""
    refusal_p99: float
    """Time to a refusal."""
    router_share: float = 0.0
    """CPU use of the router, as a share of a core."""


def row(
    load: float, visits: Sequence[Visit], seconds: float, deadline: float, share: float = 0.0
) -> Row:
    """Summarize a level that lasted `seconds`."""
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
    """Return the quantile at `share` of sorted values; 0 if there are none."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def peak(rows: Sequence[Row]) -> float:
    """Return the highest goodput of all levels."""
    return max((one.goodput for one in rows), default=0.0)


def kept(rows: Sequence[Row]) -> float:
    """Return the goodput at the highest load as a share of the peak."""
    highest = max(rows, key=lambda one: one.load)
    return highest.goodput / peak(rows) if peak(rows) else 0.0
