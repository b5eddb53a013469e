"""Requests of sessions, and what became of them."""

import threading
from typing import Any

import httpx

from tests.support import Router

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}


def ask(router: Router, session: str | None = None) -> httpx.Response:
    """Send one request."""
    named = {"x-session-id": session} if session else {}
    return router.http.post("/v1/chat/completions", json=CHAT, headers=named)


class Later:
    """A request in its own thread."""

    def __init__(self, router: Router, session: str) -> None:
        self.replies: list[httpx.Response] = []
        self._thread = threading.Thread(target=lambda: self.replies.append(ask(router, session)))
        self._thread.start()

    def worker(self) -> str:
        """Return the worker that answered."""
        self._thread.join(20)
        return self.replies[0].headers["x-warmroute-worker"]

    def status(self) -> int:
        """Return the status of the answer."""
        self._thread.join(20)
        return self.replies[0].status_code
