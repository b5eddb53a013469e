"""Passive health of a pool: how many workers may be left out at once, and when none is.

When nothing is left out, a request costs one look at `any_open` and an integer kept for its
outcome. A worker's own part is its breaker (`breaker.py`).
"""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from router.breaker import Breaker, Ejection, State

#: Shares are compared with this much tolerance: 0.29 of 100 is 29.
_EPSILON = 1e-9


class Member(Protocol):
    """A worker of a pool."""

    breaker: Breaker

    @property
    def ready(self) -> bool:
        """Its probes succeed."""


M = TypeVar("M", bound=Member)


class Breakers:
    """The breakers of one pool: how many may be open, and when they are not heeded."""

    def __init__(
        self, settings: Ejection, members: Iterable[Member], tell: Callable[[str], None]
    ) -> None:
        """Take on the members' breakers as they are; `tell` gets a sentence at every change."""
        self.any_open = False
        """Whether `admitted` needs to be asked."""
        self.panicking = False
        """Too few workers are healthy: ejections are not heeded."""
        self.ignored = 0
        """Requests for which they were not, for want of another worker."""
        self.denied = 0
        """Ejections that would have been too many."""
        self._members: tuple[Member, ...] = ()
        self._tell = tell
        self.change(settings, members)

    def change(self, settings: Ejection, members: Iterable[Member]) -> None:
        """Other settings, or other workers; those who stay, or come, are as they were.

        If more are left out than the pool allows now, the next to be back are let in.
        """
        left = {member.breaker for member in self._members}
        self._settings, self._members = settings, tuple(members)
        size = len(self._members)
        self._most = min(int(settings.share * size + _EPSILON), max(0, size - 1))
        for breaker in left.difference(member.breaker for member in self._members):
            breaker.leave(self)
        for member in self._members:
            member.breaker.join(self, settings)
        out = sorted(self._out(), key=lambda breaker: breaker.until)
        for breaker in out[: max(0, len(out) - self._most)]:
            breaker.let_in(breaker.until)
        self._count()

    def admitted(self, now: float, candidates: list[M]) -> list[M]:
        """Those of the ready `candidates` that requests may go to; never nobody.

        Where only workers that are left out could answer, asking one is better than a refusal.
        """
        if not self.any_open:
            return candidates
        self._look_around(now)
        if not self.panicking:
            chosen = [member for member in candidates if member.breaker.admits(now)]
            if chosen:
                return chosen
        self.ignored += 1
        return candidates

    def admits(self, now: float, member: Member) -> bool:
        """Whether a worker that `admitted` listed some time ago may still be asked."""
        return not self.any_open or self.panicking or member.breaker.admits(now)

    # What its breakers call.

    def room(self, now: float) -> bool:
        """Whether one more may open.

        A worker whose time is over and that nobody has tried since makes room: it is let back in.
        """
        out = self._out()
        if len(out) < self._most:
            return True
        for breaker in out if self._most else ():
            if breaker.admits(now):
                breaker.let_in(now)
                return True
        self.denied += 1
        return False

    def changed(self, news: str) -> None:
        """A breaker has opened or closed."""
        self._tell(news)
        self._count()

    def _out(self) -> list[Breaker]:
        return [m.breaker for m in self._members if not m.breaker.closed]

    def _count(self) -> None:
        self.any_open = bool(self._out())
        if not self.any_open:
            self._panic(on=False, healthy=sum(member.ready for member in self._members))

    def _look_around(self, now: float) -> None:
        healthy = sum(m.ready and m.breaker.state(now) is State.CLOSED for m in self._members)
        few = healthy < self._settings.panic * len(self._members) - _EPSILON
        self._panic(on=few, healthy=healthy)

    def _panic(self, *, on: bool, healthy: int) -> None:
        if on is self.panicking:
            return
        self.panicking = on
        which = "ejections are ignored" if on else "ejections count again"
        self._tell(f"{healthy} of {len(self._members)} workers are healthy: {which}")
