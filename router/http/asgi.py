"""The bridge to FastAPI, for everything but inference: small requests, small answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from router.api.errors import APIError, Headers
from router.http.exchange import Exchange, date_line

log = logging.getLogger("warmroute.admin")

Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]


class AsgiBridge:
    """Serves an exchange with an ASGI application. The answer is sent once it is complete."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def serve(self, exchange: Exchange) -> None:
        """Answer one request. An exception in the application becomes an error answer."""
        if exchange.path == "*":  # OPTIONS on the server as a whole (RFC 9110 section 9.3.7)
            exchange.answer(204, b"allow: GET, HEAD, OPTIONS, POST\r\n" + date_line(), b"")
            return
        if exchange.codings:
            try:
                await exchange.decode()
            except APIError as error:
                exchange.refuse(error)
                return
        status, headers, body = 500, list[tuple[bytes, bytes]](), b""
        received = False

        async def receive() -> Message:
            nonlocal received
            if received:
                await asyncio.Event().wait()  # forever: if the client leaves, the task is cancelled
            received = True
            return {"type": "http.request", "body": exchange.body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status, headers, body
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message["headers"])
            elif message["type"] == "http.response.body":
                body += message.get("body", b"")

        try:
            await self._app(_scope(exchange), receive, send)
        except Exception:
            log.exception("internal error, id=%s", exchange.identity.decode())
            exchange.refuse(APIError("Internal error in the router."))
            return
        exchange.answer(status, _fields(headers, exchange.identity), body)


def _scope(exchange: Exchange) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": exchange.version,
        "method": exchange.method,
        "scheme": "http",
        "path": exchange.path,
        "query_string": exchange.query[1:],
        "root_path": "",
        "headers": exchange.headers,
        "client": None,
        "server": None,
        "state": {"tenant": exchange.tenant},
    }


def _fields(headers: Headers, identity: bytes) -> bytes:
    lines = [b"%b: %b\r\n" % pair for pair in headers if pair[0].lower() != b"content-length"]
    return b"".join((*lines, b"x-request-id: %b\r\n" % identity, date_line()))
