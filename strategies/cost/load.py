"""What is booked on one worker: prefill seconds not yet done, requests, and KV cache tokens.

A booking counts from the moment of the decision, before any byte is sent, so that a burst does not
pile up on one worker; it is released whatever happens. Engines compute prompts in order, so booked
prefill drains like a queue: the oldest booking shrinks as time passes, but stays until its first
byte arrives.
"""

from collections.abc import Sequence
from math import exp

from strategies.constants import LATE_S, MARGIN, SMOOTHED_S, STAY_S, TOGETHER_S, WEIGHT


class Booking:
    """One request on one worker. Pass it back to `Load` to mark its first byte and its end.

    (Not a dataclass: generated methods of dataclasses are not compiled.)
    """

    def __init__(
        self,
        prefill_s: float,
        kv_tokens: int,
        uncached: int,
        stream: bool,
        at: float,
        *,
        elsewhere: bool,
        since: float | None,
    ) -> None:
        self.prefill_s = prefill_s
        """Predicted prefill time there, in seconds."""
        self.kv_tokens = kv_tokens
        """Tokens it may take in the KV cache."""
        self.uncached = uncached
        """Prompt tokens to compute, or to load from slower tiers."""
        self.stream = stream
        """Whether its first byte means that the prefill is done."""
        self.at = at
        """When it was booked."""
        self.elsewhere = elsewhere
        """Another process of this router serves it."""
        self.since = since
        """When its request came, if the worker can be made to drop it; None: it cannot."""
        self.keys: Sequence[int] = ()
        """The keys of its prompt."""
        self.held_blocks = 0
        """How many of its first blocks it need not compute."""
        self.computed_s: float | None = None
        """Seconds its prefill took while the worker computed no other prompt; None if unknown."""
        self.whole_s: float | None = None
        """Seconds for an answer in one piece, if it came before its prefill counted as done."""
        self.taken_back = False
        """The worker did not accept it."""


def late_s(head: Booking, spent: float) -> float:
    """Return how many seconds late the oldest booking of a worker is: beyond the margin.

    None that another process serves is late: news of its first byte may be lost.
    """
    return 0.0 if head.elsewhere else max(0.0, spent - MARGIN * head.prefill_s)


class Load:
    """Work booked on one worker. Every time is the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._open: set[Booking] = set()
        self.pending: dict[Booking, None] = {}
        """Bookings whose prefill is not known to be done, oldest first."""
        self._last: Booking | None = None
        self._booked_s = 0.0
        self._untimed = False
        """The time of the next prefill says nothing: it began in the middle of a step."""
        self.head_since = 0.0
        """Since when the oldest of them is being computed."""
        self.given_s = 0.0
        """Prefill booked over about `SMOOTHED_S` before `given_at`; older ones count less."""
        self.given_at = 0.0
        self.kv_tokens = 0
        self.shared_tokens = 0.0
        """Part of `kv_tokens` that counts prefixes shared by several requests more than once."""
        self.surplus = 0.0
        """Average minus current KV tokens in use, at the last change; see `kv_surplus`."""
        self._kv_at = 0.0
        self.uncached = 0
        """Tokens booked and not known to be computed or loaded."""
        self.in_flight = 0
        """Requests booked and not ended."""
        self.here = 0
        """The part of `in_flight` that this process sent, not another one of this router."""
        self.tokens_here = 0
        """Tokens that those requests may take in the KV cache."""
        self.decoding = 0
        """Requests past their first byte."""
        self.promised_s = 0.0
        """Prefill seconds of requests that wait in the router and would go there."""
        self.promises: list[tuple[float, float]] = []
        """Each of them: its need (the order in which they are sent, least first), and seconds."""
        self.stay_s = STAY_S
        """How long a request stays there in seconds, smoothed."""
        self.late_from = 0.0
        """When the oldest of the requests that were moved should have been answered."""
        self.late_until = 0.0
        """Until when the worker counts as late since then; 0: it does not."""
        self.turn = 0
        """Counter value at the latest choice of this worker; the lowest wins ties."""

    def book(
        self,
        now: float,
        prefill_s: float,
        kv_tokens: int = 0,
        *,
        uncached: int | None = None,
        stream: bool = True,
        elsewhere: bool = False,
        since: float | None = None,
    ) -> Booking:
        """Charge a request to this worker.

        `uncached` is how many of its tokens are not on the GPU (default: all); `since` is when it
        came, if it may be preempted.
        """
        uncached = kv_tokens if uncached is None else uncached
        booking = Booking(
            prefill_s, kv_tokens, uncached, stream, now, elsewhere=elsewhere, since=since
        )
        if not elsewhere:
            self.here += 1
            self.tokens_here += kv_tokens
        if not self.pending:
            self.head_since = now
        self._open.add(booking)
        self.in_flight += 1
        self.pending[booking] = None
        self.uncached += uncached
        self._booked_s += prefill_s
        self.given_s = self.given_lately(now)
        self.given_at = max(now, self.given_at)
        # (Other processes report their bookings late.)
        self.given_s += prefill_s * exp((now - self.given_at) / SMOOTHED_S)
        self._uses(kv_tokens, now)
        self.kv_tokens += kv_tokens
        return booking

    def first_byte(self, booking: Booking, now: float) -> None:
        """Mark its prefill as done. A second call, or one after `release`, changes nothing."""
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
            self.head_since = max(self.head_since, following.at)
        elif head:
            if self._untimed:
                self._untimed, self._last = False, None
            elif booking.stream:
                if now - self.head_since > TOGETHER_S:
                    booking.computed_s = now - self.head_since
                elif self._last is not None:  # the worker computed both together
                    self._last.computed_s = None
                self._last = booking
            self.head_since = now
        self.uncached -= booking.uncached
        self.decoding += 1
        self._booked_s -= booking.prefill_s
        if not self.pending:
            self._booked_s = 0.0  # no drift from adding and taking away floats

    def kv_surplus(self, now: float) -> float:
        """Return average minus current KV tokens in use, over about the last `SMOOTHED_S`.

        Prefixes that several requests share count once.
        """
        return self.surplus * exp(min(0.0, self._kv_at - now) / SMOOTHED_S)

    def share(self, tokens: float, now: float) -> None:
        """Set `shared_tokens`."""
        more = tokens - self.shared_tokens
        if more:
            self._uses(-more, now)
            self.shared_tokens = tokens

    def _uses(self, more: float, now: float) -> None:
        self.surplus = self.kv_surplus(now) - more
        self._kv_at = max(now, self._kv_at)

    def given_lately(self, now: float) -> float:
        """Return `given_s`, decayed until `now`."""
        return self.given_s * exp(min(0.0, self.given_at - now) / SMOOTHED_S)

    def take_back(self, booking: Booking, now: float) -> None:
        """Undo its part in `given_s`: the worker did not accept it. It still has to be released."""
        booking.taken_back = True
        was = booking.prefill_s * exp(min(0.0, booking.at - now) / SMOOTHED_S)
        self.given_s = max(0.0, self.given_lately(now) - was)
        self.given_at = max(now, self.given_at)

    def spent(self, booking: Booking, now: float) -> float:
        """Return how many seconds the prefill of a pending booking has lasted."""
        return max(0.0, now - self.head_since) if booking is next(iter(self.pending)) else 0.0

    def drop(self, booking: Booking, now: float, done: float) -> None:
        """End a pending request that the worker is made to drop with a share of its prefill done.

        (`preemption.py` has what to do besides.)
        """
        head = booking is next(iter(self.pending))
        given = self.given_lately(now)
        self.take_back(booking, now)
        self.given_s += done * (given - self.given_s)
        self.release(booking, now)
        if head:
            self.head_since, self._untimed = now, True

    def late(self, now: float) -> float:
        """Return how many seconds later than predicted its oldest request is, or one moved is."""
        late = self._moved_s(now)
        self.wait(now)  # drops answers in one piece whose predicted time has passed
        for head in self.pending:
            return max(late, late_s(head, now - self.head_since))
        return late

    def moved(self, now: float) -> None:
        """Note, before one is dropped, that requests are moved because the worker is late."""
        self.late_from, self.late_until = now - self.late(now), now + LATE_S

    def answers(self) -> None:
        """Note that the worker has computed something: it does not count as late any more."""
        self.late_until = 0.0

    def release(self, booking: Booking, now: float) -> None:
        """End the request. A second call changes nothing."""
        self.first_byte(booking, now)
        if booking in self._open:
            self._open.remove(booking)
            self.in_flight -= 1
            self.decoding -= 1
            self._uses(-booking.kv_tokens, now)
            self.kv_tokens -= booking.kv_tokens
            if not booking.elsewhere:
                self.here -= 1
                self.tokens_here -= booking.kv_tokens
            if not booking.taken_back:
                self.stay_s += WEIGHT * (now - booking.at - self.stay_s)

    def wait(self, now: float) -> float:
        """Return the seconds of booked prefill not yet done.

        All of it may take `MARGIN` times as long as predicted, so the oldest booking counts with
        what is left of that. If it takes longer, it is expected to take as long again as it is
        late: so hardly anything more is sent to a worker that hangs. An answer in one piece cannot
        tell when its prefill is done, so its booking is dropped from the queue after that time. A
        worker from which requests were moved counts as late as they would be there.
        """
        moved = self._moved_s(now) if self.late_until else 0.0
        while self.pending:
            head = next(iter(self.pending))
            spent = now - self.head_since
            if spent < MARGIN * head.prefill_s:
                return max(0.0, MARGIN * self._booked_s - spent) + moved
            if head.stream:
                rest = MARGIN * max(0.0, self._booked_s - head.prefill_s)
                return rest + max(late_s(head, spent), moved)
            self._computed(head, self.head_since + MARGIN * head.prefill_s)
        return moved

    def _moved_s(self, now: float) -> float:
        """Return how many seconds late those are that were moved."""
        if now >= self.late_until:
            self.late_until = 0.0
            return 0.0
        return max(0.0, now - self.late_from)
