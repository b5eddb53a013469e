"""What this router has booked on one worker: prefill seconds not yet done, requests, KV tokens.

A booking counts from the moment of the decision, before any byte is sent, so that a burst does
not herd; it is settled whatever happens. Engines compute prompts in order, so booked prefill
drains like a queue: the oldest shrinks with time, but is only gone when its first byte is seen.
"""

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Booking:
    """One request on one worker. Given back to `Load` to mark its first byte and its end."""

    prefill_s: float
    """Seconds its prefill was predicted to take there."""
    kv_tokens: int
    """Tokens it may take in the KV cache."""
    stream: bool
    """Whether its first byte will tell that the prefill is done."""
    waited_s: float
    """Seconds of other prefill that were booked before it."""
    pace_factor: float = 1.0
    """The worker's learned factor by which both were predicted."""


class Load:
    """Booked work of one worker. Every time is the caller's clock, in seconds."""

    __slots__ = (
        "_booked_s",
        "_head_since",
        "_open",
        "_pending",
        "decoding",
        "in_flight",
        "kv_tokens",
        "turn",
    )

    def __init__(self) -> None:
        self._open: set[Booking] = set()
        # Prefill not yet known to be done, oldest first (a dict keeps order and removes in O(1)).
        self._pending: dict[Booking, None] = {}
        self._booked_s = 0.0
        self._head_since = 0.0
        self.kv_tokens = 0
        self.in_flight = 0
        """Requests booked and not ended."""
        self.decoding = 0
        """Requests past their first byte."""
        self.turn = 0
        """Larger than every other worker's when chosen last; breaks ties."""

    def book(
        self,
        now: float,
        prefill_s: float,
        kv_tokens: int = 0,
        *,
        stream: bool = True,
        pace_factor: float = 1.0,
    ) -> Booking:
        """Charge a request to this worker."""
        booking = Booking(prefill_s, kv_tokens, stream, self.wait(now), pace_factor)
        if not self._pending:
            self._head_since = now
        self._open.add(booking)
        self.in_flight += 1
        self._pending[booking] = None
        self._booked_s += prefill_s
        self.kv_tokens += kv_tokens
        return booking

    def first_byte(self, booking: Booking, now: float) -> None:
        """Its prefill is done. Doing it twice, or after `release`, changes nothing."""
        if booking not in self._pending:
            return
        if booking is next(iter(self._pending)):
            self._head_since = now
        del self._pending[booking]
        self.decoding += 1
        self._booked_s -= booking.prefill_s
        if not self._pending:
            self._booked_s = 0.0  # no drift from adding and taking away floats

    def release(self, booking: Booking, now: float) -> None:
        """The request has ended. Doing it twice changes nothing."""
        self.first_byte(booking, now)
        if booking in self._open:
            self._open.remove(booking)
            self.in_flight -= 1
            self.decoding -= 1
            self.kv_tokens -= booking.kv_tokens

    def wait(self, now: float) -> float:
        """Seconds of booked prefill not yet done.

        The oldest booking is charged what is left of its prediction, never below zero: one that
        takes longer than predicted delays those behind it, it does not cancel them. Answers that
        come in one piece are let go of once their prediction has passed.
        """
        while self._pending:
            head = next(iter(self._pending))
            spent = now - self._head_since
            if spent < head.prefill_s or head.stream:
                left = self._booked_s - min(spent, head.prefill_s)
                return max(0.0, left)
            self.first_byte(head, self._head_since + head.prefill_s)
        return 0.0

    def __repr__(self) -> str:
        return (
            f"<Load in_flight={self.in_flight} decoding={self.decoding}"
            f" booked={self._booked_s:.3f}s kv={self.kv_tokens}>"
        )
