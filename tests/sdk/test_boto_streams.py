"""Event streams as boto3 decodes them."""

from typing import Any

import pytest

from router.sagemaker.response import parts
from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.sdk.boto.client import Boto
from tests.sdk.documents import DONE, STREAM_END, STREAM_HEAD, answer, chunk
from tests.support import Action, MakeRouter, MakeStub, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
EVENTS = [b'data: {"number":%d}\n\n' % number for number in range(5)]


def test_a_frame_is_what_botocore_reads() -> None:
    """These bytes are known to be decoded as `hi` by botocore."""
    wanted = (
        "0000006b00000059997770650d3a6d6573736167652d747970650700056576656e740b3a6576656e742d74797065"
        "07000b5061796c6f6164506172740d3a636f6e74656e742d747970650700186170706c69636174696f6e2f6f6374"
        "65742d73747265616d68697dde0062"
    )
    assert parts(b"hi").hex() == wanted


def test_the_parts_are_the_worker_s_bytes(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """One part per event, whatever pieces the events arrived in."""
    said = b"".join(EVENTS) + DONE
    pieces: list[Action] = [chunk(said[at : at + 17]) for at in range(0, len(said), 17)]
    router = route(stub([STREAM_HEAD, *pieces, STREAM_END]).url, strategy="session")
    reply = boto.stream(router.url, CHAT).good
    assert reply.parts == [*EVENTS, DONE]
    assert reply.output["ContentType"].startswith("text/event-stream")


def test_parts_come_as_the_worker_makes_them(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """The first part arrives before the worker has sent the last."""
    seen: list[int] = []
    last = [chunk(EVENTS[1]), STREAM_END]
    worker = stub([STREAM_HEAD, chunk(EVENTS[0]), lambda: bool(seen), *last])
    router = route(worker.url, strategy="session")
    number = boto.start(router.url, "invoke_endpoint_with_response_stream", CHAT)
    seen.append(boto.event(number))
    assert boto.reply(number).good.parts == EVENTS[:2]


def test_a_session_goes_on_in_a_stream(boto: Boto, route: MakeRouter) -> None:
    """It stays on the worker where it was opened; it cannot begin there."""
    settings = FleetSettings(workers=3, profile="toy", models=("toy",), kv_events=False)
    opens = {"requestType": "NEW_SESSION"}
    with FleetThread(settings) as fleet:
        router = route(*fleet.urls, strategy="session")
        start = boto.invoke(router.url, opens).good
        key = start.output["NewSessionId"].partition(";")[0]
        for body in ({**CHAT, "max_tokens": 4}, {"inputs": "Hi", "parameters": {}}):
            reply = boto.stream(router.url, body, SessionId=key).good
            assert reply.worker == start.worker
            assert reply.parts[-1] == DONE
        for body, named in ((CHAT, {"SessionId": "NEW_SESSION"}), (opens, {})):
            reply = boto.stream(router.url, body, **named)
            assert (reply.kind, reply.refusal, len(reply.sent)) == ("ValidationError", 400, 1)


def test_a_session_is_closed_in_a_stream(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """The worker's answer is a part like any other."""
    said = b"Session w-1 has been closed.\n"
    worker = stub(answer(said, 200, b"X-Amzn-SageMaker-New-Session-Id: w-1"))
    router = route({"url": worker.url, "stateful": True}, strategy="session")
    reply = boto.invoke(router.url, {"requestType": "NEW_SESSION"}, SessionId="NEW_SESSION").good
    key = str(reply.output["NewSessionId"]).partition(";")[0]
    reply = boto.stream(router.url, {"requestType": "CLOSE"}, SessionId=key).good
    assert reply.parts == [said]
    assert reply.headers["x-amzn-sagemaker-closed-session-id"] == key


@pytest.mark.parametrize("end", ["reset", "close"])
def test_a_worker_that_dies_in_mid_stream(
    boto: Boto, stub: MakeStub, route: MakeRouter, end: str
) -> None:
    """It becomes an exception of the stream, not a broken connection."""
    worker = stub([STREAM_HEAD, *map(chunk, EVENTS[:2]), 0.05, end])
    router = route(worker.url, strategy="session")
    reply = boto.stream(router.url, CHAT)
    assert (reply.kind, reply.code) == ("EventStreamError", "ModelStreamError")
    assert reply.parts == EVENTS[:2]
    until(router.idle)


def test_json_that_ends_too_soon_in_a_stream(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """The same for an answer that is not an event stream."""
    begun = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"a"'
    router = route(stub([begun, 0.05, "close"]).url, strategy="session")
    assert boto.stream(router.url, {**CHAT, "stream": False}).code == "ModelStreamError"


def test_an_error_before_the_stream_is_an_error(
    boto: Boto, stub: MakeStub, route: MakeRouter
) -> None:
    """It has its status, and is not sent as a frame."""
    body = b'{"error":{"message":"no such thing"}}'
    reply = boto.stream(route(stub(answer(body, 400)).url, strategy="session").url, CHAT)
    assert (reply.kind, reply.refusal) == ("ModelError", 424)
    assert reply.failure["response"]["OriginalMessage"] == body.decode()
