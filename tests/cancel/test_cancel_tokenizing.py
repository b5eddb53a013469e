"""A client that leaves while its long prompt is tokenized."""

import json
import threading
from array import array
from collections.abc import Iterator
from typing import cast

import pytest

from router.identity.exact import Exact
from router.openai import Endpoint
from router.prompts import Known
from tests.cancel.leaving import (
    CHAT,
    PATIENT,
    Leave,
    close,
    counted,
    everywhere,
    half_close,
    request_to,
    reset,
)
from tests.support import OK, MakeRouter, MakeStub, Router, post, until

SHORT = 1000


class Gate:
    """A tokenizer that waits to be opened."""

    short = SHORT

    def __init__(self) -> None:
        self.begun, self.opened = threading.Event(), threading.Event()

    def ids(self, _endpoint: Endpoint, _body: bytes, **_: object) -> bytes:
        """Return one token, once it is open."""
        self.begun.set()
        assert self.opened.wait(20)
        return array("I", [7]).tobytes()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """One that is open in the end."""
    made = Gate()
    yield made
    made.opened.set()


def know(router: Router, gate: Gate) -> None:
    """Have every prompt go through the gate."""
    for pool in router.door.fleet.pools:
        pool.prompts.known = {"m": Known("m", cast("Exact", gate))}


def long_chat(*, stream: bool) -> bytes:
    """A chat that is tokenized in a thread."""
    messages = [{"role": "user", "content": "x" * SHORT}]
    return json.dumps({"model": "m", "stream": stream, "messages": messages}).encode()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", [close, reset, half_close])
def test_while_tokenizing(
    stub: MakeStub, route: MakeRouter, gate: Gate, stream: bool, leave: Leave
) -> None:
    """It is counted at once, and no worker hears of it, even when the tokens are there."""
    worker = stub(OK)
    router = route(worker.url, **PATIENT)
    know(router, gate)
    router.door._proxy._tokenizing._patience = 20.0
    with post(router.port, CHAT, long_chat(stream=stream)) as client:
        until(gate.begun.is_set)
        assert router.http.get("/health/live").status_code == 200
        leave(client)
        until(lambda: counted(router, "refused_requests") == {"499": 1})
    gate.opened.set()
    assert router.http.post(CHAT, content=long_chat(stream=False)).status_code == 200
    assert len(worker.requests) == 1
    assert counted(router, "requests") == {"2xx": 1}
    assert router.idle()


@everywhere
@pytest.mark.parametrize("stream", [True, False])
def test_while_any_prompt_is_tokenized(
    stub: MakeStub, route: MakeRouter, gate: Gate, endpoint: Endpoint, stream: bool
) -> None:
    """The same on every path."""
    worker = stub(OK)
    router = route(worker.url, **PATIENT)
    know(router, gate)
    router.door._proxy._tokenizing._patience = 20.0
    body, fields = request_to(endpoint, stream=stream, text="x" * SHORT)
    with post(router.port, endpoint.path, body, *fields):
        until(gate.begun.is_set)
    until(lambda: counted(router, "refused_requests") == {"499": 1})
    gate.opened.set()
    assert router.http.post(CHAT, content=long_chat(stream=False)).status_code == 200
    assert len(worker.requests) == 1
    assert counted(router, "requests") == {"2xx": 1}
    assert router.idle()
