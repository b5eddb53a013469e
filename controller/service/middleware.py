"""Checks API keys and body sizes of requests to the controller; keys before any body is read.

Keys are compared by their digests, so that the time it takes reveals nothing about them.

Counts the controller's requests by path and status, and the time they took.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from hashlib import sha256
from hmac import compare_digest
from time import perf_counter

from fastapi import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Paths that need no key.
OPEN = frozenset({"/health/live"})


class Door:
    """ASGI middleware that checks keys and sizes."""

    def __init__(
        self, app: ASGIApp, keys: Mapping[str, str], limits: Mapping[str, int], limit: int
    ) -> None:
        """Take the valid `keys` by name (without any, no key is needed) and the size limits.

        A body has at most `limit` bytes, or what `limits` has for its path.
        """
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in keys.values()]
        self._limits = limits
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._digests and scope["path"] not in OPEN and not self._knows(scope):
            words = {"detail": "a key is needed: Authorization: Bearer …"}
            refusal = JSONResponse(words, 401, {"www-authenticate": "Bearer"})
            await refusal(scope, receive, send)
        else:
            await self._app(scope, self._counted(scope, receive), send)

    def _knows(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        brought = sha256(key.strip()).digest()
        found = [compare_digest(brought, digest) for digest in self._digests]
        return scheme.lower() == b"bearer" and any(found)

    def _counted(self, scope: Scope, receive: Receive) -> Receive:
        limit = self._limits.get(scope["path"], self._limit)
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > limit:
                raise HTTPException(413, f"more than {limit} bytes")
            return message

        return counted


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
