"""Bad requests get a clear error in OpenAI's format, and the router goes on serving."""

import random

import pytest

from tests.support import (
    MakeRouter,
    MakeStub,
    Router,
    Stub,
    error_of,
)

CHAT = "/v1/chat/completions"
pytestmark = pytest.mark.usefixtures("still_open")
DEEP = b"[" * 100_000 + b"]" * 100_000
FORM = "/v1/audio/transcriptions"
MULTIPART = "multipart/form-data; boundary=xx"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b'{"model":"m","messages":[',
        b'{"model":"m"',
        b'{"model":"m"}}',
        b"\x00\x01\x02\xff" * 20,
        b'{"model":"\xff\xfe"}',
        b'{"model":"\\ud80"}',
        b"\xef\xbb\xbf{",
        b'{"n":-NaN}',
        b'{"n":Infinity1}',
        b'{"model":"m",}',
        b"{'model':'m'}",
        b'{"model":NaN}',
        b"[]",
        b"7",
        b'"m"',
        b"null",
        DEEP[:60_000],
        b'{"x":' + DEEP[70_000:130_000] + b"}",
        b"model=m&prompt=x",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_not_a_json_object(worker: Stub, door: Router, body: bytes) -> None:
    """A body that is not a JSON object gets 400 that says so; it does not reach a worker."""
    reply = door.http.post(CHAT, content=body)
    assert reply.status_code == 400
    error = error_of(reply)
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("The request body is not ")
    assert worker.requests == []


def test_deep_nesting(stub: MakeStub, route: MakeRouter) -> None:
    """Very deeply nested JSON gets 400 and does not crash the process."""
    router = route(stub().url)
    for body in (DEEP, b'{"model":"m","messages":' + DEEP + b"}", b'{"m":' + b'{"a":' * 99_999):
        assert router.http.post(CHAT, content=body).status_code == 400
    assert router.http.get("/health/live").status_code == 200


def test_without_a_model(worker: Stub, door: Router) -> None:
    """If there is only one model, a request without a model name means that one."""
    for body in ({}, {"model": None}, {"model": ""}):
        assert door.http.post(CHAT, json={**body, "messages": []}).status_code == 200
    assert len(worker.requests) == 3


def test_without_a_model_where_there_are_two(stub: MakeStub, route: MakeRouter) -> None:
    """If there are several models, a request without one gets 400 that names the field."""
    first, second = stub(model="a"), stub(model="b")
    router = route(first.url, second.url)
    for body in ({}, {"model": None}, {"model": ""}):
        reply = router.http.post(CHAT, json=body)
        assert reply.status_code == 400
        assert error_of(reply)["param"] == "model"
    assert first.requests == second.requests == []


@pytest.mark.parametrize("model", [1, 1.5, True, {}, [], ["m"], {"id": "m"}])
def test_a_model_that_is_no_name(worker: Stub, door: Router, model: object) -> None:
    """A model that is not a string gets 400 that names the field."""
    reply = door.http.post(CHAT, json={"model": model, "messages": []})
    assert reply.status_code == 400
    assert error_of(reply)["param"] == "model"
    assert worker.requests == []


def series(router: Router) -> set[str]:
    """The names and labels of all series in /metrics."""
    lines = router.http.get("/metrics").text.splitlines()
    return {line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")}


def test_unknown_models_make_no_series(worker: Stub, door: Router) -> None:
    """Unknown models get 404 and add nothing to the metrics."""
    door.http.post(CHAT, json={"model": "unknown-first"})
    before = series(door)
    chance = random.Random(1)
    names = ["unknown-" + chance.randbytes(8).hex() for _ in range(50)]
    for name in (*names, "unknown-" + "x" * 10_000, "m ", "M", "m\n", "unknown-é\u0000"):
        reply = door.http.post(CHAT, json={"model": name})
        assert reply.status_code == 404
        error = error_of(reply)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert len(error["message"]) < 300
    assert series(door) == before
    assert "unknown-" not in door.http.get("/metrics").text
    assert len(door.door.fleet._routes) <= 1
    assert worker.requests == []


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
        b'{"model":"m","messages":[{"role":"\xff","content":"x"}]}',
        b'{"model":"m","prompt":"\xff","input":"\xff"}',
        b'{"model":"m","\xff":1}',
        b'{"model":"m","messages":"\xc3"}',
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/v1/responses"])
def test_text_that_is_not_utf_8(door: Router, path: str, raw: bytes) -> None:
    """Invalid UTF-8 is relayed or gets 400; it never causes an error of the router."""
    assert door.http.post(path, content=raw).status_code in (200, 400)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("", b"x"),
        ("application/json", b'{"model":"m"}'),
        ("multipart/form-data", b"x"),
        (MULTIPART, b"garbage"),
        (MULTIPART, b"--xx\r\n\r\nm\r\n--xx--\r\n"),
        (MULTIPART, b"--xx\r\ncontent-disposition: form-data\r\n\r\nm\r\n--xx--\r\n"),
        (MULTIPART, b"--xx\r\ncontent disposition: form-data\r\n\r\nm\r\n--xx--\r\n"),
    ],
    ids=["untyped", "json", "no-boundary", "garbage", "no-head", "no-name", "bad-head"],
)
def test_a_bad_form(worker: Stub, door: Router, kind: str, body: bytes) -> None:
    """A bad multipart form gets 400 that says so."""
    reply = door.http.post(FORM, content=body, headers={"content-type": kind})
    assert reply.status_code == 400
    message = error_of(reply)["message"]
    assert "not a valid form" in message or "must be a form" in message
    assert worker.requests == []


def test_a_form_for_an_unknown_model(door: Router) -> None:
    """The model of a multipart form is read from its field `model`."""
    reply = door.http.post(FORM, data={"model": "none"}, files={"file": b"sound"})
    assert reply.status_code == 404
    assert error_of(reply)["code"] == "model_not_found"
    assert door.http.post(FORM, data={"model": "m"}, files={"file": b"x"}).status_code == 200
