"""Requests of sessions, what became of them, and a session at one of two workers."""

import threading
from typing import Any, NamedTuple

import httpx

from tests.support import OK, Action, MakeRouter, MakeStub, Router, Stub, until

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
OPEN: dict[str, Any] = {"requestType": "NEW_SESSION"}
CLOSE: dict[str, Any] = {"requestType": "CLOSE"}
#: Opens a session with an id of the client's own, with a prompt.
OPENS = {**CHAT, **OPEN, "extSessionID": "mine"}
HEADER = "X-Amzn-SageMaker-Session-Id"
NEW = "x-amzn-sagemaker-new-session-id"
#: A session moves if its worker is full, however long it would wait otherwise.
SPILLS = {"name": "session", "over": "leastload", "spill": "1h"}
FULL: list[Action] = [b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"]


def ask(router: Router, session: str | None = None) -> httpx.Response:
    """Send one request, as an OpenAI client does."""
    named = {"x-session-id": session} if session else {}
    return router.http.post(PATH, json=CHAT, headers=named)


def invoke(router: Router, body: dict[str, Any], key: str | None = None) -> httpx.Response:
    """Send what boto3 would send."""
    return router.http.post("/invocations", json=body, headers={HEADER: key} if key else {})


def opened(reply: httpx.Response) -> str:
    """Return the id of a session that has begun."""
    assert reply.status_code == 200, reply.text
    return str(reply.headers[NEW]).partition(";")[0]


def state(reply: httpx.Response) -> str:
    """Return what became of the request's session."""
    assert reply.status_code == 200, reply.text
    return str(reply.headers.get("x-warmroute-session", "")).partition(";")[0]


def homes(router: Router) -> dict[str, str]:
    """Return the open sessions and their workers."""
    return {one["id"]: one["worker"] for one in router.http.get("/sessions").json()}


def events(router: Router, event: str, pool: str = "default") -> float:
    """Return how often that happened to a session, by the metrics."""
    return router.metric("warmroute_session_events_total", pool=pool, event=event)


class Later:
    """A request in its own thread."""

    def __init__(self, router: Router, session: str | None, path: str = PATH) -> None:
        self.replies: list[httpx.Response] = []
        named = {HEADER: session} if session else {}

        def asks() -> None:
            self.replies.append(router.http.post(path, json=CHAT, headers=named))

        self._thread = threading.Thread(target=asks)
        self._thread.start()

    def reply(self) -> httpx.Response:
        """Return the answer."""
        self._thread.join(20)
        return self.replies[0]

    def worker(self) -> str:
        """Return the worker that answered."""
        return self.reply().headers["x-warmroute-worker"]


class Pair(NamedTuple):
    """A router in front of two workers, of which one has the session `a`."""

    router: Router
    home: str
    """Name of the session's worker."""
    other: str
    workers: dict[str, Stub]
    listed: list[dict[str, Any]]
    """The workers as settings list them."""

    def busied(self) -> tuple[list[int], Later]:
        """Keep the session's worker busy with a request of the session, until the list returned
        has an element."""
        done: list[int] = []
        worker = self.workers[self.home]
        count = len(worker.requests)
        worker.script = [lambda: bool(done), *OK]
        first = Later(self.router, "a")
        until(lambda: len(worker.requests) > count)
        return done, first


def paired(stub: MakeStub, route: MakeRouter, *, stateful: bool = False, **settings: Any) -> Pair:
    """Start a router with two workers and a session."""
    workers = {f"w{number}": stub() for number in range(2)}
    listed = [{"name": name, "url": one.url, "stateful": stateful} for name, one in workers.items()]
    router = route(*listed, **({"strategy": "session"} | settings))
    home = ask(router, "a").headers["x-warmroute-worker"]
    return Pair(router, home, "w1" if home == "w0" else "w0", workers, listed)
