"""A request on its way: read and understood, then decided."""

from collections.abc import Sequence

from router.exchange import Exchange
from router.metrics import PoolMetrics
from router.openai import Endpoint
from router.pool import Pool
from router.prompts import Along
from router.sessions.visit import Visit
from router.worker import Worker
from strategies.base import Decision, Prompt


class Plea:
    """A request that has been read and understood."""

    __slots__ = (
        "along",
        "endpoint",
        "exchange",
        "pool",
        "prompt",
        "salt",
        "started",
        "visit",
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
    ) -> None:
        self.endpoint = endpoint
        self.exchange = exchange
        self.pool = pool
        self.prompt = prompt
        self.along = along
        """Token ids to be sent along."""
        self.workers = workers
        """Those that could answer when it came."""
        self.started = started
        self.visit = visit
        """Its part in a session."""
        self.salt = salt
        """A field to be added to its body, if any."""


class Job:
    """A request that has been read, understood and decided."""

    __slots__ = (
        "along",
        "decision",
        "endpoint",
        "exchange",
        "metrics",
        "pool",
        "prompt",
        "retrying",
        "salt",
        "started",
        "visit",
    )

    def __init__(
        self, plea: Plea, prompt: Prompt, decision: Decision, metrics: PoolMetrics
    ) -> None:
        self.endpoint = plea.endpoint
        self.exchange = plea.exchange
        self.pool = plea.pool
        self.prompt = prompt
        self.along = plea.along
        """Token ids to be sent along."""
        self.decision = decision
        self.salt = plea.salt
        """A field to be added to its body, if any."""
        self.retrying = False
        """A part of the retry budget was taken for it."""
        self.started = plea.started
        self.metrics = metrics
        self.visit = plea.visit
        """Its part in a session."""

    @property
    def reason(self) -> str:
        """Why it is where it is: its session may have moved since that was decided."""
        reason = self.decision.reason
        return reason if self.visit is None else self.visit.reason(reason)
