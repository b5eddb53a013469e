"""What the controller was asked, and how long it took: counted by path and status."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: All paths that there are not.
OTHER = "other"


class Counted:
    """ASGI middleware, the outermost."""

    def __init__(self, app: ASGIApp, paths: Iterable[str], requests: "Requests") -> None:
        """Paths count by their first part, those of `paths` alone: nobody makes up others."""
        self._app = app
        self._paths = frozenset(path.split("/")[1] for path in paths if path.startswith("/"))
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it through, and look at the clock."""
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
    """The counts."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str]] = Counter()
        """By path and class of status."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Spent on all of them, by path."""
