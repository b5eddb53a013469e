"""SageMaker's paths: endpoints, what is passed on to workers, and signatures."""

import json
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from router.api.error_shapes import Surface, surface_of
from tests.support import MakeRouter, MakeStub, error_of, head, read_all, send

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


KINDS = "x-amzn-errortype"


COMPONENT, TARGET = "X-Amzn-SageMaker-Inference-Component", "X-Amzn-SageMaker-Target-Model"


KEY = {"access_key": "AKIA1", "secret_key": "${SECRET}"}


@pytest.mark.parametrize("word", [[], {}, 1, "NEW", True])
def test_a_word_on_a_session_is_a_known_text(
    stub: MakeStub, route: MakeRouter, word: object
) -> None:
    """Any other value is refused with an error that names the field."""
    router = route(stub().url, strategy="session")
    reply = router.http.post("/invocations", json={**CHAT, "requestType": word})
    assert (reply.status_code, reply.headers[KINDS]) == (400, "ValidationError")
    assert "requestType" in reply.text


@pytest.mark.parametrize("key", ["AWS4-HMAC-SHA256 Credential=A/b", "Bearer aHR0cHM6Ly9zdHM="])
def test_credentials_for_aws_stay_here(stub: MakeStub, route: MakeRouter, key: str) -> None:
    """AWS credentials are never passed on below an endpoint; under `/v1` a worker's own key is."""
    worker = stub()
    router = route(worker.url)
    fields = {"authorization": key}
    for path, passes in (
        ("/endpoints/x/openai/v1/chat/completions", False),
        ("/v1/chat/completions", True),
    ):
        assert router.http.post(path, json=CHAT, headers=fields).status_code == 200
        assert (b"\r\nauthorization:" in worker.requests[-1].lower()) is passes


def test_whose_errors_a_path_has() -> None:
    """An endpoint, or a prefix of the path, may be called `openai`."""
    assert surface_of("/endpoints/openai/invocations") is Surface.AWS
    assert surface_of("/openai/endpoints/a/invocations-response-stream") is Surface.AWS
    assert surface_of("/invocations") is Surface.AWS
    assert surface_of("/endpoints/x/openai/v1/chat/completions") is Surface.OPENAI
    assert surface_of("/endpoints/x/openai/v1/messages") is Surface.ANTHROPIC
    assert surface_of("/llm/endpoints/x/inference-components/y/openai/v1/models") is Surface.OPENAI
    assert surface_of("/v1/chat/completions") is Surface.OPENAI


def test_methods_of_an_endpoint_s_openai_paths(stub: MakeStub, route: MakeRouter) -> None:
    """The same methods are allowed as under `/v1`."""
    worker = stub()
    router = route(worker.url)
    base = "/endpoints/x/openai/v1"
    for method in ("DELETE", "PUT", "GET"):
        assert router.http.request(method, f"{base}/chat/completions").status_code == 405
    assert router.http.post(f"{base}/models").status_code == 405
    assert router.http.get(f"{base}/models").json()["data"][0]["id"] == "m"
    assert worker.requests == []


def test_components_and_target_models(stub: MakeStub, route: MakeRouter) -> None:
    """A component is a model or a listed name; unknown ones are refused."""
    one, two = stub(model="one"), stub(model="two")
    endpoints = [{"name": "x", "model": "one"}, {"name": "part", "model": "two"}]
    router = route(one.url, two.url, sagemaker={"endpoints": endpoints})
    for name, status in (("two", 200), ("part", 200), ("three", 400)):
        fields = {"X-Amzn-SageMaker-Inference-Component": name}
        reply = router.http.post("/endpoints/x/invocations", json=CHAT, headers=fields)
        assert reply.status_code == status
    assert (len(one.requests), len(two.requests)) == (0, 2)
    for target, status in (("two", 200), ("other.tar.gz", 400)):
        fields = {"X-Amzn-SageMaker-Target-Model": target}
        reply = router.http.post("/endpoints/x/invocations", json=CHAT, headers=fields)
        assert reply.status_code == status
    assert (len(one.requests), len(two.requests)) == (0, 3)


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        ("X", {}, "Endpoint X not found. Did you mean 'x'?"),
        ("other", {}, "Endpoint other not found."),
        ("x", {COMPONENT: "Part"}, "Inference component Part not found. Did you mean 'part'?"),
        ("x", {COMPONENT: "one"}, "Inference component one not found. Did you mean 'org/One'?"),
        ("x", {COMPONENT: "three"}, "Inference component three not found."),
        ("x", {TARGET: "ONE"}, "The model 'ONE' does not exist. Did you mean 'org/One'?"),
        ("x", {TARGET: "three"}, "The model 'three' does not exist."),
    ],
)
def test_what_was_probably_meant(
    stub: MakeStub, route: MakeRouter, path: str, fields: dict[str, str], message: str
) -> None:
    """A name that differs in case, or a model that differs by its organization."""
    endpoints = [{"name": "x", "model": "two"}, {"name": "part", "model": "two"}]
    urls = [stub(model=model).url for model in ("org/One", "two")]
    router = route(*urls, sagemaker={"endpoints": endpoints})
    reply = router.http.post(f"/endpoints/{path}/invocations", json=CHAT, headers=fields)
    assert (reply.status_code, reply.json()["Message"]) == (400, message)
    reply = router.http.get(f"/endpoints/{path}/openai/v1/models", headers=fields)
    assert error_of(reply)["message"] == message


class TestSignatures:
    """Requests signed as `sagemaker.sigv4` demands."""

    def test_models_are_for_those_who_sign(
        self, stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Knowing an access key is not enough, and arbitrary bytes are just a wrong signature."""
        monkeypatch.setenv("SECRET", "right")
        router = route(stub().url, auth="none", sagemaker={"sigv4": [KEY]})
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ").encode()
        scheme = b"authorization: AWS4-HMAC-SHA256 Credential=AKIA1/d/r/sagemaker/aws4_request, "
        signed = b"SignedHeaders=host;x-amz-date, Signature="
        for signature in (b"0" * 64, b"\xe9" * 64):
            fields = (scheme + signed + signature, b"x-amz-date: " + now, b"connection: close")
            with send(router.port, head("/endpoints/x/invocations", 2, *fields) + b"{}") as client:
                assert read_all(client).startswith(b"HTTP/1.1 403 ")
            asked = head("/endpoints/x/openai/v1/models", 0, *fields).replace(b"POST", b"GET", 1)
            with send(router.port, asked) as client:
                assert read_all(client).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("added", ["x-amz-content-sha256", "x-amzn-sagemaker-prefix-aware-id"])
def test_what_counts_is_there_once(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch, added: str
) -> None:
    """A copy of a signed field is refused if it stands before the signed one.

    It would be read first: with the hash of another body, that body would pass as the signed one.
    """
    monkeypatch.setenv("SECRET", "right")
    worker = stub()
    router = route(worker.url, auth="none", sagemaker={"sigv4": [KEY]})
    body, other = json.dumps(CHAT).encode(), json.dumps({**CHAT, "max_tokens": 3}).encode()
    request: Any = AWSRequest(method="POST", url=f"{router.url}/endpoints/x/invocations", data=body)
    request.headers["host"] = f"127.0.0.1:{router.port}"
    request.headers["x-amz-content-sha256"] = sha256(body).hexdigest()
    request.headers["x-amzn-sagemaker-prefix-aware-id"] = "one"
    SigV4Auth(Credentials("AKIA1", "right"), "sagemaker", "r").add_auth(request)
    fields = [(name.lower(), str(value)) for name, value in request.headers.items()]
    fields.append(("connection", "close"))
    exchanged, before = body, (added, "other")
    if added == "x-amz-content-sha256":
        exchanged, before = other, (added, sha256(other).hexdigest())
    for sent, lines, status in ((body, fields, b"200"), (exchanged, [before, *fields], b"403")):
        text = [f"{name}: {value}".encode() for name, value in lines]
        asked = b"POST /endpoints/x/invocations HTTP/1.1\r\n" + b"\r\n".join(text)
        asked += b"\r\ncontent-length: %d\r\n\r\n" % len(sent) + sent
        with send(router.port, asked) as client:
            answer = read_all(client)
        assert answer.split(b" ")[1] == status, answer
    assert len(worker.requests) == 1
