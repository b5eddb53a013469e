"""How the soak's requests ended, and which were lost or asked twice, though they must not be. Pure.

A request is **lost** if it was valid and complete, its client stayed, it failed, and only the
router is to blame. That is so in two cases:

- No worker had read it, or all that had read it answered 503. So it had surely not begun, and
  could have been sent to another worker; and one of the workers that are always in the settings
  was well from `RECOVERY_S` before the request was sent until it failed. Refused connections, 503
  and kept connections that were just being closed are of this kind.
- Every worker that had read and not refused it was well until it failed, so it would have
  answered.

Not counted are failures at a worker (named in the answer) that was killed, was frozen or closed
its listening socket at that moment: the bytes may have reached its machine and never been read,
and only the worker could tell that from a request that had begun. Refusals for lack of capacity
(429, `overloaded`) are counted separately.

A request was **asked twice** if two workers read it and did not refuse it, and the first one was
still alive when the second one read it. If the first one had been killed meanwhile, its work had
ended; those requests are counted separately, as **asked again**.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from benchmarks.harness.connection import Reply
from benchmarks.soak.fleet import RECOVERY_S, Book
from benchmarks.soak.requests import SoakRequest, answer

_WORKER = re.compile(r"Worker (\S+) ")
#: The router's own comment in a stream that is slow to begin.
_COMMENT = b": waiting\n\n"
#: Error codes of refusals for lack of capacity, which the router may give.
_OVERLOAD_CODES = frozenset(("queue_full", "overloaded"))
#: Tolerance in seconds, because times are recorded shortly before or after the events.
_CLOCK_MARGIN_S = 0.2


class End(StrEnum):
    """How a request ended."""

    ANSWERED = "answered, every byte its own"
    REFUSED = "refused, as it should be"
    LEFT = "left by the client"
    DROPPED = "dropped: the client took nothing"
    FULL = "refused for want of room"
    FAILED = "failed: 5xx"
    TOLD = "failed in mid-stream, and told so"
    CUT = "failed: cut off"
    WRONG = "WRONG answer"
    HUNG = "WITHOUT any end"


#: Ends that a worker's faults may explain, and ends that nothing excuses.
FAILED = frozenset((End.FULL, End.FAILED, End.TOLD, End.CUT))
NEVER = frozenset((End.WRONG, End.HUNG))


class Failure(NamedTuple):
    """A valid request that was not answered, although its client stayed."""

    number: int
    sent: float
    ended: float
    end: End
    status: int
    code: str
    worker: str
    """The worker named in the answer, or empty."""
    message: str


class Violation(NamedTuple):
    """Something that must not happen."""

    kind: str
    end: End
    message: str


@dataclass(slots=True)
class SoakTally:
    """Counts and details of how all requests ended."""

    ends: Counter[tuple[str, End]] = field(default_factory=Counter)
    """Counts by kind of client and end."""
    failures: list[Failure] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    held_back: int = 0
    """Clients that were not started because too many were running."""

    def count(self, kind: str, end: End) -> None:
        """Count an end that is as it should be."""
        self.ends[kind, end] += 1

    def violation(self, kind: str, end: End, message: str) -> None:
        """Count and record an end that must not happen."""
        self.ends[kind, end] += 1
        if len(self.violations) < 1000:
            self.violations.append(Violation(kind, end, message[:300]))

    def judge(self, kind: str, request: SoakRequest, sent: float, reply: Reply) -> bool:
        """Count how a valid request ended; return whether it was answered."""
        end, code, message = verdict(request, reply)
        self.ends[kind, end] += 1
        if end is End.WRONG:
            self.violations.append(Violation(kind, end, f"soak-{request.number}: {message}"))
        elif end not in {End.ANSWERED, End.FULL}:
            worker = reply.headers.get(b"x-warmroute-worker", b"").decode()
            if named := _WORKER.match(message):
                worker = named[1]
            times = (sent, reply.ended)
            self.failures.append(
                Failure(request.number, *times, end, reply.status, code, worker, message[:200])
            )
        return end is End.ANSWERED


def verdict(request: SoakRequest, reply: Reply) -> tuple[End, str, str]:
    """Return how a valid request ended, with the code and message of the error, if any."""
    if not reply.status:
        return End.CUT, "", "the connection was closed without an answer"
    if reply.status >= 500 or reply.status == 429:
        code, message = _error(reply.body)
        return (End.FULL if code in _OVERLOAD_CODES else End.FAILED), code, message
    if not reply.complete:
        return End.CUT, "", "the answer has no end"
    body = reply.body.replace(_COMMENT, b"") if request.wanted.stream else reply.body
    if reply.status == 200 and body == answer(request.number, request.body, request.wanted):
        return End.ANSWERED, "", ""
    code, message = _error(body.rstrip(b"\n").rpartition(b"data: ")[2])
    if reply.status == 200 and request.wanted.stream and code:
        return (End.FULL if code in _OVERLOAD_CODES else End.TOLD), code, message
    return End.WRONG, "", f"{reply.status} {reply.body[:100]!r}...{reply.body[-100:]!r}"


def _error(body: bytes) -> tuple[str, str]:
    """Return code and message of an error in OpenAI's format; else an empty code and the body."""
    try:
        error = json.loads(body)["error"]
        return str(error["code"] or "none"), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return "", body[:200].decode(errors="replace")


def is_lost(failure: Failure, books: Sequence[Book]) -> bool:
    """Return true if a failed request was lost, as defined above."""
    start, end = failure.sent - _CLOCK_MARGIN_S, failure.ended
    readers = [book for book in books if failure.number in book.read]
    if readers:
        return all(book.timeline.well_from(start, end) for book in readers)
    if any(
        book.name == failure.worker and book.timeline.blind_within(start, end) for book in books
    ):
        return False
    since = failure.sent - RECOVERY_S
    return any(book.stays and book.timeline.well_from(since, end) for book in books)


def lost(failures: Iterable[Failure], books: Sequence[Book]) -> list[Failure]:
    """Return the failures that count as lost."""
    return [failure for failure in failures if is_lost(failure, books)]


class Twice(NamedTuple):
    """A request that two workers have read, one after the other."""

    number: int
    first: str
    second: str
    died: bool
    """Whether the first one was killed before the second one read it."""


def asked_twice(books: Sequence[Book]) -> list[Twice]:
    """Return the requests that more than one worker may have worked on."""
    readers: dict[int, Book] = {}
    twice = []
    for book in books:
        for number, at in book.read.items():
            other = readers.setdefault(number, book)
            if other is not book:
                first, second = (book, other) if at < other.read[number] else (other, book)
                died = first.timeline.died_within(first.read[number], second.read[number])
                twice.append(Twice(number, first.name, second.name, died))
    return sorted(twice)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the least-squares slope of a value over time; 0 for fewer than two points."""
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
    """Count failures by the error that clients received, the most frequent first."""
    counts: dict[str, int] = {}
    for failure in failures:
        words = (
            failure.message.replace(failure.worker, "NAME") if failure.worker else failure.message
        )
        name = f"{failure.end.value}; {failure.status} {failure.code or '-'}: {words[:100]}"
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
