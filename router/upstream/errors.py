"""Errors between the router and a worker, and what the client gets for them.

Each says whether the worker may have started the request: only one that certainly did not start is
tried on another worker.
"""

from typing import Protocol

from router.api.errors import APIError, Headers, NoWorker, WorkerFailed, WorkerTooSlow
from router.http.headers import header
from router.runtime.quote import shown


class WorkerError(Exception):
    """Something went wrong between the router and a worker."""

    kind = "error"
    """Metric label."""
    target = ""
    """Where the worker wanted to send the client, for the log only."""
    safe = False
    """Whether the request certainly did not start there, so that another worker may be asked."""


class Refused(WorkerError):
    """No connection could be made: nothing was sent."""

    kind = "connect"
    safe = True

    def __init__(self, message: str, *, ours: bool = False) -> None:
        super().__init__(message)
        self.ours = ours
        """The router lacked descriptors or ports; the worker may be fine."""


class Stale(WorkerError):
    """A kept-alive connection was closed before any byte of an answer.

    The worker closed it as idle while the request was on its way (RFC 9112 section 9.5). If it has
    started the request after all, the close has made it stop.
    """

    kind = "stale"
    safe = True


class ConnectionLost(WorkerError):
    """The worker closed a connection in the middle of a request."""

    kind = "closed"


class ProtocolError(WorkerError):
    """The worker's answer is not HTTP."""

    kind = "garbled"


class _Head(Protocol):
    """The head of an answer."""

    status: int
    headers: Headers


class Redirected(WorkerError):
    """The worker answered with a redirect."""

    kind = "redirect"

    def __init__(self, head: _Head) -> None:
        super().__init__(f"answered with a redirect ({head.status}), which is not followed")
        self.target = shown(header(head.headers, b"location").decode("latin-1"), 200)


class ResponseTimeout(WorkerError):
    """The worker sent nothing for longer than the timeout."""

    kind = "timeout"


def answer_for(error: WorkerError, worker: str) -> APIError:
    """Translate a worker's error to the one that the client gets."""
    if isinstance(error, Refused):
        return NoWorker("No worker could be reached; please try again.")
    if isinstance(error, ResponseTimeout):
        return WorkerTooSlow(f"Worker {worker} {error}.")
    return WorkerFailed(f"Worker {worker} {error}.")
