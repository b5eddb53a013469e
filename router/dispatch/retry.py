"""The retry budget: keeps a fleet in trouble from being buried under second attempts.

`limits.attempts` bounds one request; this bounds all of them together. When much fails at once,
retries would multiply the load on the workers that are left, until those fail too. A request that
finds no room waits for its turn again (`scheduler.py`).
"""


class Budget:
    """Allows at most a share of the requests in flight to be retries at once.

    `least` retries are always allowed, because in a quiet fleet the share would round to none. A
    share of zero allows none at all.
    """

    def __init__(self, share: float, least: int = 3) -> None:
        self.used = 0
        """Retries under way."""
        self.denied = 0
        """Requests that ended because they were allowed no retry."""
        self._few = least
        self.change(share)

    def change(self, share: float) -> None:
        """Use another share for retries from now on."""
        self._share = share
        self.least = self._few if share > 0 else 0
        """How many are always allowed; 0: none ever is."""

    def allows(self, in_flight: int) -> bool:
        """Whether `take` would allow a retry."""
        return self.used < max(self.least, int(self._share * in_flight))

    def take(self, in_flight: int) -> bool:
        """Ask before a retry; `in_flight` counts all requests, including retries.

        If it returns True, call `give_back` when the retry has ended, however it ends.
        """
        allowed = self.allows(in_flight)
        self.used += allowed
        return allowed

    def give_back(self) -> None:
        """End a retry that was allowed."""
        if self.used == 0:
            raise ValueError("more retries ended than were allowed")
        self.used -= 1
