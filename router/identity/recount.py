"""Whether a pool's workers count other tokens than we do, and when to look into it. Pure."""

#: Seconds between two looks: doubled each time, up to an hour.
FIRST_S, LONGEST_S = 60.0, 3600.0


class Recount:
    """Of one pool: workers may count otherwise for good, which needs no look each time."""

    def __init__(self) -> None:
        self._seen = 0
        self._due = 0.0
        self._pause = FIRST_S

    def is_due(self, count: int, now: float) -> bool:
        """Whether there are more prompts with another `count` than before, and it is time."""
        if count <= self._seen:
            self._seen = count  # another strategy has begun to count anew
            return False
        if now < self._due:
            return False
        self._seen, self._due = count, now + self._pause
        self._pause = min(LONGEST_S, 2 * self._pause)
        return True
