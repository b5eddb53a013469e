"""Requests that are taken back from workers: who gives way, who is moved, and when.

A request can be taken back until the first byte of its answer; its connection is closed then. If it
gives way to a shorter one, what the worker has computed of it stays in the prefix cache, so the
request waits again for its turn and goes on from there (`strategies/cost/preemption.py`). A worker
that does not keep what it has computed is found out by the cached tokens that it reports for such
requests; nothing is preempted there for a while then.

A request is moved away from a worker that is stuck, whatever that one keeps
(`strategies/hold/stuck.py`). While requests wait that may be taken back, their workers are looked
at every `TICK_S`. Each other worker is given at most one of them per look, and the next look
follows soon, so that each is decided and booked before another one is compared with it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from time import monotonic
from typing import Final, Protocol

from router.api.endpoints import Endpoint
from router.api.errors import APIError
from router.api.request import Request
from router.dispatch.request import InferenceRequest
from router.fleet.pool import Pool
from router.fleet.worker import LOSSES_S, Worker
from strategies.api import Candidate, Decision, Prompt, WorkerView, nothing
from strategies.cost.load import Booking
from strategies.cost.preemption import ahead, drop
from strategies.hold.stuck import better, hangs, stranded

log = logging.getLogger("warmroute.fleet")

#: A field that is not there, or as good as.
_NO = frozenset((b"", b"false", b"null"))
#: Tokens that a request must have got done for its resumption to show whether they were kept.
MIN_JUDGED_TOKENS = 2048


def resumable(endpoint: Endpoint, request: Request) -> bool:
    """Whether a worker would go on with a request that it has dropped: only if it is a stream.

    The first byte of another answer is also its last. vLLM does not use its cache for a prompt that
    is to be returned with logprobs, and a prompt that is handed over to another engine is that
    engine's business (`v1/request.py`, `get_skip_reading_prefix_cache`). It goes on with a
    background response although nobody listens. An upload has to be read first, of which nothing is
    known here, as of the fields of engines' own endpoints.
    """
    if (
        endpoint.form
        or endpoint.native
        or request.stream is not True
        or bytes(request.prompt_logprobs) not in {b"", b"null"}
    ):
        return False
    fields = request.echo, request.background
    return not request.engine_fields and all(bytes(field) in _NO for field in fields)


class Running(Protocol):
    """A lease on a worker that has not begun to answer."""

    @property
    def request(self) -> InferenceRequest:
        """The request."""

    @property
    def choice(self) -> Candidate:
        """The worker, and what was expected of it."""

    def preempt(self, kept_tokens: int) -> None:
        """End it: the worker holds that many tokens of its prompt by now."""

    def rescue(self, *, suspected: bool) -> None:
        """End it: its worker is stuck; `suspected`, perhaps because of it."""


class Preemptions:
    """The requests that may be taken back. One instance for the whole router."""

    def __init__(self) -> None:
        self._running: dict[Booking, Running] = {}
        self._most = 0
        self.begun: Callable[[], object] = nothing
        """Called when there is one more of them."""
        self.count = 0
        """Preemptions so far."""

    def change(self, most: int) -> None:
        """Apply a new bound on how often one request may be taken back."""
        self._most = most
        for booking in [
            booking for booking, it in self._running.items() if it.request.preemptions >= most
        ]:
            self.end(booking)

    def movable(self, request: InferenceRequest) -> bool:
        """Whether a request may be taken back from its worker before its answer begins."""
        return (
            request.resumable
            and request.prompt.stream  # else its first byte comes before its prefill
            and request.session is None
            and request.preemptions < self._most
        )

    def since(self, request: InferenceRequest, worker: Worker) -> float | None:
        """Return when a request came that may be preempted there; None: it may not."""
        may = (
            self.movable(request)
            and request.pool.capabilities.reads_prompt
            and worker.keeps
            and worker.breaker.closed
        )
        return request.started if may else None

    def begin(self, booking: Booking, running: Running) -> None:
        """Let a request be taken back until `end`, if it may be."""
        if self.movable(running.request):
            self._running[booking] = running
            self.begun()

    def end(self, booking: Booking) -> None:
        """Let it be taken back no more; no effect if it could not be."""
        if self._running.pop(booking, None) is not None:
            booking.since = None

    def make_way(
        self, request: InferenceRequest, worker: Worker, choice: Candidate
    ) -> Sequence[Booking]:
        """Preempt the requests there that give way to a request about to be booked.

        Returns the bookings of those that other processes have to take back.
        """
        if not choice.preempts:
            return ()
        bookings = ahead(worker.load, request.prompt.keys, choice.cost.prefill, monotonic())[1]
        for booking in bookings:
            self.give_way(booking)
        return [booking for booking in bookings if booking.elsewhere]

    def give_way(self, booking: Booking) -> None:
        """Preempt a request that waits for its first byte; no effect if it does not, or no more."""
        running = self._running.get(booking)
        if running is None or booking.since is None:
            return
        self.end(booking)
        kept = drop(booking, running.choice, running.request.prompt.tokens, monotonic())
        running.preempt(kept)
        self.count += 1

    def __len__(self) -> int:
        return len(self._running)

    def workers(self) -> set[WorkerView]:
        """Return the workers at which they wait."""
        return {running.choice.worker for running in self._running.values()}

    def of(self, booking: Booking) -> Running | None:
        """Return the request of a booking; None if it may not be taken back."""
        return self._running.get(booking)

    def rescue(self, booking: Booking, running: Running, now: float, *, suspected: bool) -> None:
        """Take a request back from a worker that is stuck; `suspected`, perhaps because of it."""
        self.end(booking)
        load = running.choice.worker.load
        load.moved(now)
        load.drop(booking, now, 0.0)
        running.rescue(suspected=suspected)

    def judge(self, worker: Worker, expected: int, cached: int) -> None:
        """Learn from a resumed request: it was `expected` to find tokens that it had got done."""
        if expected < MIN_JUDGED_TOKENS:
            return
        if cached >= expected / 2:
            worker.losses = 0
            return
        kept = worker.keeps
        worker.losses, worker.lost_at = worker.losses + 1, monotonic()
        if kept and not worker.keeps:
            for booking, running in self._running.items():
                if running.choice.worker is worker:
                    booking.since = None
            log.warning(
                "worker %s: it does not keep what it has computed of a request that is dropped (%d"
                " of about %d tokens were cached), so no request is preempted there for %d minutes",
                *(worker.name, cached, expected, LOSSES_S // 60),
            )


#: Seconds between two looks; the same if some requests were moved, as others may follow.
TICK_S, NEXT_TICK_S = 1.0, 0.05
#: How many requests of one worker and model are compared per look, oldest first.
MAX_COMPARED: Final = 16

#: Ranks the workers of a pool that have room for a prompt now; None if none has.
Rank = Callable[[Pool, Prompt, Sequence[Worker]], Decision | None]


class Rescue:
    """Looks for requests that wait in vain. One instance for the whole router."""

    def __init__(self, preempting: Preemptions, rank: Rank) -> None:
        self._preempting = preempting
        self._rank = rank
        self._looking: asyncio.TimerHandle | None = None
        preempting.begun = self._watch

    def _watch(self) -> None:
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(TICK_S, self._look)

    def _look(self) -> None:
        now, given = monotonic(), set[WorkerView]()
        for worker in self._preempting.workers():
            try:
                self._relieve(worker, now, given)
            except Exception:
                log.exception("worker %s: what waits there could not be moved", worker.name)
        self._looking = None
        if len(self._preempting):
            next_s = NEXT_TICK_S if given else TICK_S
            self._looking = asyncio.get_running_loop().call_later(next_s, self._look)

    def _relieve(self, worker: WorkerView, now: float, given: set[WorkerView]) -> None:
        """Move what waits there in vain, each request to a worker that is not among `given`."""
        load, before = worker.load, len(given)
        waiting = stranded(load, worker.pace, now)
        found_before, late = load.late_until > now, load.late(now)
        pairs = ((booking, self._preempting.of(booking)) for booking in waiting)
        movable = ((booking, running) for booking, running in pairs if running is not None)
        compared = Counter[str]()
        for booking, running in movable:
            model = running.request.prompt.model
            compared[model] += 1
            if compared[model] <= MAX_COMPARED:
                self._move(booking, running, now, given)
        moved = len(given) - before
        if moved and not found_before:
            log.warning(
                "worker %s is stuck: its oldest request is %.1f s later than predicted; %d of %d"
                " that wait there sent elsewhere, and more as soon as other workers take them",
                *(worker.name, late, moved, len(waiting)),
            )

    def _move(self, booking: Booking, running: Running, now: float, given: set[WorkerView]) -> None:
        """Take a request back if another worker takes it at once, and add that one to `given`."""
        there = running.choice
        load, pace = there.worker.load, there.worker.pace
        suspected = booking is next(iter(load.pending)) and hangs(load, pace, now)
        if suspected and running.request.suspected:
            return
        best = self._elsewhere(running, now, given)
        if best is not None:
            given.add(best.worker)
            self._preempting.rescue(booking, running, now, suspected=suspected)

    def _elsewhere(
        self, running: Running, now: float, given: Collection[WorkerView]
    ) -> Candidate | None:
        """Return the best of the workers that are neither late nor `given` one, if it takes the
        request at once."""
        pool, prompt = running.request.pool, running.request.prompt
        try:
            able = pool.eligible(prompt.model, prompt.barred)
        except APIError:
            return None
        others = [worker for worker in able if worker not in given and not worker.load.late(now)]
        decision = self._rank(pool, prompt, others) if others else None
        return None if decision is None else better(running.choice, decision, now)
