"""Passive health of a pool: how many workers may be ejected at once, and when ejections count.

While no worker is ejected, a request costs one check of `any_open` and one integer kept for its
outcome. The state of a single worker is its breaker (`breaker.py`).
"""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from router.fleet.breaker import Breaker, Ejection, State

#: Tolerance for shares, so that floating point makes 0.29 of 100 workers 29, not 28.
_EPSILON = 1e-9


class Member(Protocol):
    """A worker of a pool."""

    breaker: Breaker

    @property
    def ready(self) -> bool:
        """Whether its probes succeed."""


M = TypeVar("M", bound=Member)


class Breakers:
    """The breakers of one pool: limits how many are open, and decides when to ignore them."""

    def __init__(
        self, settings: Ejection, members: Iterable[Member], tell: Callable[[str], None]
    ) -> None:
        """Take the members' breakers in their current state.

        `tell` is called with a sentence for the log at every change.
        """
        self.any_open = False
        """Whether `admitted` needs to be called."""
        self.panicking = False
        """Too few workers are healthy, so ejections are ignored."""
        self.ignored = 0
        """Requests for which ejections were ignored, as there was no other worker."""
        self.denied = 0
        """Ejections that did not happen because too many workers were ejected already."""
        self._members: tuple[Member, ...] = ()
        self._tell = tell
        self.change(settings, members)

    def change(self, settings: Ejection, members: Iterable[Member]) -> None:
        """Apply new settings or members; each breaker keeps its state.

        If more workers are ejected than the pool now allows, those due back first are let in.
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
        """Return the ready `candidates` that requests may go to; at least one if there are any.

        If only ejected workers could answer, asking one is better than a refusal.
        """
        if not self.any_open:
            return candidates
        chosen = self.healthy(now, candidates)
        if not chosen:
            self.ignored += 1
        return chosen or candidates

    def healthy(self, now: float, candidates: list[M]) -> list[M]:
        """Return the `candidates` that are not ejected; none if ejections are to be ignored."""
        self._look_around(now)
        if self.panicking:
            return []
        return [member for member in candidates if member.breaker.admits(now)]

    def admits(self, now: float, member: Member) -> bool:
        """Whether a worker that `admitted` returned a while ago may still be asked."""
        return not self.any_open or self.panicking or member.breaker.admits(now)

    # Called by the breakers.

    def room(self, now: float) -> bool:
        """Whether one more breaker may open.

        To make room, a worker whose time is over, and which has no trial under way, is let back in.
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
        """Log that a breaker has opened or closed, and count again."""
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
