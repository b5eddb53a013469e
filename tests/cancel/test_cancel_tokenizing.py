"""Clients that disconnect while their long prompts are tokenized."""

import json
import threading
from array import array
from collections.abc import Iterator
from typing import cast

import pytest

from router.api.endpoints import Endpoint
from router.prompt.prompts import KnownModel
from router.rendering.tokens import PromptTokenizer
from tests.cancel.leaving import (
    CHAT,
    PATIENT,
    Leave,
    close,
    counted,
    half_close,
    reset,
)
from tests.support import OK, MakeRouter, MakeStub, Router, post, until

SHORT = 1000


class Gate:
    """A tokenizer that blocks until its gate is opened."""

    short = SHORT

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        """The bodies of the prompts that were begun."""
        self.opened = threading.Event()

    def ids(self, _endpoint: Endpoint, body: bytes, **_: object) -> bytes:
        """Wait until the gate is open, then return one token."""
        self.begun.append(body)
        assert self.opened.wait(20)
        return array("I", [7]).tobytes()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is opened at the end of the test, so that no thread stays blocked."""
    made = Gate()
    yield made
    made.opened.set()


def know(router: Router, gate: Gate) -> None:
    """Make the router tokenize all prompts with the gate."""
    for pool in router.door.fleet.pools:
        pool.prompts.known = {"m": KnownModel("m", cast("PromptTokenizer", gate))}


def long_chat(*, stream: bool) -> bytes:
    """A chat long enough to be tokenized in a thread."""
    messages = [{"role": "user", "content": "x" * SHORT}]
    return json.dumps({"model": "m", "stream": stream, "messages": messages}).encode()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", [close, reset, half_close])
def test_while_tokenizing(
    stub: MakeStub, route: MakeRouter, gate: Gate, stream: bool, leave: Leave
) -> None:
    """The 499 is counted before tokenizing ends, and the request never reaches a worker."""
    worker = stub(OK)
    router = route(worker.url, **PATIENT)
    know(router, gate)
    with post(router.port, CHAT, long_chat(stream=stream)) as client:
        until(lambda: gate.begun)
        assert router.http.get("/health/live").status_code == 200
        leave(client)
        until(lambda: counted(router, "refused_requests") == {"499": 1})
    gate.opened.set()
    assert router.http.post(CHAT, content=long_chat(stream=False)).status_code == 200
    assert len(worker.requests) == 1
    until(lambda: counted(router, "requests") == {"2xx": 1})
    until(router.idle)
