"""Counts the controller's requests by path and status, and the time they took."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Stands for all unknown paths.
OTHER = "other"


class Counted:
    """The outermost ASGI middleware, which counts requests."""

    def __init__(self, app: ASGIApp, paths: Iterable[str], requests: "Requests") -> None:
        """Count by the first part of the path, if `paths` has it; others count as `OTHER`."""
        self._app = app
        self._paths = frozenset(path.split("/")[1] for path in paths if path.startswith("/"))
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count and time it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = perf_counter(), 500

        async def looking(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, looking)
        finally:
            first = scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
            path = f"/{first}" if first in self._paths else OTHER
            self._requests.answered[path, f"{status // 100}xx"] += 1
            self._requests.seconds[path] += perf_counter() - start


class Requests:
    """Counts of requests."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str]] = Counter()
        """Number of requests by path and status class."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Total time of the requests by path."""
