"""The errors that boto3's callers get, how often boto3 retries, and what passes in between."""

import json
from typing import Any

import httpx
import pytest

from tests.sdk.boto.client import Boto
from tests.sdk.documents import answer
from tests.support import JSON, OK, Action, MakeRouter, MakeStub, head, read_all, send, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize("status", [400, 500])
def test_what_a_worker_refuses(boto: Boto, stub: MakeStub, route: MakeRouter, status: int) -> None:
    """It becomes a ModelError with the worker's own words, and is sent only once."""
    worker = stub(answer(b'{"error":"so it is"}', status))
    reply = boto.invoke(route(worker.url, strategy="session").url, CHAT)
    assert (reply.kind, reply.code, reply.refusal) == ("ModelError", "ModelError", 424)
    told = reply.failure["response"]
    assert (told["OriginalStatusCode"], told["OriginalMessage"]) == (status, '{"error":"so it is"}')
    assert (len(reply.sent), len(worker.requests)) == (1, 1)


def test_a_worker_that_dies(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """It may have begun, so it becomes a ModelError and is not sent again."""
    worker = stub([0.3, "close"])
    router = route(worker.url, strategy="session")
    reply = boto.invoke(router.url, CHAT)
    assert (reply.kind, len(reply.sent), len(worker.requests)) == ("ModelError", 1, 1)
    until(router.idle)


@pytest.mark.long
@pytest.mark.parametrize("dies", [False, True])
def test_a_full_fleet(boto: Boto, stub: MakeStub, route: MakeRouter, dies: bool) -> None:
    """boto3 itself retries: five attempts in all, three since 1.44.

    A worker that dies after it has said that it is full has not begun either.
    """
    cut: list[Action] = [b"HTTP/1.1 503 Full\r\ncontent-length: 9\r\n\r\n{", 0.05, "close"]
    worker = stub(cut if dies else answer(b"{}", 503))
    router = route(worker.url, strategy="session", limits={"queue": 0})
    reply = boto.invoke(router.url, CHAT)
    assert (reply.kind, reply.refusal) == ("ServiceUnavailable", 503)
    assert len(reply.sent) == (3 if boto.generation == "1.44" else 5)
    assert len({one["amz-sdk-invocation-id"] for one in reply.sent}) == 1
    assert len(worker.requests) == len(reply.sent)


def tries(most: int) -> dict[str, Any]:
    """Return options of a client that sends a call at most so often."""
    return {"config": {"retries": {"total_max_attempts": most}}}


def test_back_pressure(boto: Boto, stub: MakeStub, route: MakeRouter, dead_url: str) -> None:
    """Full and absent workers are a 503, and a full queue a 429, after which boto3 retries."""
    cut: list[Action] = [b"HTTP/1.1 503 Full\r\ncontent-length: 9\r\n\r\n{", 0.05, "close"]
    full = route(stub(cut).url, limits={"queue": 0})  # its status is enough
    reply = httpx.post(f"{full.url}/invocations", json=CHAT)
    assert (reply.status_code, "retry-after" in reply.headers) == (503, True)
    absent = route({"url": dead_url, "models": ["m"]}, strategy="session")
    assert boto.invoke(absent.url, CHAT, options=tries(1)).code == "ServiceUnavailable"
    done: list[int] = []
    worker = stub([lambda: bool(done), *OK])
    router = route(worker.url, limits={"in_flight": 1, "queue": 0})
    first = boto.start(router.url, "invoke_endpoint", CHAT)
    until(lambda: len(worker.requests) == 1)
    throttled = boto.invoke(
        router.url, CHAT, options={"config": {"retries": {"total_max_attempts": 2}}}
    )
    done.append(1)
    assert (throttled.code, throttled.refusal) == ("ThrottlingException", 429)
    assert len(throttled.sent) == 2
    assert boto.reply(first).good


@pytest.mark.parametrize("path", ["invocations", "openai"])
def test_workers_see_nothing_of_aws(
    boto: Boto, stub: MakeStub, route: MakeRouter, path: str
) -> None:
    """Workers get no session, signature or attributes."""
    worker = stub()
    router = route(worker.url, strategy="session")
    if path == "invocations":
        start = boto.invoke(router.url, {"requestType": "NEW_SESSION"}).good
        key = start.output["NewSessionId"].partition(";")[0]
        more = {"CustomAttributes": "c=1", "InferenceId": "i-1", "TargetVariant": "v-1"}
        assert boto.invoke(router.url, CHAT, SessionId=key, **more).good
    else:
        fields = {
            "Authorization": "AWS4-HMAC-SHA256 Credential=A/20260101/r/sagemaker/aws4_request",
            "X-Amzn-SageMaker-Session-Id": "abc",
            "X-Amz-Date": "now",
            "x-session-id": "a",
        }
        url = f"{router.url}/endpoints/x/openai/v1/chat/completions"
        assert httpx.post(url, json=CHAT, headers=fields).status_code == 200
    seen = worker.requests[-1].partition(b"\r\n\r\n")[0].lower()
    assert not any(name in seen for name in (b"amz", b"authorization", b"x-session-id"))


def test_header_fields(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """Attributes and variant come back; without signature and content type it is served too."""
    worker = stub()
    router = route(worker.url, strategy="session")
    reply = boto.invoke(router.url, CHAT, CustomAttributes="trace=7", TargetVariant="blue").good
    assert reply.output["CustomAttributes"] == "trace=7"
    assert reply.output["InvokedProductionVariant"] == "blue"
    assert reply.headers["x-amzn-requestid"] == reply.headers["x-request-id"]
    bare = boto.invoke(router.url, CHAT, options={"config": {"unsigned": True}}).good
    assert bare.output["InvokedProductionVariant"] == "AllTraffic"
    assert not {"authorization", "content-type"} & bare.sent[0].keys()
    assert b"\r\ncontent-type: application/json\r\n" in worker.requests[-1].lower()


def test_no_worker_is_asked_to_compress(stub: MakeStub, route: MakeRouter) -> None:
    """The router reads, frames and converts answers."""
    worker = stub()
    router = route(worker.url)
    for path in ("invocations", "invocations-response-stream", "openai/v1/chat/completions"):
        url = f"{router.url}/endpoints/x/{path}"
        assert httpx.post(url, json=CHAT, headers={"accept-encoding": "gzip"}).is_success
    assert all(b"\r\naccept-encoding: identity\r\n" in one for one in worker.requests)
    assert not any(b"gzip" in one for one in worker.requests)


#: `sagemaker.sigv4`: botocore computes the signature on both sides.
SIGNED = {"sigv4": [{"access_key": "AKIA1", "secret_key": "${SECRET}"}]}
RIGHT = {"keys": ["AKIA1", "right"]}


def test_only_the_right_secret_opens(
    boto: Boto, stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong secret, an unknown key and no signature give 403, and no worker is asked."""
    monkeypatch.setenv("SECRET", "right")
    worker = stub()
    router = route(worker.url, strategy="session", auth="none", sagemaker=SIGNED)
    wrong: list[dict[str, Any]] = [
        {"keys": ["AKIA1", "wrong"]},
        {"keys": ["AKIA2", "right"]},
        {"config": {"unsigned": True}},
    ]
    for options in wrong:
        reply = boto.invoke(router.url, CHAT, options=options)
        assert (reply.refusal, len(reply.sent), bool(reply.message)) == (403, 1, True)
    assert worker.requests == []
    for more in ({}, {"CustomAttributes": "a  b"}, {"SessionId": "NEW_SESSION"}):
        assert boto.invoke(router.url, CHAT, options=RIGHT, **more).good


def test_a_changed_body_is_found_out(
    stub: MakeStub, route: MakeRouter, boto: Boto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signature covers the body, and any SageMaker header has to be covered too."""
    monkeypatch.setenv("SECRET", "right")
    router = route(stub().url, auth="none", sagemaker=SIGNED)
    sent = boto.invoke(router.url, CHAT, options=RIGHT).good.sent[0]
    url = f"{router.url}/endpoints/llama/invocations"
    names = ("authorization", "x-amz-date", "amz-sdk-invocation-id", "amz-sdk-request")
    fields = {name: sent[name] for name in (*names, "user-agent") if name in sent}
    for name in ("X-Amzn-SageMaker-Session-Id", "X-Amzn-SageMaker-Target-Model"):
        reply = httpx.post(url, content=json.dumps(CHAT), headers={**fields, name: "m"})
        assert (reply.status_code, "cover" in reply.json()["message"]) == (403, True)
    same = httpx.post(url, content=json.dumps(CHAT), headers=fields)
    other = httpx.post(url, content=json.dumps(CHAT) + " ", headers=fields)
    assert (same.status_code, other.status_code) == (200, 403)


def test_an_alias_and_a_prefix(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """The service's old name, and a prefix before all paths."""
    router = route(stub().url, sagemaker={"prefix": "/llm"})
    options = {"service": "runtime.sagemaker"}
    assert boto.invoke(f"{router.url}/llm", CHAT, options=options).good
    assert httpx.post(f"{router.url}/llm/invocations", json=CHAT).status_code == 200
    assert httpx.post(f"{router.url}/invocations", json=CHAT).status_code == 404


@pytest.mark.long
def test_the_url_in_the_environment(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """The variable with which AWS's own tools are configured."""
    router = route(stub().url)
    with Boto(boto.generation, AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME=router.url) as other:
        assert other.invoke(None, CHAT).good


def test_the_container_s_own_paths(stub: MakeStub, route: MakeRouter) -> None:
    """The paths that SageMaker requires of a container."""
    router = route(stub().url)
    assert httpx.post(f"{router.url}/invocations", json=CHAT).content == JSON
    assert httpx.get(f"{router.url}/ping").status_code == 200
    assert httpx.post(f"{router.url}/ping").status_code == 200


def test_endpoints_of_the_settings(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """Others are refused; one sets the model of requests that name none, and the worker sees it."""
    one, two = stub(model="one"), stub(model="two")
    endpoints = [{"name": "llama", "model": "two"}]
    router = route(one.url, two.url, sagemaker={"endpoints": endpoints})
    for name in ("a_b", "with/slash", "x" * 64, "other"):
        reply = boto.invoke(router.url, CHAT, EndpointName=name)
        assert (reply.code, reply.refusal, len(reply.sent)) == ("ValidationError", 400, 1)
    assert boto.invoke(router.url, CHAT).good
    assert b'"model":"two"' in two.requests[-1]
    assert boto.invoke(router.url, {**CHAT, "model": "one"}).good
    assert (len(one.requests), len(two.requests)) == (1, 1)


def test_what_is_no_invocation(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """It is refused with a message; asynchronous ones are another API, which needs a bucket."""
    worker = stub()
    router = route(worker.url, strategy="session")
    for body in (b"", b"[]", b"hello", b'{"inputs":[1]}', b'{"requestType":1}'):
        reply = boto.invoke(router.url, body)
        assert (reply.code, bool(reply.message)) == ("ValidationError", True)
    later = httpx.post(f"{router.url}/endpoints/x/async-invocations", json={})
    assert (later.status_code, later.headers["x-amzn-errortype"]) == (400, "ValidationError")
    assert worker.requests == []


def test_the_limit_is_sagemaker_s(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """6,291,456 bytes, and not one more; a longer one is refused unread."""
    router = route(stub().url)
    start, end = b'{"messages":[{"role":"user","content":"', b'"}]}'
    text = b"x" * (6_291_456 - len(start) - len(end))
    assert boto.invoke(router.url, start + text + end).good
    with send(router.port, head("/invocations", 6_291_457)) as client:
        reply = read_all(client)
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b"x-amzn-errortype: ValidationError" in reply


#: Request heads that are refused before they are fully parsed, and the status.
HEADS = {
    "a large field": (b"", b"host: x\r\nx: " + b"y" * 2000 + b"\r\n\r\n", 431),
    "many fields": (b"", b"host: x" + b"\r\ny: z" * 30 + b"\r\n\r\n", 431),
    "a long URL": (b"?" + b"y" * 600, b"host: x\r\n\r\n", 414),
    "no host": (b"", b"x: y\r\n\r\n", 400),
    "a coding": (b"", b"host: x\r\ntransfer-encoding: gzip\r\n\r\n", 400),
    "no end": (b"", b"x: ", 408),
}


@pytest.mark.parametrize("what", HEADS)
def test_a_head_that_is_refused(stub: MakeStub, route: MakeRouter, what: str) -> None:
    """The error has the form of the path's API, even if only the path was read."""
    query, fields, status = HEADS[what]
    bounds = {"url": "512B", "headers": "1KiB", "header_count": 20}
    router = route(stub().url, limits=bounds, clients={"header": "300ms"})
    for path in (b"/endpoints/llama/invocations", b"/v1/models"):
        with send(router.port, b"POST %b%b HTTP/1.1\r\n%b" % (path, query, fields)) as client:
            reply = read_all(client)
        if path.startswith(b"/v1/"):
            assert b'\r\n\r\n{"error":{"message":' in reply
        else:
            assert reply.startswith(b"HTTP/1.1 %d " % status)
            assert b"\r\nx-amzn-errortype: ValidationError\r\n" in reply
            assert b'\r\n\r\n{"__type":"ValidationError"' in reply


def test_openai_s_own_paths(stub: MakeStub, route: MakeRouter) -> None:
    """Streams pass unchanged, `model` may be empty, and sessions work."""
    said = b'data: {"a":1}\n\ndata: [DONE]\n\n'
    start = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    router = route(stub([start % len(said) + said]).url, strategy="session")
    for form in ("endpoints/x", "endpoints/x/inference-components/lora"):
        url = f"{router.url}/{form}/openai/v1/chat/completions"
        body = {**CHAT, "model": "", "stream": True}
        reply = httpx.post(url, json=body, headers={"X-Amzn-SageMaker-Session-Id": "NEW_SESSION"})
        assert reply.content == said
        key = reply.headers["x-amzn-sagemaker-new-session-id"].partition(";")[0]
        again = httpx.post(url, json=body, headers={"X-Amzn-SageMaker-Session-Id": key})
        assert again.headers["x-warmroute-session"].startswith("kept")
    assert set(httpx.post(url, content=b"{").json()) == {"error"}
