"""How far the index is behind an engine: the age of what waits to be applied.

Messages wait in their socket, and nothing tells since when. But engines stamp each batch. While
something waits all the time, the stamps of the batches that are applied go on as fast as our own
clock, unless batches come faster than they are applied: what our clock gains is what we are behind.
Only differences on the same clock count, so it does not matter how far two clocks are apart.

When nothing waits, nothing is behind, and counting starts anew: then a clock that was set does not
matter either, nor one that drifts.
"""

#: Seconds behind which an index is not believed. Answered prompts count where they were sent for a
#: second (`unconfirmed` of `kvaware`), as their events may be on their way; twice that is too late.
LATE_S = 2.0


class Lag:
    """How far one engine's events are behind. Pure; times in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """How long the batch that was applied last had waited; 0 if nothing waits now."""
        self._since: float | None = None
        """When the first message came since nothing waited; None if nothing waits."""
        self._ahead: float | None = None
        """What our clock showed more than the engine's for a batch that had just come."""

    @property
    def late(self) -> bool:
        """Whether it is too far behind to be believed."""
        return self.seconds > LATE_S

    def came(self, now: float) -> bool:
        """Note that a message was there at `now`; return whether it is the first to wait."""
        first = self._since is None
        if first:
            self._since = now
        return first

    def applied(self, now: float, made: float, *, first: bool) -> None:
        """Note that a batch was applied that the engine stamped `made`; 0 if it stamps none.

        `first`: it is the one for which `came` returned True, so it had just come then. Without a
        stamp, or if no such batch was ever seen, it may have waited since then.
        """
        if self._since is None:
            return
        self.seconds = now - self._since
        if not made:
            return
        if first:
            self._ahead = self._since - made
        if self._ahead is not None:
            self._ahead = min(self._ahead, now - made)
            self.seconds = min(self.seconds, now - made - self._ahead)

    def caught_up(self) -> None:
        """Note that nothing waits."""
        self._since, self.seconds = None, 0.0
