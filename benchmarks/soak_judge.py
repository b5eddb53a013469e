"""What must not happen in a soak: requests that were lost, or asked twice. Pure.

A request is **lost** if it was sound and whole, its client stayed, it failed, and nothing but the
router is to blame:

- No worker had read it, or those that had answered 503: surely it had not begun, and could have
  been asked of another. And one of the workers that stand in the settings all the time was well
  from `RECOVERY_S` before it was sent until it failed. Connections refused, 503 and kept
  connections that were just being closed are of this kind.
- Or every worker that had read it, and did not refuse it, was well until it failed: they would
  have answered.

Not counted: what failed at a worker, named in the answer, that was killed, was frozen or closed
its listening socket in that moment. Bytes may have reached its machine and never been read;
nobody but the worker could tell that from a request that had begun. Refusals for want of room
(429, `overloaded`) are counted by themselves.

A request was **asked twice** if two workers have read it and did not refuse it, and the first one
was alive when the second one read it. Where it had been killed meanwhile its work was over: those
are counted by themselves, as **asked again**.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.soak_faults import RECOVERY_S, Timeline
from benchmarks.soak_tally import Failure
from benchmarks.soak_worker import Entry

#: Clocks are read some time before and after what they tell of.
_SLACK_S = 0.2


@dataclass(frozen=True, slots=True)
class Book:
    """What one worker has read."""

    name: str
    timeline: Timeline
    stays: bool
    """It stands in the settings all the time."""
    read: Mapping[int, float]
    """Requests that it read and did not refuse, and when."""


def book(name: str, timeline: Timeline, entries: Iterable[Entry], *, stays: bool) -> Book:
    """Make a book of what a worker wrote down."""
    read = {entry.number: entry.at for entry in entries if not entry.refused}
    return Book(name, timeline, stays, read)


def is_lost(failure: Failure, books: Sequence[Book]) -> bool:
    """Whether a failed request could have been saved."""
    start, end = failure.sent - _SLACK_S, failure.ended
    readers = [one for one in books if failure.number in one.read]
    if readers:
        return all(one.timeline.well_from(start, end) for one in readers)
    if any(one.name == failure.worker and one.timeline.blind_within(start, end) for one in books):
        return False
    since = failure.sent - RECOVERY_S
    return any(one.stays and one.timeline.well_from(since, end) for one in books)


def lost(failures: Iterable[Failure], books: Sequence[Book]) -> list[Failure]:
    """Return those that could have been saved."""
    return [failure for failure in failures if is_lost(failure, books)]


class Twice(NamedTuple):
    """A request that more than one worker has read, in turn."""

    number: int
    first: str
    second: str
    died: bool
    """The first one was killed meanwhile."""


def asked_twice(books: Sequence[Book]) -> list[Twice]:
    """Return the requests that more than one worker may have worked on."""
    seen: dict[int, Book] = {}
    twice = []
    for one in books:
        for number, at in one.read.items():
            other = seen.setdefault(number, one)
            if other is not one:
                first, second = (one, other) if at < other.read[number] else (other, one)
                died = first.timeline.died_within(first.read[number], second.read[number])
                twice.append(Twice(number, first.name, second.name, died))
    return sorted(twice)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return how fast a value grows, per unit of time, by least squares; 0 for a single point."""
    count = len(points)
    if count < 2:
        return 0.0
    middle = sum(at for at, _ in points) / count
    spread = sum((at - middle) ** 2 for at, _ in points)
    return sum((at - middle) * value for at, value in points) / spread if spread else 0.0


def after_warm_up(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leave out the first quarter of the time."""
    if not points:
        return []
    first, last = points[0][0], points[-1][0]
    return [point for point in points if point[0] >= first + (last - first) / 4]


def by_cause(failures: Iterable[Failure]) -> Mapping[str, int]:
    """Count failures by what clients were told, the most frequent first."""
    counts: dict[str, int] = {}
    for one in failures:
        words = one.message.replace(one.worker, "NAME") if one.worker else one.message
        name = f"{one.end.value}; {one.status} {one.code or '-'}: {words[:100]}"
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
