"""A request on its way to a worker: parsed, then decided, perhaps several times.

It knows nothing of how it came and how it is sent.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from router.api.endpoints import Endpoint
from router.dispatch.retry import Attempts
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.observe.metrics import PoolMetrics
from router.prompt.prompts import ForwardedIds
from router.sessions.use import SessionUse
from strategies.api import Decision, Prompt
from strategies.hold.queue import Wait

#: The decision on a request of which nothing is decided yet.
UNDECIDED: Final = Decision((), "")


class RequestSource(Protocol):
    """What a request came as. Its front door parses that again if the request's pool changes."""

    session: SessionUse | None
    """The request's part in a session, if it has one."""


class InferenceRequest:
    """A request that has been parsed, with its pool and its prompt."""

    __slots__ = (
        "along",
        "attempts",
        "away",
        "decided",
        "decision",
        "endpoint",
        "held_first",
        "identity",
        "last",
        "metrics",
        "only",
        "pool",
        "preemptions",
        "prompt",
        "refused",
        "resumable",
        "retries",
        "routed",
        "salt",
        "session",
        "source",
        "started",
        "stores",
        "streams",
        "suspected",
        "taken_back",
        "tenant",
        "wait",
        "workers",
    )

    attempts: Attempts
    """What has come of asking its decision's candidates, once it is decided."""
    metrics: PoolMetrics
    """The series of its pool, once it is decided."""

    def __init__(
        self,
        endpoint: Endpoint,
        source: RequestSource,
        pool: Pool,
        prompt: Prompt,
        along: ForwardedIds | None,
        *,
        identity: bytes,
        tenant: str,
        workers: Sequence[Worker],
        started: float,
        session: SessionUse | None,
        salt: bytes,
        streams: bool = False,
        resumable: bool = False,
        only: str = "",
        stores: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.source = source
        self.identity = identity
        """Its id, which clients and logs are told."""
        self.tenant = tenant
        """Name of the key that it came with."""
        self.pool = pool
        self.prompt = prompt
        self.along = along
        """Token ids to send along with the body, if any."""
        self.workers = workers
        """The workers that could answer when it was routed."""
        self.started = started
        self.session = session
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
        self.decision = UNDECIDED
        self.routed = True
        """Its workers were looked up just now; False: they are to be looked up again."""
        self.decided = False
        """The candidates of its decision are asked."""
        self.taken_back = False
        """It was just taken back from its worker, and is to be decided again."""
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

    @property
    def bound(self) -> bool:
        """Whether only one worker will do, as far as that has its session or its response."""
        return self.session is not None or self.decision.stays

    @property
    def reason(self) -> str:
        """Why it went where it went; its session may have moved since the decision."""
        reason = self.decision.reason
        return reason if self.session is None else self.session.reason(reason)

    @property
    def made_as_now(self) -> bool:
        """Whether its tokens are still made the way its model's tokens are."""
        return self.along is None or self.pool.prompts.holds(self.along)

    async def look(self, session: SessionUse) -> None:
        """Look for its session; it has none if that is not where it must go.

        Only the worker that has a response can go on from it, so the session stays as it is.
        """
        await session.look(self.pool, self.workers)
        if not session.may_be_at(self.only):
            self.session = self.source.session = None

    def decide(self, decision: Decision, metrics: PoolMetrics, *, others: bool) -> None:
        """Take a decision; `others` had no room when it was made."""
        self.decision, self.metrics, self.decided = decision, metrics, True
        self.attempts = Attempts(len(decision.candidates), others=others)

    def reopen(self) -> None:
        """Drop the decision: the request is to be routed and decided again."""
        self.routed = self.decided = False
        if self.prompt.bound is not None:
            self.prompt = replace(self.prompt, bound=None)

    def abandon(self) -> None:
        """Count the decision on a session's request that has failed, unless its client was told."""
        session = self.session
        if self.decided and session is not None and not session.told:
            self.metrics.decided(self.reason if session.counted else self.decision.reason)

    def gave_way(self, worker: Worker, held_tokens: int) -> None:
        """Note that it has given way to a shorter one on that worker, and is to be sent again.

        `held_tokens` is what the worker was expected to hold when it was sent.
        """
        if self.last is None:
            self.held_first = held_tokens
        self.last = worker
        self._take_back()

    def moved(self, away: Worker, *, suspected: bool) -> None:
        """Note that its worker, `away`, is stuck, and that it is to be sent to another.

        What that worker has computed of it does not count.
        """
        self.away = away
        self.suspected = self.suspected or suspected
        self._take_back()

    def elsewhere(self, workers: Sequence[Worker]) -> Sequence[Worker]:
        """Return those of `workers` among which to decide, once, after it was moved away from one.

        By what it would cost now, that one could be the cheapest, as other terms than its wait have
        changed since the request was sent there. It would only wait there from the start.
        """
        away, self.away = self.away, None
        return [worker for worker in workers if worker is not away]

    def _take_back(self) -> None:
        self.preemptions += 1
        self.prompt = replace(self.prompt, resumed=True)
        self.taken_back = True
        self.reopen()

    def renew(self, parsed: "InferenceRequest") -> None:
        """Take over another parse of the same request; what it has been through stays."""
        self.pool, self.along = parsed.pool, parsed.along
        self.workers, self.only = parsed.workers, parsed.only
        self.session, self.salt = parsed.session, parsed.salt
        self.streams, self.resumable = parsed.streams, parsed.resumable
        self.stores = parsed.stores
        resumed = self.prompt.resumed
        self.prompt = replace(parsed.prompt, resumed=True) if resumed else parsed.prompt
