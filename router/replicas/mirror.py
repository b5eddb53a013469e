"""Books what the router's other processes send, as if it had been sent from here.

So each process decides with the knowledge of all: how busy a worker really is, and which prefixes
any of them sent it. Pure: given the news, it updates loads and tells strategies.
"""

import logging
from typing import NamedTuple

from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.replicas.messages import Began, Booked, Ended, GiveWay, News, Resync
from router.responses.messages import OwnerQuery, ResponseOwner
from strategies.api import NO_LOADING, Candidate, Cost, Outcome, Prompt
from strategies.cost.load import Booking
from strategies.cost.preemption import ahead, drop
from strategies.cost.prefill import Loading
from strategies.prefix.block_keys import TEXT_ENDS

log = logging.getLogger("warmroute.processes")

#: The outcome of a request whose process is gone.
_UNKNOWN = Outcome(ok=False)


class _RemoteRequest(NamedTuple):
    """One request that another process has in flight."""

    pool: Pool
    worker: Worker
    prompt: Prompt
    choice: Candidate
    booking: Booking


class Mirror:
    """The bookings of other processes: no more than they have in flight."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._open: dict[int, dict[int, _RemoteRequest]] = {}
        # By the place of the process, then by the request's number there.

    def __len__(self) -> int:
        """Number of requests that other processes have in flight."""
        return sum(len(requests) for requests in self._open.values())

    def take(self, place: int, news: News, now: float) -> None:
        """Apply news from the process at `place`.

        News about unknown pools, workers or requests is ignored: settings do not change in all
        processes at the same moment.
        """
        requests = self._open.setdefault(place, {})
        match news:
            case Booked():
                self._booked(requests, news, min(now, news.at))
            case Began():
                if (request := requests.get(news.number)) is not None:
                    request.worker.load.first_byte(request.booking, min(now, news.at))
            case Ended():
                if (request := requests.pop(news.number, None)) is not None:
                    outcome = Outcome(
                        ok=news.ok,
                        began=news.began,
                        prompt_tokens=news.prompt_tokens,
                        cached_tokens=news.cached_tokens,
                        answer_tokens=news.answer_tokens,
                        kept_tokens=news.kept_tokens,
                    )
                    _end(request, outcome, min(now, news.at))
            case Resync():
                self.gone(place, now)
            case GiveWay():  # concerns a request of this process
                pass
            case ResponseOwner() | OwnerQuery():  # concern no request in flight
                pass

    def gone(self, place: int, now: float) -> None:
        """End everything that the process at `place` had in flight, because it has ended."""
        for request in self._open.pop(place, {}).values():
            _end(request, _UNKNOWN, now, known=False)

    def has(self, place: int) -> bool:
        """Whether the process at `place` has anything in flight."""
        return bool(self._open.get(place))

    def of(self, booking: Booking) -> tuple[int, int] | None:
        """Return the place and the number of the request that was booked so; None: it has ended."""
        for place, requests in self._open.items():
            for number, request in requests.items():
                if request.booking is booking:
                    return place, number
        return None

    def goes_before(self, place: int, number: int, booking: Booking, now: float) -> bool:
        """Whether a booking of this process gives way to that request by what is known now."""
        request = self._open.get(place, {}).get(number)
        if request is None:
            return False
        load, cost = request.worker.load, request.choice.cost
        if load.late_until or request.booking not in load.pending:
            return False
        return booking in ahead(load, request.prompt.keys, cost.prefill, now)[1]

    def _booked(self, requests: dict[int, _RemoteRequest], news: Booked, now: float) -> None:
        pool = next((pool for pool in self._fleet.pools if pool.name == news.pool), None)
        worker = pool.named.get(news.worker) if pool is not None else None
        if pool is None or worker is None:
            return
        prompt = Prompt(
            "",
            news.tokens,
            news.keys,
            TEXT_ENDS,
            news.unit_tokens,
            answer_tokens=news.answer_tokens,
            stream=news.stream,
            elsewhere=True,
            resumed=news.resumed,
        )
        loading = Loading(0.0, news.l1, news.l2) if news.l1 or news.l2 else NO_LOADING
        choice = Candidate(worker, Cost(prefill=news.prefill_s), news.held_tokens, loading)
        try:
            booking = pool.book(prompt, choice, now, elsewhere=True, since=news.since)
        except Exception:
            log.exception("pool %s: its strategy raised an error", pool.name)
            return
        if (before := requests.pop(news.number, None)) is not None:
            _end(before, _UNKNOWN, now, known=False)
        requests[news.number] = _RemoteRequest(pool, worker, prompt, choice, booking)


def _end(request: _RemoteRequest, outcome: Outcome, now: float, *, known: bool = True) -> None:
    """Settle and release a booking; if its end is not `known`, nothing is learned from its time."""
    load, pool = request.worker.load, request.pool
    if outcome.kept_tokens is not None and request.booking in load.pending:
        drop(
            request.booking, request.choice, request.prompt.tokens, now
        )  # `release` has no effect then
    if pool.capabilities.hears_others:
        try:
            pool.strategy.settled(request.prompt, request.choice, outcome, now)
        except Exception:
            log.exception("pool %s: its strategy raised an error", pool.name)
    if not (known and outcome.began):
        load.take_back(request.booking, now)
    load.release(request.booking, now)
