"""Every error a client can see; `error_shapes.py` writes them in the shape that the client expects.

What happens between the router and a worker has errors of its own (`upstream/errors.py`), which are
translated to these.
"""

from collections.abc import Mapping

import msgspec

_BUSY = "Every worker is busy and the queue is full; please try again."
#: HyperPod's message for the same.
_BUSY_HYPERPOD = "Too many concurrent requests"

Headers = list[tuple[bytes, bytes]]
#: Where clients of OpenAI, Anthropic and Azure put their keys.
CREDENTIALS = frozenset((b"authorization", b"x-api-key", b"api-key"))


def perhaps(meant: str) -> str:
    """Return a question whether that was meant, to end a message; empty if it is empty or long."""
    return f" Did you mean {meant!r}?" if 0 < len(meant) <= 200 else ""


class APIError(Exception):
    """An error that the router itself answers."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(
        self, message: str, *, param: str | None = None, headers: Headers | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers = headers or []

    def body(self) -> bytes:
        """Render in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""
        named = {"param": self.param, "code": self.code}
        return msgspec.json.encode({"error": {"message": self.message, "type": self.type, **named}})


class ClientError(APIError):
    """The client's mistake."""

    status = 400
    type = "invalid_request_error"


class BadRequest(ClientError):
    """The request cannot be understood; `param` names the field."""


class WrongKey(ClientError):
    """No valid key, or more than one (RFC 9110 section 15.5.2)."""

    status = 401
    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__(
            "A valid API key is required, and only one: send it as `Authorization: Bearer KEY`.",
            headers=[(b"www-authenticate", b"Bearer")],
        )


class ForeignPage(ClientError):
    """A request from a web page of another origin, where no key is needed that would stop it."""

    status = 403
    code = "origin_not_allowed"

    def __init__(self, origin: str) -> None:
        super().__init__(
            f"Web pages of {origin[:200]!r} may not send requests here: in the router's settings"
            " keys (`auth`) let them, and `cors` on the inference paths."
        )


class UnknownPath(ClientError):
    """Not a path that is served here."""

    status = 404
    code = "unknown_url"

    def __init__(self, path: str, meant: str = "") -> None:
        """`meant` is the path that the client probably meant."""
        super().__init__(f"There is nothing at {path[:200]!r}.{perhaps(meant)}")


class UnknownModel(ClientError):
    """No worker serves that model."""

    status = 404
    code = "model_not_found"

    def __init__(self, model: str, meant: str = "") -> None:
        """`meant` is the model that the client probably meant."""
        shown = model if len(model) <= 200 else model[:200] + "…"
        super().__init__(f"The model {shown!r} does not exist.{perhaps(meant)}", param="model")


class WrongMethod(ClientError):
    """The path is served, but not with this method."""

    status = 405

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(
            f"{method} is not allowed here; use {allowed}.",
            headers=[(b"allow", allowed.encode())],
        )


class TooSlow(ClientError):
    """The client did not send its request in time (RFC 9110 section 15.5.9)."""

    status = 408


class BodyTooLarge(ClientError):
    """The body is over `limits.body`."""

    status = 413

    def __init__(self, limit: int, what: str = "The request body") -> None:
        super().__init__(f"{what} is over this server's limit of {limit} bytes.")


class WrongCoding(ClientError):
    """The body's content coding is not taken, or not what the body is in.

    RFC 9110 section 15.5.16 has one status for both.
    """

    status = 415

    def __init__(self, why: str, taken: str) -> None:
        super().__init__(
            f"{why}: send it without a coding, or in one of {taken}.",
            headers=[(b"accept-encoding", taken.encode())],
        )


class UrlTooLong(ClientError):
    """The target is over `limits.url`."""

    status = 414

    def __init__(self, limit: int) -> None:
        super().__init__(f"The request's URL is over this server's limit of {limit} bytes.")


class ExpectationFailed(ClientError):
    """An `Expect` field that the router cannot meet (RFC 9110 section 10.1.1)."""

    status = 417


class HeadersTooLarge(ClientError):
    """Over `limits.headers` or `limits.header_count` (RFC 6585 section 5)."""

    status = 431


class Unimplemented(ClientError):
    """A transfer coding that the router does not know (RFC 9112 section 6.1)."""

    status = 501


class UnknownSession(ClientError):
    """There is no open session with that id: it never existed, has expired or was closed."""

    status = 404
    code = "session_not_found"

    def __init__(self) -> None:
        super().__init__("The session was not found: it has expired, was closed or never was.")


class SessionLost(ClientError):
    """The session's worker is gone with all it held, so the session is closed."""

    status = 410
    code = "session_lost"

    def __init__(self) -> None:
        super().__init__("The session was lost with its worker, and is closed: open another one.")


class SessionExists(ClientError):
    """A session with that id is open already."""

    status = 409
    code = "session_exists"

    def __init__(self) -> None:
        super().__init__("A session of that id is open already.")


class LostResponse(ClientError):
    """A response that a worker kept is not known here, or belongs to another key."""

    status = 404
    code = "response_not_found"
    field = "response_id"
    """Where the request names it."""

    def __init__(self) -> None:
        super().__init__(
            "The response is not known here: it has expired, its worker was restarted or removed,"
            " or it was not stored.",
            param=self.field,
        )


class LostPrevious(LostResponse):
    """The same of a response that a request goes on from."""

    code = "previous_response_not_found"
    field = "previous_response_id"


class StoreAway(APIError):
    """The sessions that are open cannot be listed, as their store is down."""

    status = 503
    code = "session_store_down"

    def __init__(self, pool: str) -> None:
        message = f"The session store of pool {pool} is down: open sessions are unknown."
        super().__init__(message, headers=[(b"retry-after", b"1")])


class NoWorker(APIError):
    """No worker can take the request now; one may soon."""

    status = 503
    code = "no_worker"

    def __init__(self, message: str, retry_after_s: int = 2) -> None:
        super().__init__(message, headers=[(b"retry-after", str(retry_after_s).encode())])


class Stopping(NoWorker):
    """The router was told to stop, and no longer waits for a worker's answer."""

    code: str = "router_stopped"

    def __init__(self, message: str = "The router is being stopped.") -> None:
        super().__init__(message)


class QueueFull(APIError):
    """The queue is full (`limits.queue`); `limits.overflow` sets the form of the answer."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"

    def __init__(
        self,
        message: str | None = None,
        status: int = 429,
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """With `counts`, limits and current numbers, the body is that of HyperPod's limits."""
        if message is None:
            message = _BUSY if counts is None else _BUSY_HYPERPOD
        super().__init__(message, headers=[(b"retry-after", b"2")])
        self.status = status
        self._counts = counts
        if status >= 500:
            self.type = "server_error"

    def body(self) -> bytes:
        """Render as any error, or as HyperPod does (request limits in its documentation)."""
        if self._counts is None:
            return super().body()
        return msgspec.json.encode({"error": self.message, **self._counts})


class Overrun(APIError):
    """No worker had room in time (`timeouts.queue`)."""

    status = 503
    code = "overloaded"

    def __init__(self) -> None:
        super().__init__(
            "Every worker was busy for too long; please try again.",
            headers=[(b"retry-after", b"5")],
        )


class WorkerFailed(APIError):
    """The worker failed after it may have started; asking another could do the work twice."""

    status = 502
    code = "worker_failed"


class WorkerTooSlow(APIError):
    """The worker took the request and did not answer in time."""

    status = 504
    code = "worker_timeout"


def refused_by_worker(status: int, message: str) -> APIError:
    """Return a worker's error that has to become an event, as a stream has begun without it."""
    error = APIError(f"The worker answered {status}: {message}")
    error.status = status
    if 400 <= status < 500:
        error.type = ClientError.type
    return error


def parted(error: APIError) -> APIError:
    """Strip an error's traceback and context, so that keeping it makes no reference cycle."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
