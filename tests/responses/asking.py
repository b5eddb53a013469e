"""Clients of `/v1/responses`."""

from typing import Any

import httpx

from tests.responses.engine import Engine
from tests.support import Router

PATH = "/v1/responses"


def create(router: Router, text: str = "hi", key: str = "", **fields: Any) -> httpx.Response:
    """Have a response made."""
    body = {"model": "m", "input": text, **fields}
    return router.http.post(PATH, json=body, headers=bearer(key))


def made(router: Router, key: str = "", **fields: Any) -> str:
    """Have a response made and return its id."""
    reply = create(router, key=key, **fields)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


def follow(router: Router, response: str, key: str = "", **fields: Any) -> httpx.Response:
    """Go on from a response."""
    return create(router, key=key, previous_response_id=response, **fields)


def get(router: Router, response: str, key: str = "") -> httpx.Response:
    """Fetch a response."""
    return router.http.get(f"{PATH}/{response}", headers=bearer(key))


def bearer(key: str) -> dict[str, str]:
    """Return the header that shows a key, if there is one."""
    return {"authorization": f"Bearer {key}"} if key else {}


def owner(engines: list[Engine], response: str) -> Engine:
    """Return the worker that has a response."""
    [found] = [one for one in engines if response in one.kept]
    return found
