"""What every request to the controller passes: checks of its key and size, and counting.

Keys are checked before any body is read. They are compared by their digests, so that the time it
takes reveals nothing about them.
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
KEYLESS_PATHS = frozenset({"/health/live"})
#: Stands for all unknown paths.
OTHER_PATH = "other"


class AccessMiddleware:
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
        elif not self._may_pass(scope):
            body = {"detail": "a key is needed: Authorization: Bearer …"}
            refusal = JSONResponse(body, 401, {"www-authenticate": "Bearer"})
            await refusal(scope, receive, send)
        else:
            await self._app(scope, self._limited(scope, receive), send)

    def _may_pass(self, scope: Scope) -> bool:
        if not self._digests or scope["path"] in KEYLESS_PATHS:
            return True
        header = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = header.partition(b" ")
        digest = sha256(key.strip()).digest()
        matches = [compare_digest(digest, valid) for valid in self._digests]
        return scheme.lower() == b"bearer" and any(matches)

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        limit = self._limits.get(scope["path"], self._limit)
        received = 0

        async def receive_within_limit() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise HTTPException(413, f"more than {limit} bytes")
            return message

        return receive_within_limit


class CountingMiddleware:
    """The outermost ASGI middleware, which counts requests."""

    def __init__(self, app: ASGIApp, paths: Iterable[str], requests: "RequestCounts") -> None:
        """Count by the first part of the path, if `paths` has it; others count as `OTHER_PATH`."""
        self._app = app
        self._paths = frozenset(path.split("/")[1] for path in paths if path.startswith("/"))
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count and time it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = perf_counter(), 500

        async def observe(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, observe)
        finally:
            first = scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
            path = f"/{first}" if first in self._paths else OTHER_PATH
            self._requests.answered[path, f"{status // 100}xx"] += 1
            self._requests.seconds[path] += perf_counter() - start


class RequestCounts:
    """Counts of requests."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str]] = Counter()
        """Number of requests by path and status class."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Total time of the requests by path."""
