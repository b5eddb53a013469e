"""Whether a pool's workers count other tokens than the router, and when to check why. Pure."""

#: Seconds between two checks; doubled each time, up to an hour.
FIRST_S, LONGEST_S = 60.0, 3600.0


class Recount:
    """The state of one pool. Some workers always count differently, so checks become rarer."""

    def __init__(self) -> None:
        self._seen = 0
        self._due = 0.0
        self._pause = FIRST_S

    def is_due(self, count: int, now: float) -> bool:
        """Whether to check: `count`, the number of miscounted prompts, has grown, and it is
        time."""
        if count <= self._seen:
            self._seen = count  # another pool of this name has restarted the count
            return False
        if now < self._due:
            return False
        self._seen, self._due = count, now + self._pause
        self._pause = min(LONGEST_S, 2 * self._pause)
        return True
