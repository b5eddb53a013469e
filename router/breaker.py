"""Passive health of one worker: when its requests keep failing it is left out for a while.

Probes ask whether a worker is there; a breaker watches what becomes of the requests it is sent.

    CLOSED  -- failures in a row -->  OPEN  -- its time is over -->  HALF_OPEN: one trial request
       ^                               ^                                |       |
       |                               '---- it fails: twice as long ---'       |
       '------------------------- it works, or its answer begins ---------------'

Where all others say that they are full, the trial may come before its time, once it has been left
out for the shortest time there is. If no answer begins, no more is held against it.

One that was restarted is let in at once: what failed is gone.

What an outcome says of the worker:

- worked: an answer below 400. It ends a row of failures.
- failed: the connection could not be made, broke, stayed silent or spoke something else than
  HTTP; a status of 500 or more. A row of these is what opens a breaker.
- neutral: 503 and 429 are backpressure. Other 4xx and 501 are the request's doing: vLLM's front
  process writes them without its engine, so they neither count nor end a row; else one client
  with bad requests could hide an engine that fails all good ones. A client that leaves says
  nothing either.
"""

from dataclasses import dataclass
from enum import Enum
from math import ceil, inf
from typing import Protocol

#: Seconds of a trial for whose end others that were refused wait.
TRIAL_S = 1.0
#: The mark of a request that was sent although the breaker was open: its outcome tells nothing new.
_STRAY = -1


@dataclass(frozen=True, slots=True)
class Ejection:
    """When a worker is left out, and for how long."""

    failures: int = 5
    """In a row, until it is left out."""
    first: float = 5.0
    """Seconds that it is left out for, doubled each time that follows soon after."""
    longest: float = 300.0
    """Seconds at most. One that has been in for as long starts anew; a trial lasts no longer."""
    share: float = 0.5
    """Of a pool's workers, most that are left out at once, rounded down; never all of them."""
    panic: float = 0.5
    """When less than this share of a pool is healthy, nobody is left out."""


class State(Enum):
    """Whether requests may go there."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """One at a time, to see whether it works again."""


class Keeper(Protocol):
    """The pool that a breaker stands in."""

    def room(self, now: float) -> bool:
        """Whether one more may open."""

    def changed(self, news: str) -> None:
        """A breaker has opened or closed."""


class Breaker:
    """What became of the requests to one worker.

    `began` when a request is sent, then exactly one of `worked`, `failed` and `neutral` with the
    mark that `began` gave; or `answered`, which knows what a status means. It opens only if it
    stands in a pool that lets it.
    """

    __slots__ = (
        "_closed_at",
        "_early",
        "_failures",
        "_last",
        "_mark",
        "_opened_at",
        "_pool",
        "_settings",
        "_span",
        "_state",
        "_trial_began",
        "_trial_until",
        "ejections",
        "name",
        "until",
    )

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.ejections: dict[str, int] = {}
        """How often it was left out, by the kind of the last failure."""
        self.until = 0.0
        """When the time for which it was left out last is over."""
        self._pool: Keeper | None = None
        self._settings = Ejection()
        self._state = State.CLOSED
        self._failures = 0
        self._last = ""
        # Names the requests whose outcomes count: another one after each change.
        self._mark = 0
        self._span = 0.0
        self._closed_at = -inf
        self._opened_at = -inf
        self._trial_began = self._trial_until = -inf
        self._early = False

    # What the request path calls.

    def began(self, now: float) -> int:
        """Return the mark of a request that is being sent; it may become the trial."""
        if self._state is State.CLOSED:
            return self._mark
        if not self.admits(now):
            return _STRAY
        self._mark += 1
        self._trial_began, self._trial_until = now, now + self._settings.longest
        return self._mark

    def answering(self, now: float, mark: int) -> None:
        """The first byte of an answer: a trial has done enough for others to follow.

        An answer may take minutes to end. The row of failures is not forgotten before it has, so
        one more, the trial's own too, opens the breaker again.
        """
        if mark == self._mark and self._state is State.HALF_OPEN:
            self.let_in(now)

    def worked(self, now: float, mark: int) -> None:
        """Answered, to the end."""
        if mark != self._mark:
            return
        self._failures = 0
        if self._state is State.HALF_OPEN:
            self.let_in(now)

    def failed(self, now: float, mark: int, kind: str) -> None:
        """It did not answer, or with an error of its own; `kind` as in the metrics."""
        if mark != self._mark:
            return
        self._failures += 1
        self._last = kind
        if self._state is State.HALF_OPEN and self._early:
            self._opened_at = now
            self._back()
        elif self._state is State.HALF_OPEN:
            self._open(now, 2 * self._span)
        elif self._pool and self._failures >= self._settings.failures and self._pool.room(now):
            anew = now - self._closed_at >= self._settings.longest
            self._open(now, self._settings.first if anew else 2 * self._span)

    def neutral(self, mark: int) -> None:
        """It says nothing of the worker; if it was the trial, another may follow."""
        if mark == self._mark and self._state is State.HALF_OPEN:
            self._trial_until = -inf
            if self._early:
                self._back()

    def answered(self, now: float, mark: int, status: int) -> None:
        """Answered to the end with a status, which decides what that says."""
        if status < 400:
            self.worked(now, mark)
        elif status < 500 or status in {501, 503}:
            self.neutral(mark)
        else:
            self.failed(now, mark, "5xx")

    def hasten(self, now: float) -> bool:
        """Let the trial come now, if that may be; whether a request may be sent there now."""
        if self.state(now) is State.OPEN and self.near(now):
            self._state, self._early = State.HALF_OPEN, True
            self._trial_until = -inf
        return self.admits(now)

    def restarted(self, now: float) -> None:
        """What failed is gone: it begins anew."""
        self._mark += 1  # what was sent to the one before says nothing of this one
        self._failures = 0
        if not self.closed:
            self.let_in(now)
        self._closed_at = -inf

    # What others ask.

    def near(self, now: float) -> bool:
        """Whether a request may be sent there now, or soon after a trial, with `hasten`."""
        if self.state(now) is State.OPEN:
            return now >= self._opened_at + self._settings.first
        return self.admits(now) or now < self._trial_began + TRIAL_S

    def state(self, now: float) -> State:
        """Closed, open or half open; open ends by itself."""
        if self._state is State.OPEN and now >= self.until:
            self._state, self._early = State.HALF_OPEN, False
            self._trial_until = -inf
        return self._state

    def admits(self, now: float) -> bool:
        """Closed, or half open with no trial under way."""
        state = self.state(now)
        return state is State.CLOSED or (state is State.HALF_OPEN and now >= self._trial_until)

    def reason(self, now: float) -> str:
        """Why it is left out, and until when; empty when it is not."""
        state = self.state(now)
        if state is State.CLOSED:
            return ""
        row = "1 failure" if self._failures == 1 else f"{self._failures} failures in a row"
        back = f"back in {ceil(self.until - now)} s" if state is State.OPEN else "on trial"
        return f"{row}, the last: {self._last}; {back}"

    # What its pool calls.

    @property
    def closed(self) -> bool:
        """It was not left out, or is let back in."""
        return self._state is State.CLOSED

    def join(self, pool: Keeper, settings: Ejection) -> None:
        """Stand in this pool from now on."""
        self._pool, self._settings = pool, settings

    def leave(self, pool: Keeper) -> None:
        """Stand there no more, unless it stands elsewhere already."""
        if self._pool is pool:
            self._pool = None

    def let_in(self, now: float) -> None:
        """Close it; its row of failures stays until something has worked."""
        self._state = State.CLOSED
        self._closed_at = now
        if self._pool:
            self._pool.changed(f"worker {self.name} is let back in")

    def _back(self) -> None:
        """A trial before its time has shown nothing: it is left out as it was."""
        self._state, self._early = State.OPEN, False
        self._mark += 1

    def _open(self, now: float, span: float) -> None:
        self._span = min(span, self._settings.longest)
        self.until = now + self._span
        self._state, self._opened_at = State.OPEN, now
        self._mark += 1
        self.ejections[self._last] = self.ejections.get(self._last, 0) + 1
        if self._pool:
            self._pool.changed(f"worker {self.name} is ejected: {self.reason(now)}")

    def __repr__(self) -> str:
        return f"<Breaker {self.name} {self._state.name} failures={self._failures}>"
