"""Checks API keys and body sizes of requests to the controller; keys before any body is read.

Keys are compared by their digests, so that the time it takes reveals nothing about them.
"""

from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest

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
