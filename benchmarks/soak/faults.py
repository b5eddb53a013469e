"""Choice of the next fault in the soak, and a record of when each worker was well. Pure.

At least one worker is always well, and has been for long enough that the router knows it. So
whatever the others do, there is one that could answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from benchmarks.soak.worker import Entry, Kind

#: Seconds after recovery until a worker counts as usable: by then the router has probed it.
RECOVERY_S = 8.0
#: Seconds without a new fault after a worker's recovery, so that it gets some requests.
_PAUSE_S = 2.0
#: Most workers that are full at once: fewer than `limits.attempts`, because the router is not to
#: blame if every worker that it tries is full.
_MOST_FULL = 2


class Act(NamedTuple):
    """One worker's next fault."""

    worker: int
    kind: Kind
    seconds: float


class Chaos:
    """Chooses the next fault at random."""

    def __init__(self, random: Random, kinds: Sequence[Kind] = tuple(Kind)) -> None:
        self._random = random
        self._kinds = kinds

    def next(
        self, now: float, since: Sequence[float | None], busy: Sequence[Kind | None]
    ) -> Act | None:
        """Choose a worker and its fault; None if no worker may fail now.

        `since` has for each worker the time since when it is well, None if it is not; `busy` has
        its current fault, if any.
        """
        able = [place for place, then in enumerate(since) if _well_for(_PAUSE_S, then, now)]
        sound = {place for place, then in enumerate(since) if _well_for(RECOVERY_S, then, now)}
        able = [place for place in able if busy[place] is None and sound - {place}]
        kinds = list(self._kinds)
        if sum(kind is Kind.FULL for kind in busy) >= _MOST_FULL and Kind.FULL in kinds:
            kinds.remove(Kind.FULL)
        if not able or not kinds:
            return None
        place, kind = self._random.choice(able), self._random.choice(kinds)
        return Act(place, kind, self._random.uniform(1.0, 6.0))


def _well_for(seconds: float, since: float | None, now: float) -> bool:
    return since is not None and now - since >= seconds


class Timeline:
    """When one worker was well, in monotonic time, which all processes share."""

    def __init__(self) -> None:
        self._spells: list[tuple[float, float]] = []
        self._blind: list[tuple[float, float]] = []
        self._deaths: list[tuple[float, float]] = []
        self.since: float | None = None
        """Since when the worker is well; None if it is not."""

    def well(self, now: float) -> None:
        """Record that the worker is well from `now` on."""
        if self.since is None:
            self.since = now

    def unwell(self, now: float) -> None:
        """Record that the worker is not well from `now` on."""
        if self.since is not None:
            self._spells.append((self.since, now))
            self.since = None

    def blind(self, start: float, end: float) -> None:
        """Record a time for which its book may miss requests, because it could not write them."""
        self._blind.append((start, end))

    def died(self, start: float, end: float) -> None:
        """Record that it was killed, with all its requests, at some time between these two."""
        self._deaths.append((start, end))

    def died_within(self, start: float, end: float) -> bool:
        """Whether it may have been killed in this time."""
        return any(first <= end and start <= last for first, last in self._deaths)

    def well_from(self, start: float, end: float) -> bool:
        """Whether it was well during all of this time."""
        if self.since is not None and self.since <= start:
            return True
        return any(first <= start and end <= last for first, last in self._spells)

    def blind_within(self, start: float, end: float) -> bool:
        """Whether this time overlaps one for which its book may miss requests."""
        return any(first <= end and start <= last for first, last in self._blind)


@dataclass(frozen=True, slots=True)
class Book:
    """The requests that one worker has read."""

    name: str
    timeline: Timeline
    stays: bool
    """Whether it is in the settings all the time."""
    read: Mapping[int, float]
    """When it read each request, by number; those that it refused are left out."""


def book(name: str, timeline: Timeline, entries: Iterable[Entry], *, stays: bool) -> Book:
    """Make a book from a worker's entries."""
    read = {entry.number: entry.at for entry in entries if not entry.refused}
    return Book(name, timeline, stays, read)
