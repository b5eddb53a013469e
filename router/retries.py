"""The retry budget: a fleet in trouble is not buried under second attempts.

Counted attempts a request bound one request; this bounds all of them together. When much fails at
once, retries would multiply the load on what is left, and that fails too.
"""


class Budget:
    """At most a share of the requests in flight may be retries at once.

    A few are always allowed: in a quiet fleet a share of hardly anything is nothing. A share of
    nothing is meant, though, and allows none.
    """

    def __init__(self, share: float, least: int = 3) -> None:
        self.used = 0
        """Retries under way."""
        self.denied = 0
        """Retries that there was no room for."""
        self._few = least
        self.change(share)

    def change(self, share: float) -> None:
        """Another share, for the retries to come."""
        self._share = share
        self._least = self._few if share > 0 else 0

    def take(self, in_flight: int) -> bool:
        """Ask before a retry; `in_flight` counts every request, retries too.

        If it is allowed, `give_back` must follow when the retry has ended, however it ends.
        """
        if self.used >= max(self._least, int(self._share * in_flight)):
            self.denied += 1
            return False
        self.used += 1
        return True

    def give_back(self) -> None:
        """A retry that was allowed has ended."""
        if self.used == 0:
            raise ValueError("more retries ended than were allowed")
        self.used -= 1
