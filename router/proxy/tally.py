"""What has come of asking workers for one request, and whether another may still be asked."""

from router.api.errors import DoorError, NoWorker
from router.fleet.worker import Worker
from router.upstream.errors import Refused, Stale, WorkerError, answer_for
from router.upstream.missing import Missing


class Tally:
    """The workers that were asked so far, and what the last one said."""

    __slots__ = ("_lacking", "_vanished", "asked", "error", "full", "without")

    def __init__(self) -> None:
        self.asked = 0
        """Not those that refused the connection: nothing was sent there."""
        self.error: DoorError | None = None
        """What the client would get now; None while nothing has gone wrong."""
        self.full = False
        """A worker was full."""
        self.without: list[Worker] = []
        """Those that have no chat template, as they say."""
        self._vanished = self._lacking = False

    def passed(self, worker: Worker, missing: Missing | None) -> None:
        """Note that a worker accepts no more, or that what was asked for is `missing` there."""
        self.asked += 1
        self.full = self.full or missing is None
        if missing is Missing.TEMPLATE:
            self.without.append(worker)
        lacks = "has not got what was asked for" if missing else "is full"
        self.error = NoWorker(f"Every worker that was asked {lacks}; please try again.")

    def failed(self, failure: WorkerError, worker: str) -> bool:
        """Note a failure; return whether another worker may be asked."""
        self.error = answer_for(failure, worker)
        stale = isinstance(failure, Stale)
        # Two workers that vanish in a row: this request may be what kills them.
        if not failure.safe or (self._vanished and stale):
            return False
        self._vanished = self._vanished or stale
        self._lacking = self._lacking or (isinstance(failure, Refused) and failure.ours)
        self.asked += stale
        return True

    @property
    def reached_none(self) -> bool:
        """Whether no worker was asked; but not if the router lacked descriptors or ports."""
        return not self.asked and not self._lacking

    def said(self) -> DoorError:
        """Return what the client gets if no other worker is asked."""
        return self.error or NoWorker("No worker is ready any more; please try again.")
