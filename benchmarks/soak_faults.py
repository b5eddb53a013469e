"""Which worker of the soak fails next, how, and for how long; and who was well when. Pure.

One worker at least is always well, and has been for so long that the router knows: whatever the
others do, there is one that could answer.
"""

from collections.abc import Sequence
from enum import StrEnum
from random import Random
from typing import NamedTuple

#: Seconds after which a worker that is well again can be counted on: by then it was probed.
RECOVERY_S = 8.0
#: Seconds that a worker is left alone after a fault, so that it is sent something.
_PAUSE_S = 2.0
#: Fewer than `limits.attempts`: more full workers than the router asks are no fault of it.
_MOST_FULL = 2


class Kind(StrEnum):
    """What a worker does."""

    KILL = "killed"
    """It ends at once, with all that it does, and starts again later."""
    FREEZE = "frozen"
    """It does nothing at all, and then goes on."""
    REFUSE = "refuses"
    """It ends what it does, and accepts no connections."""
    FULL = "full"
    """It answers 503."""
    ERROR = "500"
    """It answers 500."""
    GARBAGE = "garbage"
    """It answers with something that is not HTTP."""
    STALL = "stalls"
    """Its answers stop somewhere, before they begin or in the middle."""
    RESET = "resets"
    """Its answers break off, with the connection."""
    UNWELL = "unwell"
    """It says so when it is probed, and serves."""
    SLOW = "slow"
    """It takes a second or two, and is well all the same."""


class Act(NamedTuple):
    """One worker's next fault."""

    worker: int
    kind: Kind
    seconds: float


class Chaos:
    """Chooses."""

    def __init__(self, random: Random, kinds: Sequence[Kind] = tuple(Kind)) -> None:
        self._random = random
        self._kinds = kinds

    def next(
        self, now: float, since: Sequence[float | None], busy: Sequence[Kind | None]
    ) -> Act | None:
        """Choose a worker and its fault; None if all that are well are needed.

        `since` tells since when each worker is well, None if it is not; `busy` what it does.
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
    """When one worker was well, by everybody's clock."""

    def __init__(self) -> None:
        self._spells: list[tuple[float, float]] = []
        self._blind: list[tuple[float, float]] = []
        self._deaths: list[tuple[float, float]] = []
        self.since: float | None = None
        """Since when it is well; None if it is not."""

    def well(self, now: float) -> None:
        """From now on it is."""
        if self.since is None:
            self.since = now

    def unwell(self, now: float) -> None:
        """From now on it is not."""
        if self.since is not None:
            self._spells.append((self.since, now))
            self.since = None

    def blind(self, start: float, end: float) -> None:
        """Nobody can tell what it had of a request in this time: it had no time to write it."""
        self._blind.append((start, end))

    def died(self, start: float, end: float) -> None:
        """It was killed some time between these, with all that it did."""
        self._deaths.append((start, end))

    def died_within(self, start: float, end: float) -> bool:
        """Whether it may have been killed meanwhile."""
        return any(first <= end and start <= last for first, last in self._deaths)

    def well_from(self, start: float, end: float) -> bool:
        """Whether it was well all the time."""
        if self.since is not None and self.since <= start:
            return True
        return any(first <= start and end <= last for first, last in self._spells)

    def blind_within(self, start: float, end: float) -> bool:
        """Whether there was a moment of which nobody can tell."""
        return any(first <= end and start <= last for first, last in self._blind)
