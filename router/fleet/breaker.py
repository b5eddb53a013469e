"""Passive health: if the requests of a worker keep failing, it is ejected for a while.

Probes ask whether a worker is there; its breaker watches the outcome of the requests sent to it.

    CLOSED  -- failures in a row -->  OPEN  -- its time is over -->  HALF_OPEN: one trial request
       ^                               ^                                |       |
       |                               '---- it fails: twice as long ---'       |
       '------------------------- it works, or its answer begins ---------------'

A worker that was restarted is let in at once: what failed is gone.

Outcomes of a request, and what they mean:

- worked: an answer below 400. It ends a row of failures.
- failed: the connection could not be made, broke, stayed silent or carried something other than
  HTTP; a status of 500 or more, or an error event; or the request was moved to another worker, as
  this one is stuck and has begun no answer since. A row of these opens the breaker, unless its
  peers fail alike (`outliers.py`).
- neutral: 503 and 429 are back pressure. Other 4xx and 501 are the request's doing: vLLM's front
  process writes them without its engine, so they neither count nor end a row. Otherwise one client
  with bad requests could hide an engine that fails all good ones. A client that leaves says
  nothing either.

`Breakers` are those of a pool: how many workers may be ejected at once, and when ejections count.
While none is ejected, a request costs one check of `any_open` and one integer kept for its outcome.

`Backoffs` let workers that refuse requests back off for a moment, while others can answer.

503 and 429 are back pressure and no fault of the worker (`breaker.py`). But a quick refusal must
not look like a quick answer: nothing stays booked on a full worker for long, so it would always
seem the least busy and attract every request. The same goes for a worker that rejects the router's
own key.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil, inf
from typing import Final, Protocol, TypeVar

from router.settings.fleet import EjectionSettings

#: Marks a request that was sent although the breaker was open: its outcome does not count.
_STRAY = -1


class BreakerState(Enum):
    """Whether requests may go to the worker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    """One request at a time, to see whether it works again."""


#: Read once, for what runs with every request (as `CHAT` in `api/endpoints.py`).
_CLOSED: Final = BreakerState.CLOSED
_HALF_OPEN: Final = BreakerState.HALF_OPEN


class BreakerPool(Protocol):
    """The pool that a breaker belongs to."""

    def room(self, now: float) -> bool:
        """Whether one more breaker may open."""

    def changed(self, news: str) -> None:
        """Take note that a breaker has opened or closed; `news` is a sentence for the log."""


class Breaker:
    """Circuit breaker of one worker.

    Call `began` when a request is sent, then exactly one of `worked`, `failed` and `neutral` with
    the mark that `began` returned; or `answered`, which maps a status to one of them. It opens only
    if it belongs to a pool that allows it.
    """

    __slots__ = (
        "_closed_at",
        "_failures",
        "_last",
        "_mark",
        "_pool",
        "_settings",
        "_span",
        "_state",
        "_trial_until",
        "ejections",
        "name",
        "until",
    )

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.ejections: dict[str, int] = {}
        """How often the worker was ejected, by the kind of the last failure."""
        self.until = 0.0
        """When the time of its last ejection is over."""
        self._pool: BreakerPool | None = None
        self._settings = EjectionSettings()
        self._state = BreakerState.CLOSED
        self._failures = 0
        self._last = ""
        # An outcome counts only if its request's mark is still the current one.
        self._mark = 0
        self._span = 0.0
        self._closed_at = -inf
        self._trial_until = -inf

    # Called by the request path.

    def began(self, now: float) -> int:
        """Return the mark of a request that is being sent; if half open, it is the trial."""
        if self._state is _CLOSED:
            return self._mark
        if not self.admits(now):
            return _STRAY
        self._mark += 1
        self._trial_until = now + self._settings.longest
        return self._mark

    def answering(self, now: float, mark: int) -> None:
        """Note the first byte of an answer: for a trial, that is enough to let others follow.

        An answer may take minutes to end. The row of failures is kept until then, so one more
        failure, even the trial's own, opens the breaker again.
        """
        if mark == self._mark and self._state is BreakerState.HALF_OPEN:
            self.let_in(now)

    def worked(self, now: float, mark: int) -> None:
        """Note that the request was answered to the end."""
        if mark != self._mark:
            return
        self._failures = 0
        if self._state is _HALF_OPEN:
            self.let_in(now)

    def failed(self, now: float, mark: int, kind: str, *, alone: bool = True) -> None:
        """Note that the worker did not answer, or with its own error; `kind` is a metric label.

        Unless it is `alone`, failing what its peers answer, that does not eject it.
        """
        if mark != self._mark:
            return
        self._failures += 1
        self._last = kind
        if not alone:
            self.neutral(mark)
        elif self._state is BreakerState.HALF_OPEN:
            self._open(now, 2 * self._span)
        elif self._pool and self._failures >= self._settings.failures and self._pool.room(now):
            anew = now - self._closed_at >= self._settings.longest
            self._open(now, self._settings.first if anew else 2 * self._span)

    def neutral(self, mark: int) -> None:
        """Note an outcome that says nothing of the worker; after a trial, another may follow."""
        if mark == self._mark and self._state is BreakerState.HALF_OPEN:
            self._trial_until = -inf

    def answered(self, now: float, mark: int, status: int) -> None:
        """Note an answer that has ended, and judge it by its status."""
        if status < 400:
            self.worked(now, mark)
        elif status < 500 or status in {501, 503}:
            self.neutral(mark)
        else:
            self.failed(now, mark, "5xx")

    def restarted(self, now: float) -> None:
        """Start anew after a restart of the worker: what failed is gone."""
        self._mark += 1  # requests sent before the restart say nothing of the new process
        self._failures = 0
        if not self.closed:
            self.let_in(now)
        self._closed_at = -inf

    # Queries.

    def state(self, now: float) -> BreakerState:
        """Return the current state; an open breaker becomes half open when its time is over."""
        if self._state is BreakerState.OPEN and now >= self.until:
            self._state = BreakerState.HALF_OPEN
            self._trial_until = -inf
        return self._state

    def admits(self, now: float) -> bool:
        """Whether it is closed, or half open with no trial under way."""
        state = self.state(now)
        return state is BreakerState.CLOSED or (
            state is BreakerState.HALF_OPEN and now >= self._trial_until
        )

    def reason(self, now: float) -> str:
        """Return why the worker is ejected and until when; empty if it is not."""
        state = self.state(now)
        if state is BreakerState.CLOSED:
            return ""
        row = "1 failure" if self._failures == 1 else f"{self._failures} failures in a row"
        back = f"back in {ceil(self.until - now)} s" if state is BreakerState.OPEN else "on trial"
        return f"{row}, the last: {self._last}; {back}"

    # Called by the pool.

    @property
    def closed(self) -> bool:
        """Whether the worker is not ejected, or was let back in."""
        return self._state is _CLOSED

    def join(self, pool: BreakerPool, settings: EjectionSettings) -> None:
        """Belong to this pool from now on."""
        self._pool, self._settings = pool, settings

    def leave(self, pool: BreakerPool) -> None:
        """Leave this pool, unless another one has taken the breaker already."""
        if self._pool is pool:
            self._pool = None

    def let_in(self, now: float) -> None:
        """Close the breaker; the row of failures stays until a request has worked."""
        self._state = BreakerState.CLOSED
        self._closed_at = now
        if self._pool:
            self._pool.changed(f"worker {self.name} is let back in")

    def _open(self, now: float, span: float) -> None:
        self._span = min(span, self._settings.longest)
        self.until = now + self._span
        self._state = BreakerState.OPEN
        self._mark += 1
        self.ejections[self._last] = self.ejections.get(self._last, 0) + 1
        if self._pool:
            self._pool.changed(f"worker {self.name} is ejected: {self.reason(now)}")

    def __repr__(self) -> str:
        return f"<Breaker {self.name} {self._state.name} failures={self._failures}>"


#: Seconds of the first rest; each further one, without an answer in between, is twice as long.
MIN_BACKOFF_S = 0.1
#: Seconds of the longest rest.
MAX_BACKOFF_S = 2.0

W = TypeVar("W")


@dataclass
class Backoff:
    """Why a worker rests, and until when."""

    since: float
    until: float
    span: float
    why: str = ""
    full: bool = False
    """It said that it is full."""
    here: int = 0
    """How many requests from here it had then."""


class Backoffs:
    """The workers that rest. All times are in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._rests: dict[object, Backoff] = {}

    def __bool__(self) -> bool:
        """Whether any worker refused lately; else nothing else needs to be asked here."""
        return bool(self._rests)

    def refused(self, worker: object, now: float) -> Backoff:
        """Start or extend the rest of a worker that refused a request; return it."""
        rest = self._rests.get(worker)
        if rest is None:
            rest = self._rests[worker] = Backoff(now, now + MIN_BACKOFF_S, MIN_BACKOFF_S)
        elif now >= rest.until:  # otherwise it was asked before this rest: no new information
            rest.span = min(2 * rest.span, MAX_BACKOFF_S)
            rest.since, rest.until = now, now + rest.span
        return rest

    def answered(self, worker: object, sent_at: float) -> None:
        """End the rest of a worker that accepted a request sent at `sent_at`, after it refused."""
        rest = self._rests.get(worker)
        if rest is not None and sent_at >= rest.since:
            del self._rests[worker]

    def most(self, worker: object, now: float) -> int | None:
        """Return how many requests a worker may have that said that it is full; None: any number.

        That is fewer than it had then, until its rest is over. Then it may have one more than they
        were, whose answer tells whether it takes others; and as an answer may take minutes, but a
        refusal does not, another one each time that as long passes without one.
        """
        rest = self._rests.get(worker)
        if rest is None or not rest.full:
            return None
        return rest.here + (now >= rest.until) * (1 + int((now - rest.until) / rest.span))

    def awake(self, workers: Sequence[W], now: float) -> Sequence[W]:
        """Return the workers that do not rest, or all of them if all rest."""
        rests = self._rests
        active = [
            worker for worker in workers if (rest := rests.get(worker)) is None or now >= rest.until
        ]
        return active or workers

    def keep(self, workers: Sequence[object]) -> None:
        """Forget all workers but these."""
        self._rests = {worker: rest for worker, rest in self._rests.items() if worker in workers}


E = TypeVar("E", bound="Ejectable")
_EPSILON = 1e-9


class Ejectable(Protocol):
    """A worker of a pool."""

    breaker: Breaker

    @property
    def ready(self) -> bool:
        """Whether its probes succeed."""


class Breakers:
    """The breakers of one pool: limits how many are open, and decides when to ignore them."""

    def __init__(
        self, settings: EjectionSettings, members: Iterable[Ejectable], tell: Callable[[str], None]
    ) -> None:
        """Take the members' breakers in their current state.

        `tell` is called with a sentence for the log at every change.
        """
        self.any_open = False
        """Whether `admitted` needs to be called."""
        self.panicking = False
        """Too few workers are healthy, so ejections are ignored."""
        self._members: tuple[Ejectable, ...] = ()
        self._tell = tell
        self.change(settings, members)

    def change(self, settings: EjectionSettings, members: Iterable[Ejectable]) -> None:
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

    def admitted(self, now: float, candidates: list[E]) -> list[E]:
        """Return the ready `candidates` that requests may go to; at least one if there are any.

        If only ejected workers could answer, asking one is better than a refusal.
        """
        if not self.any_open:
            return candidates
        return self.healthy(now, candidates) or candidates

    def healthy(self, now: float, candidates: list[E]) -> list[E]:
        """Return the `candidates` that are not ejected; none if ejections are to be ignored."""
        self._look_around(now)
        if self.panicking:
            return []
        return [member for member in candidates if member.breaker.admits(now)]

    def admits(self, now: float, member: Ejectable) -> bool:
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
        healthy = sum(
            m.ready and m.breaker.state(now) is BreakerState.CLOSED for m in self._members
        )
        few = healthy < self._settings.panic * len(self._members) - _EPSILON
        self._panic(on=few, healthy=healthy)

    def _panic(self, *, on: bool, healthy: int) -> None:
        if on is self.panicking:
            return
        self.panicking = on
        which = "ejections are ignored" if on else "ejections count again"
        self._tell(f"{healthy} of {len(self._members)} workers are healthy: {which}")
