"""The client's own retries, as steered by responses of workers and of the router."""

from typing import Any

import openai
import pytest

from tests.sdk.clients import CALLERS
from tests.sdk.conftest import MODEL, MakeScripted
from tests.sdk.documents import DONE, delta, document, event, message, stream
from tests.support import MakeRouter, MakeStub, until

CHAT = "chat.completions.create"
RAW = "chat.completions.with_raw_response.create"
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Why?"}]}
REFUSAL = {"error": {"message": "later", "type": "E", "param": None, "code": None}}
SOON = b"retry-after-ms: 1"


def counts(requests: list[bytes]) -> list[bytes]:
    """Return the retry count of each request."""
    lines = [line for request in requests for line in request.lower().split(b"\r\n")]
    return [line[-1:] for line in lines if line.startswith(b"x-stainless-retry-count: ")]


def test_what_is_tried_again(scripted: MakeScripted) -> None:
    """The statuses that clients consider temporary: each try is a request to the worker."""
    scene = scripted(max_retries=1)
    statuses = [429, 500, 503, 408, 502, 409, 504]
    for status in statuses:
        scene.plays(document(REFUSAL, status, SOON))
        with pytest.raises(openai.APIStatusError) as caught:
            scene.caller.call(CHAT, **ASKED)
        assert caught.value.status_code == status
    assert counts(scene.worker.requests) == [b"0", b"1"] * len(statuses)


def test_a_worker_may_forbid_it(scripted: MakeScripted) -> None:
    """`x-should-retry` reaches the client, which obeys it."""
    scene = scripted(document(REFUSAL, 500, b"x-should-retry: false"), max_retries=2)
    with pytest.raises(openai.InternalServerError):
        scene.caller.call(CHAT, **ASKED)
    assert len(scene.worker.requests) == 1


def test_the_second_try_succeeds(scripted: MakeScripted) -> None:
    """If a worker refuses once and answers the retry, the client's user does not notice."""
    scene = scripted(document(REFUSAL, 429, SOON), max_retries=2)

    def recover(request: Any) -> None:
        if request.headers["x-stainless-retry-count"] == "1":
            scene.plays(stream(event(delta("Because.")), DONE))

    scene.caller.hook("request", recover)
    raw, events = scene.caller.raw_events(CHAT, stream=True, **ASKED)
    assert [e.choices[0].delta.content for e in events] == ["Because."]
    assert raw.retries_taken == 1
    seen = scene.worker.requests
    assert counts(seen) == [b"0", b"1"]
    assert len({request.partition(b"\r\n\r\n")[2] for request in seen}) == 1


def test_no_worker_is_ready_yet(stub: MakeStub, route: MakeRouter, kind: str) -> None:
    """The router's 503 has a retry-after; at the retry a worker is ready."""
    worker = stub(document(message("Because.")), model=MODEL)
    worker.well = False
    router = route(worker.url, health={"interval": "20ms"})
    waits: list[str] = []

    def recover(response: Any) -> None:
        if response.status_code == 503:
            waits.append(response.headers["retry-after"])
            worker.well = True
            until(lambda: router.worker().ready)

    with CALLERS[kind](router.url, max_retries=2) as caller:
        caller.hook("response", recover)
        answer = caller.call(RAW, **ASKED)
    assert answer.parse().choices[0].message.content == "Because."
    assert answer.retries_taken == 1
    assert len(waits) == 1
    assert 0 < int(waits[0]) <= 60
    assert len(worker.requests) == 1


def test_a_worker_that_died_is_replaced(stub: MakeStub, route: MakeRouter, kind: str) -> None:
    """The client retries a 502; the router does not, as the work may have begun."""
    ill, well = stub(["close"], model=MODEL), stub(document(message("Because.")), model=MODEL)
    router = route(ill.url, well.url, strategy="roundrobin")
    with CALLERS[kind](router.url, max_retries=2) as caller:
        for _ in range(4):
            assert caller.call(CHAT, **ASKED).choices[0].message.content == "Because."
    assert ill.requests
    assert len(well.requests) == 4
