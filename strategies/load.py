"""What this router has booked on one worker: prefill seconds not yet done, requests, KV tokens.

A booking counts from the moment of the decision, before any byte is sent, so that a burst does
not herd; it is settled whatever happens. Engines compute prompts in order, so booked prefill
drains like a queue: the oldest shrinks with time, but is only gone when its first byte is seen.
"""

from math import exp
from typing import Final

#: First bytes this close came out of one step: the prompts were computed together.
TOGETHER_S: Final = 0.005
#: Seconds that a request stays, until some have been seen; and the weight of one more of them.
STAY_S = 8.0
STAY_WEIGHT: Final = 0.05
#: How far back one looks to tell how busy a worker has been, in seconds.
BACK_S: Final = 45.0
#: The same for how full its KV cache has been.
KV_BACK_S: Final = 30.0


class Booking:
    """One request on one worker. Given back to `Load` to mark its first byte and its end.

    (No dataclass: what makes one is not compiled.)
    """

    __slots__ = (
        "at",
        "computed_s",
        "elsewhere",
        "kv_tokens",
        "prefill_s",
        "stream",
        "taken_back",
        "uncached",
        "whole_s",
    )

    def __init__(
        self,
        prefill_s: float,
        kv_tokens: int,
        uncached: int,
        stream: bool,
        at: float,
        *,
        elsewhere: bool,
    ) -> None:
        self.prefill_s = prefill_s
        """Seconds its prefill was predicted to take there."""
        self.kv_tokens = kv_tokens
        """Tokens it may take in the KV cache."""
        self.uncached = uncached
        """Tokens of its prompt to be computed, or loaded from slower tiers."""
        self.stream = stream
        """Whether its first byte will tell that the prefill is done."""
        self.at = at
        """When it was booked."""
        self.elsewhere = elsewhere
        """Another process of this router serves it."""
        self.computed_s: float | None = None
        """Seconds that its prefill took, the worker having computed nothing else meanwhile."""
        self.whole_s: float | None = None
        """Seconds that all of it took, where that was less than its prefill had been predicted."""
        self.taken_back = False
        """The worker did not take it on."""


class Load:
    """Booked work of one worker. Every time is the caller's clock, in seconds."""

    __slots__ = (
        "_booked_s",
        "_head_since",
        "_kv_at",
        "_kv_surplus",
        "_last",
        "_open",
        "decoding",
        "elsewhere",
        "elsewhere_tokens",
        "given_at",
        "given_s",
        "in_flight",
        "kv_tokens",
        "pending",
        "promised_s",
        "promised_tokens",
        "shared_tokens",
        "stay_s",
        "turn",
        "uncached",
    )

    def __init__(self) -> None:
        self._open: set[Booking] = set()
        self.pending: dict[Booking, None] = {}
        """Prefill not yet known to be done, oldest first."""
        # (a dict keeps order and removes in O(1))
        self._last: Booking | None = None
        self._booked_s = 0.0
        self._head_since = 0.0
        self.given_s = 0.0
        """Prefill booked over the last `BACK_S` before `given_at`; the older the less it counts.
        In seconds as predicted, which are more than it takes (`pace.py`)."""
        self.given_at = 0.0
        self.kv_tokens = 0
        self.shared_tokens = 0.0
        """Of these, what its requests have in common: counted for all of them but the first."""
        self._kv_surplus = 0.0
        self._kv_at = 0.0
        self.uncached = 0
        """Tokens booked and not known to be computed or loaded."""
        self.in_flight = 0
        """Requests booked and not ended."""
        self.elsewhere = 0
        """Of these, those that other processes of this router serve."""
        self.elsewhere_tokens = 0
        """What these may take in the KV cache."""
        self.decoding = 0
        """Requests past their first byte."""
        self.promised_s = 0.0
        """Prefill of requests that are held back and would go there, in seconds."""
        self.promised_tokens = 0
        """What those of them may take in the KV cache that have waited long for room there."""
        self.stay_s = STAY_S
        """How long a request stays there, smoothed."""
        self.turn = 0
        """Larger than every other worker's when chosen last; breaks ties."""

    @property
    def here(self) -> int:
        """Requests that this process has sent there, not ended."""
        return self.in_flight - self.elsewhere

    @property
    def tokens_here(self) -> int:
        """What these may take in the KV cache."""
        return self.kv_tokens - self.elsewhere_tokens

    def book(
        self,
        now: float,
        prefill_s: float,
        kv_tokens: int = 0,
        *,
        uncached: int | None = None,
        stream: bool = True,
        elsewhere: bool = False,
    ) -> Booking:
        """Charge a request to this worker; `uncached` tokens of it are not on its GPU, or all."""
        uncached = kv_tokens if uncached is None else uncached
        booking = Booking(prefill_s, kv_tokens, uncached, stream, now, elsewhere=elsewhere)
        if elsewhere:
            self.elsewhere += 1
            self.elsewhere_tokens += kv_tokens
        if not self.pending:
            self._head_since = now
        self._open.add(booking)
        self.in_flight += 1
        self.pending[booking] = None
        self.uncached += uncached
        self._booked_s += prefill_s
        late = min(0.0, now - self.given_at)  # others tell of it afterwards
        self.given_s = self._given_still(now) + prefill_s * (exp(late / BACK_S) if late else 1.0)
        self.given_at = max(now, self.given_at)
        self._take(kv_tokens, now)
        return booking

    def first_byte(self, booking: Booking, now: float) -> None:
        """Its prefill is done. Doing it twice, or after `release`, changes nothing."""
        if booking not in self.pending:
            return
        if not booking.stream:
            booking.whole_s = now - booking.at
        self._computed(booking, now)

    def _computed(self, booking: Booking, now: float) -> None:
        head = booking is next(iter(self.pending))
        del self.pending[booking]
        if head and booking.taken_back:  # others were computed meanwhile
            following = next(iter(self.pending), booking)
            self._head_since = max(self._head_since, following.at)
        elif head:
            if booking.stream:
                self._time(booking, now - self._head_since)
            self._head_since = now
        self.uncached -= booking.uncached
        self.decoding += 1
        self._booked_s -= booking.prefill_s
        if not self.pending:
            self._booked_s = 0.0  # no drift from adding and taking away floats

    def _time(self, booking: Booking, seconds: float) -> None:
        """Note how long it took, unless the worker computed it together with the one before."""
        if seconds > TOGETHER_S:
            booking.computed_s = seconds
        elif self._last is not None:
            self._last.computed_s = None
        self._last = booking

    def kv_surplus(self, now: float) -> float:
        """How many tokens more were in use over the last `KV_BACK_S`, on the average, than are.

        What requests have in common is in use once.
        """
        return self._kv_surplus * exp(min(0.0, self._kv_at - now) / KV_BACK_S)

    def share(self, tokens: float, now: float) -> None:
        """Its requests have so many tokens in common by now."""
        more = tokens - self.shared_tokens
        if more:
            self._uses(-more, now)
            self.shared_tokens = tokens

    def _take(self, kv_tokens: int, now: float) -> None:
        self._uses(kv_tokens, now)
        self.kv_tokens += kv_tokens

    def _uses(self, more: float, now: float) -> None:
        self._kv_surplus = self.kv_surplus(now) - more
        self._kv_at = max(now, self._kv_at)

    def _given_still(self, now: float) -> float:
        """What counts by now of all that it was given."""
        return self.given_s * exp(min(0.0, self.given_at - now) / BACK_S)

    def take_back(self, booking: Booking, now: float) -> None:
        """The worker did not take it on: it was not given that. To be released all the same."""
        booking.taken_back = True
        was = booking.prefill_s * exp(min(0.0, booking.at - now) / BACK_S)
        self.given_s = max(0.0, self._given_still(now) - was)
        self.given_at = max(now, self.given_at)

    def release(self, booking: Booking, now: float) -> None:
        """The request has ended. Doing it twice changes nothing."""
        self.first_byte(booking, now)
        if booking in self._open:
            self._open.remove(booking)
            self.in_flight -= 1
            self.decoding -= 1
            self._take(-booking.kv_tokens, now)
            if booking.elsewhere:
                self.elsewhere -= 1
                self.elsewhere_tokens -= booking.kv_tokens
            if not booking.taken_back:
                self.stay_s += STAY_WEIGHT * (now - booking.at - self.stay_s)

    def wait(self, now: float) -> float:
        """Seconds of booked prefill not yet done.

        The oldest booking is charged what is left of its prediction, never below zero: one that
        takes longer than predicted delays those behind it, it does not cancel them. Answers that
        come in one piece are let go of once their prediction has passed.
        """
        while self.pending:
            head = next(iter(self.pending))
            spent = now - self._head_since
            if spent < head.prefill_s or head.stream:
                left = self._booked_s - min(spent, head.prefill_s)
                return max(0.0, left)
            self._computed(head, self._head_since + head.prefill_s)
        return 0.0

    def __repr__(self) -> str:
        return (
            f"<Load in_flight={self.in_flight} decoding={self.decoding}"
            f" booked={self._booked_s:.3f}s kv={self.kv_tokens}>"
        )
