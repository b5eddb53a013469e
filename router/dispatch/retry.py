"""The retry rule: whether a request that failed on one worker may go to another.

Only a request that certainly did not start goes elsewhere. `limits.attempts` bounds the workers
that one request asks; the retry budget bounds the retries of all requests together. When much fails
at once, retries would multiply the load on the workers that are left, until those fail too. A
request that the budget has no room for waits for its turn again (`scheduler.py`).
"""

from router.api.errors import APIError, NoWorker
from router.fleet.worker import Worker
from router.upstream.errors import Refused, Stale, WorkerError, answer_for
from router.upstream.faults import MissingAtWorker


def may_retry(
    failure: WorkerError | MissingAtWorker | None,
    attempts: "Attempts",
    *,
    others: bool,
    waits: bool,
) -> bool:
    """Return true if a request that a worker did not answer may go to another worker.

    It may if the request certainly did not start there: no connection was made or an idle one was
    just closed, or the worker refused it as it lacks what others may have (`failure` says what) or
    as it is full (None). `others` are left to be asked; `waits`: it may also wait until a worker
    has room.
    """
    if isinstance(failure, WorkerError):
        # Two workers that vanish in a row: this request may be what kills them.
        return failure.safe and not (attempts.vanished and isinstance(failure, Stale))
    return others or (failure is None and waits)


class Attempts:
    """The candidates of one decision: those that are left, and what those asked have answered."""

    __slots__ = (
        "asked",
        "error",
        "final",
        "full",
        "lacking",
        "left",
        "others",
        "vanished",
        "without",
    )

    def __init__(self, candidates: int = 0, *, others: bool = False) -> None:
        self.left = list(range(candidates))
        """Indices of the candidates that may still be asked, best first."""
        self.others = others
        """Workers that are no candidates had no room at the time of the decision."""
        self.asked = 0
        """Workers asked; not those that refused the connection: nothing was sent there."""
        self.error: APIError | None = None
        """What the client would get now; None while nothing has gone wrong."""
        self.final = False
        """The error is the client's: the request may have started."""
        self.full = False
        """A worker was full."""
        self.vanished = False
        """A worker closed the connection before any byte of an answer."""
        self.lacking = False
        """The router lacked descriptors or ports to reach a worker."""
        self.without: list[Worker] = []
        """Workers that have no chat template, as they say."""

    def passed(self, worker: Worker, missing: MissingAtWorker | None) -> None:
        """Note that a worker accepts no more, or that what was asked for is `missing` there."""
        self.asked += 1
        self.full = self.full or missing is None
        if missing is MissingAtWorker.TEMPLATE:
            self.without.append(worker)
        lacks = "has not got what was asked for" if missing else "is full"
        self.error = NoWorker(f"Every worker that was asked {lacks}; please try again.")

    def failed(self, failure: WorkerError, worker: Worker) -> None:
        """Note that a worker failed."""
        self.error = answer_for(failure, worker.name)
        stale = isinstance(failure, Stale)
        self.final = not may_retry(failure, self, others=True, waits=False)
        self.vanished = self.vanished or stale
        self.lacking = self.lacking or (isinstance(failure, Refused) and failure.ours)
        self.asked += stale

    @property
    def reached_none(self) -> bool:
        """Whether no worker was asked; but not if the router lacked descriptors or ports, as it
        would at once lack them again."""
        return not self.asked and not self.lacking

    def take_error(self) -> APIError:
        """Return what the client gets if no other worker is asked.

        It is kept no longer, as its traceback would hold what holds it.
        """
        error, self.error = self.error, None
        return error or NoWorker("No worker is ready any more; please try again.")


class RetryBudget:
    """Allows at most a share of the requests in flight to be retries at once.

    `least` retries are always allowed, because in a quiet fleet the share would round to none. A
    share of zero allows none at all.
    """

    def __init__(self, share: float, least: int = 3) -> None:
        self.used = 0
        """Retries under way."""
        self.denied = 0
        """Requests that ended because they were allowed no retry."""
        self._few = least
        self.change(share)

    def change(self, share: float) -> None:
        """Use another share for retries from now on."""
        self._share = share
        self.least = self._few if share > 0 else 0
        """How many are always allowed; 0: none ever is."""

    def allows(self, in_flight: int) -> bool:
        """Return true if `take` would allow a retry."""
        return self.used < max(self.least, int(self._share * in_flight))

    def take(self, in_flight: int) -> bool:
        """Ask before a retry; `in_flight` counts all requests, including retries.

        If it returns true, call `give_back` when the retry has ended, however it ends.
        """
        allowed = self.allows(in_flight)
        self.used += allowed
        return allowed

    def give_back(self) -> None:
        """End a retry that was allowed. Raise ValueError if none is under way."""
        if self.used == 0:
            raise ValueError("more retries ended than were allowed")
        self.used -= 1
