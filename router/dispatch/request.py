"""A request on its way: parsed (`Plea`), then decided (`Job`)."""

from collections.abc import Sequence

from msgspec.structs import replace

from router.api.endpoints import Endpoint
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.http.exchange import Exchange
from router.observe.metrics import PoolMetrics
from router.prompt.prompts import Along
from router.sessions.use import Visit
from strategies.api import Decision, Prompt
from strategies.hold.queue import Wait


class Plea:
    """A request that has been parsed, with its pool and its prompt."""

    __slots__ = (
        "along",
        "away",
        "endpoint",
        "exchange",
        "held_first",
        "last",
        "only",
        "pool",
        "preemptions",
        "prompt",
        "refused",
        "resumable",
        "retries",
        "salt",
        "started",
        "stores",
        "streams",
        "suspected",
        "visit",
        "wait",
        "workers",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        exchange: Exchange,
        pool: Pool,
        prompt: Prompt,
        along: Along | None,
        *,
        workers: Sequence[Worker],
        started: float,
        visit: Visit | None,
        salt: bytes,
        streams: bool = False,
        resumable: bool = False,
        only: str = "",
        stores: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.exchange = exchange
        self.pool = pool
        self.prompt = prompt
        self.along = along
        """Token ids to send along with the body, if any."""
        self.workers = workers
        """The workers that could answer when it was parsed."""
        self.started = started
        self.visit = visit
        """Its part in a session, if it has one."""
        self.salt = salt
        """The `cache_salt` field to add to its body; may be empty."""
        self.streams = streams
        """Its answer comes in pieces, whether or not the first byte tells of the first token."""
        self.resumable = resumable
        """If it is dropped and sent again, the worker goes on from what it has computed."""
        self.only = only
        """Name of the only worker that can answer: it has the response that this goes on from."""
        self.stores = stores
        """Its answer is a response that the worker may keep."""
        self.preemptions = 0
        """How often it was taken back from its worker: it gave way to a shorter one, or was moved
        from one that is stuck."""
        self.suspected = False
        """It was the oldest at a worker that was stuck, so it may be what workers hang on."""
        self.away: Worker | None = None
        """The stuck worker that it was just moved away from; None once it was decided anew."""
        self.held_first = 0
        """Tokens that its worker was expected to hold when it was first sent, if it gave way."""
        self.last: Worker | None = None
        """The worker that it gave way on last."""
        self.wait: Wait | None = None
        """Its waiting, if it had to wait, or was taken back or refused."""
        self.refused = False
        """It was decided once, and no worker that was asked took it."""
        self.retries = False
        """It was allowed no second attempt, and goes on when it is."""

    def gave_way(self, worker: Worker, held_tokens: int) -> None:
        """Note that it has given way to a shorter one on that worker, and is to be sent again."""
        if self.last is None:
            self.held_first = held_tokens
        self.last = worker
        self._taken_back()

    def moved(self, away: Worker, *, suspected: bool) -> None:
        """Note that its worker, `away`, is stuck, and that it is to be sent to another.

        What that worker has computed of it does not count.
        """
        self.away = away
        self.suspected = self.suspected or suspected
        self._taken_back()

    def elsewhere(self, workers: Sequence[Worker]) -> Sequence[Worker]:
        """Return those of `workers` among which to decide, once, after it was moved away from one.

        By what it would cost now, that one could be the cheapest, as other terms than its wait have
        changed since the request was sent there. It would only wait there from the start.
        """
        away, self.away = self.away, None
        return [worker for worker in workers if worker is not away]

    def _taken_back(self) -> None:
        self.preemptions += 1
        self.prompt = replace(self.prompt, resumed=True)

    def goes_on_from(self, before: "Plea") -> None:
        """Take over what another parse of the same request has been through."""
        self.preemptions, self.held_first = before.preemptions, before.held_first
        self.last, self.wait = before.last, before.wait
        self.refused, self.retries = before.refused, before.retries
        self.suspected, self.away = before.suspected, before.away
        if before.prompt.resumed:
            self.prompt = replace(self.prompt, resumed=True)


class Job:
    """A request that has been parsed and decided."""

    __slots__ = (
        "along",
        "decision",
        "endpoint",
        "exchange",
        "held_first",
        "last",
        "metrics",
        "pool",
        "preemptions",
        "prompt",
        "refused",
        "resumable",
        "retries",
        "retrying",
        "salt",
        "started",
        "stores",
        "streams",
        "suspected",
        "visit",
        "wait",
    )

    def __init__(
        self, plea: Plea, prompt: Prompt, decision: Decision, metrics: PoolMetrics
    ) -> None:
        self.endpoint = plea.endpoint
        self.exchange = plea.exchange
        self.pool = plea.pool
        self.prompt = prompt
        self.along = plea.along
        """Token ids to send along with the body, if any."""
        self.decision = decision
        self.salt = plea.salt
        """The `cache_salt` field to add to its body; may be empty."""
        self.retrying = False
        """It has taken a part of the retry budget."""
        self.started = plea.started
        self.metrics = metrics
        self.streams, self.resumable, self.stores = plea.streams, plea.resumable, plea.stores
        self.preemptions, self.held_first, self.last = plea.preemptions, plea.held_first, plea.last
        self.suspected, self.wait = plea.suspected, plea.wait
        self.refused, self.retries = plea.refused, plea.retries
        self.visit = plea.visit
        """Its part in a session, if it has one."""

    @property
    def bound(self) -> bool:
        """Only one worker will do, as far as that has its session or its response."""
        return self.visit is not None or self.decision.stays

    @property
    def identity(self) -> bytes:
        """The id of the request."""
        return self.exchange.identity

    @property
    def reason(self) -> str:
        """Why it went where it went; its session may have moved since the decision."""
        reason = self.decision.reason
        return reason if self.visit is None else self.visit.reason(reason)
