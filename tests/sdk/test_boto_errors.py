"""The errors that boto3's callers get, and how often boto3 retries."""

import json
from typing import Any

import httpx
import pytest

from tests.sdk.boto.client import Boto
from tests.support import JSON, OK, Action, MakeRouter, MakeStub, head, read_all, send, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
#: The header that says which attempt a request is.
ATTEMPT = "amz-sdk-request"


def answer(status: int, body: bytes) -> list[Action]:
    """Return a worker's response."""
    head = b"HTTP/1.1 %d Said\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return [head % (status, len(body)) + body]


@pytest.mark.parametrize("status", [400, 404, 422, 500, 501])
def test_what_a_worker_refuses(boto: Boto, stub: MakeStub, route: MakeRouter, status: int) -> None:
    """It becomes a ModelError with the worker's own words, and is sent only once."""
    worker = stub(answer(status, b'{"error":"so it is"}'))
    router = route(worker.url, strategy="session")
    reply = boto.invoke(router.url, CHAT)
    assert (reply.kind, reply.code, reply.refusal) == ("ModelError", "ModelError", 424)
    assert reply.error is not None
    told = reply.error["response"]
    assert (told["OriginalStatusCode"], told["OriginalMessage"]) == (status, '{"error":"so it is"}')
    assert "so it is" in reply.message
    assert (len(reply.sent), len(worker.requests)) == (1, 1)


def test_a_worker_that_dies(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """It may have begun, so it becomes a ModelError and is not sent again."""
    worker = stub([0.3, "close"])
    router = route(worker.url, strategy="session")
    reply = boto.invoke(router.url, CHAT)
    assert (reply.kind, len(reply.sent), len(worker.requests)) == ("ModelError", 1, 1)
    until(router.idle)


def test_a_full_fleet(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """boto3 itself retries: five attempts in all, three since 1.44."""
    worker = stub(answer(503, b"{}"))
    router = route(worker.url, strategy="session", limits={"queue": 0})
    reply = boto.invoke(router.url, CHAT)
    assert (reply.kind, reply.refusal) == ("ServiceUnavailable", 503)
    assert len(reply.sent) == (3 if boto.generation == "1.44" else 5)
    assert len({one["amz-sdk-invocation-id"] for one in reply.sent}) == 1
    assert len(worker.requests) == len(reply.sent)
    bare = httpx.post(f"{router.url}/invocations", json=CHAT)
    assert (bare.status_code, "retry-after" in bare.headers) == (503, True)


def test_a_full_worker_that_dies(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """It has said that it is full, so nothing has begun, and boto3 retries."""
    said = b"HTTP/1.1 503 Full\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"
    worker = stub([said, 0.05, "close"])
    router = route(worker.url, strategy="session", limits={"queue": 0})
    reply = boto.invoke(router.url, CHAT)
    assert (reply.kind, reply.refusal) == ("ServiceUnavailable", 503)
    assert len(worker.requests) == len(reply.sent) > 1


def test_a_full_queue(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """It becomes a ThrottlingException, after which boto3 waits and retries."""
    done: list[int] = []
    worker = stub([lambda: bool(done), *OK])
    router = route(worker.url, limits={"in_flight": 1, "queue": 0})
    first = boto.start(router.url, "invoke_endpoint", CHAT)
    until(lambda: len(worker.requests) == 1)
    reply = boto.invoke(router.url, CHAT)
    done.append(1)
    assert (reply.code, reply.refusal) == ("ThrottlingException", 429)
    assert len(reply.sent) >= 3
    assert boto.reply(first).good


def test_no_worker_at_all(boto: Boto, route: MakeRouter, dead_url: str) -> None:
    """It becomes a ServiceUnavailable error."""
    router = route({"url": dead_url, "models": ["m"]}, strategy="session")
    assert boto.invoke(router.url, CHAT).code == "ServiceUnavailable"


def test_async_is_refused_in_words(stub: MakeStub, route: MakeRouter) -> None:
    """Asynchronous invocations are another API, which needs a bucket."""
    router = route(stub().url, strategy="session")
    reply = httpx.post(f"{router.url}/endpoints/x/async-invocations", json={})
    assert reply.status_code == 400
    assert reply.headers["x-amzn-errortype"] == "ValidationError"
    assert "Asynchronous" in reply.json()["Message"]


class TestHeaders:
    """Headers that are passed on, and those that are not."""

    @pytest.mark.parametrize("path", ["invocations", "openai"])
    def test_workers_see_nothing_of_aws(
        self, boto: Boto, stub: MakeStub, route: MakeRouter, path: str
    ) -> None:
        """Workers get no session, signature or attributes."""
        worker = stub()
        router = route(worker.url, strategy="session")
        more = {"CustomAttributes": "c=1", "InferenceId": "i-1", "TargetVariant": "v-1"}
        if path == "invocations":
            start = boto.invoke(router.url, {"requestType": "NEW_SESSION"}).good
            key = start.output["NewSessionId"].partition(";")[0]
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
        head = worker.requests[-1].partition(b"\r\n\r\n")[0].lower()
        assert b"amz" not in head
        assert b"authorization" not in head
        assert b"x-session-id" not in head

    def test_what_the_caller_gave_comes_back(
        self, boto: Boto, stub: MakeStub, route: MakeRouter
    ) -> None:
        """Custom attributes and the variant are returned to the caller."""
        router = route(stub().url, strategy="session")
        reply = boto.invoke(router.url, CHAT, CustomAttributes="trace=7", TargetVariant="blue").good
        assert reply.output["CustomAttributes"] == "trace=7"
        assert reply.output["InvokedProductionVariant"] == "blue"
        assert boto.invoke(router.url, CHAT).good.output["InvokedProductionVariant"] == "AllTraffic"
        assert reply.headers["x-amzn-requestid"] == reply.headers["x-request-id"]

    def test_no_content_type(self, boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
        """boto3 does not send one by default; workers need one."""
        worker = stub()
        router = route(worker.url)
        reply = boto.invoke(router.url, CHAT).good
        assert "content-type" not in reply.sent[0]
        assert b"\r\ncontent-type: application/json\r\n" in worker.requests[-1].lower()

    def test_no_worker_is_asked_to_compress(self, stub: MakeStub, route: MakeRouter) -> None:
        """The router reads, frames and converts answers."""
        worker = stub()
        router = route(worker.url)
        paths = ("invocations", "invocations-response-stream", "openai/v1/chat/completions")
        for path in paths:
            url = f"{router.url}/endpoints/x/{path}"
            assert httpx.post(url, json=CHAT, headers={"accept-encoding": "gzip"}).is_success
        assert all(b"\r\naccept-encoding: identity\r\n" in one for one in worker.requests)
        assert not any(b"gzip" in one for one in worker.requests)

    def test_unsigned(self, boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
        """Unless signatures are required, none is needed."""
        router = route(stub().url)
        reply = boto.invoke(router.url, CHAT, options={"config": {"unsigned": True}}).good
        assert "authorization" not in reply.sent[0]


class TestSignatures:
    """`sagemaker.sigv4`: botocore computes the signature on both sides."""

    def test_only_the_right_secret_opens(
        self, boto: Boto, stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A wrong secret, an unknown key and no signature give 403, and no worker is asked."""
        monkeypatch.setenv("SECRET", "right")
        worker = stub()
        keys = [{"access_key": "AKIA1", "secret_key": "${SECRET}"}]
        router = route(worker.url, strategy="session", auth="none", sagemaker={"sigv4": keys})
        wrong: list[dict[str, Any]] = [
            {"keys": ["AKIA1", "wrong"]},
            {"keys": ["AKIA2", "right"]},
            {"config": {"unsigned": True}},
        ]
        for options in wrong:
            reply = boto.invoke(router.url, CHAT, options=options)
            assert (reply.refusal, len(reply.sent)) == (403, 1)
            assert reply.message
        assert worker.requests == []
        for more in ({}, {"CustomAttributes": "a  b"}, {"SessionId": "NEW_SESSION"}):
            assert boto.invoke(router.url, CHAT, options={"keys": ["AKIA1", "right"]}, **more).good

    def test_a_changed_body_is_found_out(
        self, stub: MakeStub, route: MakeRouter, boto: Boto, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The signature covers the body, and any SageMaker header has to be covered too."""
        monkeypatch.setenv("SECRET", "right")
        keys = [{"access_key": "AKIA1", "secret_key": "${SECRET}"}]
        router = route(stub().url, auth="none", sagemaker={"sigv4": keys})
        sent = boto.invoke(router.url, CHAT, options={"keys": ["AKIA1", "right"]}).good.sent[0]
        url = f"{router.url}/endpoints/llama/invocations"
        names = ("authorization", "x-amz-date", "amz-sdk-invocation-id", "amz-sdk-request")
        head = {name: sent[name] for name in names if name in sent}
        head |= {"user-agent": sent["user-agent"]}
        for added in (
            {"X-Amzn-SageMaker-Session-Id": "abc"},
            {"X-Amzn-SageMaker-Target-Model": "m"},
        ):
            reply = httpx.post(url, content=json.dumps(CHAT), headers=head | added)
            assert (reply.status_code, "cover" in reply.json()["message"]) == (403, True)
        same = httpx.post(url, content=json.dumps(CHAT), headers=head)
        other = httpx.post(url, content=json.dumps(CHAT) + " ", headers=head)
        assert (same.status_code, other.status_code) == (200, 403)


class TestPaths:
    """The forms of paths."""

    def test_an_alias_and_a_prefix(self, boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
        """The service's old name, and a prefix before all paths."""
        router = route(stub().url, sagemaker={"prefix": "/llm"})
        options = {"service": "runtime.sagemaker"}
        assert boto.invoke(f"{router.url}/llm", CHAT, options=options).good
        assert httpx.post(f"{router.url}/llm/invocations", json=CHAT).status_code == 200
        assert httpx.post(f"{router.url}/invocations", json=CHAT).status_code == 404

    def test_the_url_in_the_environment(
        self, boto: Boto, stub: MakeStub, route: MakeRouter
    ) -> None:
        """The variable with which AWS's own tools are configured."""
        router = route(stub().url)
        with Boto(boto.generation) as other:
            told = other.told(AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME=router.url)
            assert told.invoke(None, CHAT).good

    def test_the_container_s_own_paths(self, stub: MakeStub, route: MakeRouter) -> None:
        """The paths that SageMaker requires of a container."""
        router = route(stub().url)
        assert httpx.post(f"{router.url}/invocations", json=CHAT).content == JSON
        assert httpx.get(f"{router.url}/ping").status_code == 200
        assert httpx.post(f"{router.url}/ping").status_code == 200

    @pytest.mark.parametrize("name", ["a_b", "with/slash", "x" * 64, "other"])
    def test_unknown_endpoints(
        self, boto: Boto, stub: MakeStub, route: MakeRouter, name: str
    ) -> None:
        """Invalid names, and names that are not in the settings."""
        worker = stub()
        router = route(worker.url, sagemaker={"endpoints": ["llama"]})
        reply = boto.invoke(router.url, CHAT, EndpointName=name)
        assert (reply.code, reply.refusal, len(reply.sent)) == ("ValidationError", 400, 1)
        assert worker.requests == []

    def test_an_endpoint_stands_for_a_model(
        self, boto: Boto, stub: MakeStub, route: MakeRouter
    ) -> None:
        """It sets the model of requests that name none, and the worker sees it."""
        one, two = stub(model="one"), stub(model="two")
        endpoints = [{"name": "llama", "model": "two"}]
        router = route(one.url, two.url, sagemaker={"endpoints": endpoints})
        assert boto.invoke(router.url, CHAT).good
        assert b'"model":"two"' in two.requests[-1]
        assert boto.invoke(router.url, {**CHAT, "model": "one"}).good
        assert len(one.requests) == 1


class TestBodies:
    """How long bodies may be."""

    def test_the_limit_is_sagemaker_s(self, boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
        """6,291,456 bytes, and not one more."""
        router = route(stub().url)
        start = b'{"messages":[{"role":"user","content":"'
        end = b'"}]}'
        text = b"x" * (6_291_456 - len(start) - len(end))
        assert boto.invoke(router.url, start + text + end).good
        assert 400 <= boto.invoke(router.url, start + text + b"x" + end).refusal < 500

    def test_a_longer_one_is_refused_unread(self, stub: MakeStub, route: MakeRouter) -> None:
        """Its declared length is enough."""
        router = route(stub().url, sagemaker={"body": "1KiB"})
        with send(router.port, head("/invocations", 1025)) as client:
            reply = read_all(client)
        assert reply.startswith(b"HTTP/1.1 413 ")
        assert b"x-amzn-errortype: ValidationError" in reply

    @pytest.mark.parametrize(
        "body", [b"", b"[]", b"hello", b'{"inputs":[1]}', b'{"requestType":1}']
    )
    def test_what_is_no_invocation(
        self, boto: Boto, stub: MakeStub, route: MakeRouter, body: bytes
    ) -> None:
        """It is refused with a message."""
        worker = stub()
        router = route(worker.url, strategy="session")
        reply = boto.invoke(router.url, body)
        assert (reply.code, bool(reply.message)) == ("ValidationError", True)
        assert worker.requests == []


#: Request heads that are refused before they are fully parsed, and the status.
HEADS = {
    "a large field": (b"", b"host: x\r\nx: " + b"y" * 2000, 431),
    "many fields": (b"", b"host: x" + b"\r\ny: z" * 30, 431),
    "a long URL": (b"?" + b"y" * 600, b"host: x", 414),
    "no host": (b"", b"x: y", 400),
    "a coding": (b"", b"host: x\r\ntransfer-encoding: gzip", 400),
    "an expectation": (b"", b"host: x\r\nexpect: wonders", 417),
}


@pytest.mark.parametrize("path", ["/endpoints/llama/invocations", "/invocations", "/v1/models"])
@pytest.mark.parametrize("what", HEADS)
def test_a_head_that_is_refused(stub: MakeStub, route: MakeRouter, what: str, path: str) -> None:
    """The error has the form of the path's API, even if only the path was read."""
    query, fields, status = HEADS[what]
    bounds = {"url": "512B", "headers": "1KiB", "header_count": 20}
    router = route(stub().url, limits=bounds)
    target = path.encode() + query
    with send(router.port, b"POST %b HTTP/1.1\r\n%b\r\n\r\n" % (target, fields)) as client:
        reply = read_all(client)
    if path.startswith("/v1/"):
        assert b'\r\n\r\n{"error":{"message":' in reply
    else:
        assert reply.startswith(b"HTTP/1.1 %d " % status)
        assert b"\r\nx-amzn-errortype: ValidationError\r\n" in reply
        assert b'\r\n\r\n{"__type":"ValidationError"' in reply


def test_a_head_that_does_not_come(stub: MakeStub, route: MakeRouter) -> None:
    """The same for a request head that is too slow."""
    router = route(stub().url, clients={"header": "300ms"})
    with send(router.port, b"POST /endpoints/llama/invocations HTTP/1.1\r\nx: ") as client:
        reply = read_all(client)
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert b"\r\nx-amzn-errortype: ValidationError\r\n" in reply


def test_openai_s_own_paths(stub: MakeStub, route: MakeRouter) -> None:
    """Streams pass unchanged, `model` may be empty, and sessions work."""
    said = b'data: {"a":1}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    router = route(stub([head % len(said) + said]).url, strategy="session")
    for form in ("endpoints/x", "endpoints/x/inference-components/lora"):
        url = f"{router.url}/{form}/openai/v1/chat/completions"
        body = {**CHAT, "model": "", "stream": True}
        reply = httpx.post(url, json=body, headers={"X-Amzn-SageMaker-Session-Id": "NEW_SESSION"})
        assert reply.content == said
        key = reply.headers["x-amzn-sagemaker-new-session-id"].partition(";")[0]
        again = httpx.post(url, json=body, headers={"X-Amzn-SageMaker-Session-Id": key})
        assert again.headers["x-warmroute-session"].startswith("kept")
    refused = httpx.post(url, content=b"{")
    assert set(refused.json()) == {"error"}
