"""Bodies that are bad, odd or too large: a clear error, or the worker judges."""

import json
import random
from typing import Any

import pytest

from router.prompt.prompts import ANSWER_TOKENS
from tests.support import OK, MakeRouter, MakeStub, Router, Stub, error_of, head, read_all, send

CHAT = "/v1/chat/completions"
FORM = "/v1/audio/transcriptions"
MULTIPART = "multipart/form-data; boundary=xx"
pytestmark = pytest.mark.usefixtures("still_open")
#: The limit of the router under test.
LIMIT = 65536
DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" ", b'{"model":"m","messages":[', b'{"model":"m"', b'{"model":"m"}}', b"[]", b"7"),
        *(b"\x00\x01\x02\xff" * 20, b'{"model":"\xff\xfe"}', b'{"model":"\\ud80"}', b"null"),
        *(b"\xef\xbb\xbf{", b'{"n":-NaN}', b'{"n":Infinity1}', b'{"model":"m",}', b"{'model':'m'}"),
        *(b'{"model":NaN}', b'"m"', DEEP[:60_000], b'{"x":' + DEEP[70_000:130_000] + b"}"),
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


def test_without_a_model(stub: MakeStub, route: MakeRouter) -> None:
    """A request without a model means the only one; of several it gets 400 that names the field."""
    first, second = stub(model="a"), stub(model="b")
    several, single = route(first.url, second.url), route(first.url)
    for body in ({}, {"model": None}, {"model": ""}):
        reply = several.http.post(CHAT, json=body)
        assert (reply.status_code, error_of(reply)["param"]) == (400, "model")
        assert single.http.post(CHAT, json=body).status_code == 200
    assert (len(first.requests), second.requests) == (3, [])


@pytest.mark.parametrize("model", [1, 1.5, True, {}, [], ["m"], {"id": "m"}])
def test_a_model_that_is_no_name(worker: Stub, door: Router, model: object) -> None:
    """A model that is not a string gets 400 that names the field."""
    reply = door.http.post(CHAT, json={"model": model, "messages": []})
    assert (reply.status_code, error_of(reply)["param"]) == (400, "model")
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
        error = error_of(reply)
        assert (reply.status_code, error["code"], error["param"]) == (
            *(404, "model_not_found"),
            "model",
        )
        assert len(error["message"]) < 300
    assert series(door) == before
    assert worker.requests == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
        b'{"model":"m","messages":[{"role":"\xff","content":"x"}]}',
        b'{"model":"m","prompt":"\xff","input":"\xff"}',
        *(b'{"model":"m","\xff":1}', b'{"model":"m","messages":"\xc3"}'),
    ],
)
def test_text_that_is_not_utf_8(door: Router, body: bytes) -> None:
    """Invalid UTF-8 is relayed or gets 400; it never causes an error of the router."""
    for path in (CHAT, "/v1/completions", "/v1/embeddings", "/v1/responses"):
        assert door.http.post(path, content=body).status_code in (200, 400)


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


def test_the_model_of_a_form(door: Router) -> None:
    """The model of a multipart form is read from its field `model`."""
    reply = door.http.post(FORM, data={"model": "none"}, files={"file": b"sound"})
    assert (reply.status_code, error_of(reply)["code"]) == (404, "model_not_found")
    assert door.http.post(FORM, data={"model": "m"}, files={"file": b"x"}).status_code == 200


def message(content: object) -> dict[str, object]:
    """A user's message."""
    return {"role": "user", "content": content}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
ODD_MESSAGES: list[Any] = [
    *(None, 7, "hello", {}, [], [None], ["hello"], [[]], [{}], [{"role": "user"}]),
    *([{"content": "no role"}], [{"role": None, "content": "x"}], [{"role": 1, "content": "x"}]),
    *([message(None)], [message(7)], [message({"a": 1})], [message([])]),
    [message([None, 1, "x", {}])],
    [message([{"type": "text", "text": "What is this?"}, IMAGE])],
    [{"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {}}]}],
    *([{"role": "assistant", "tool_calls": 5}], [message("x" * 20_000), None]),
]
ODD_PROMPTS: list[Any] = [
    *(None, 7, 1.5, True, {}, [], [[]], [""], [None], [1, "a"], ["a", 1], [[1], "a"], [1, [2]]),
    *([1.5], [-1], [2**32], [2**64], [10**400], [[1, 2], [3]], [0] * 4000, "x" * 20_000),
]


@pytest.mark.parametrize("odd", [*ODD_MESSAGES, *ODD_PROMPTS], ids=lambda odd: json.dumps(odd)[:40])
def test_odd_prompts_are_for_the_worker_to_judge(worker: Stub, door: Router, odd: Any) -> None:
    """What the router does not understand is relayed unchanged."""
    body = json.dumps({"model": "m", "messages": odd, "prompt": odd, "input": odd}).encode()
    for path in (CHAT, "/v1/messages", "/v1/completions", "/v1/embeddings", "/v1/responses"):
        assert door.http.post(path, content=body).status_code == 200
        assert worker.requests[-1].endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "stream", "cache_salt"])
@pytest.mark.parametrize("value", [-1, 0, 2**31, 2**63, 10**30, 1.5, "7", True, None, [], {}])
def test_odd_fields_are_for_the_worker_to_judge(
    worker: Stub, door: Router, monkeypatch: pytest.MonkeyPatch, field: str, value: object
) -> None:
    """Odd values of these fields are relayed; no more than a usual answer is booked for them."""
    booked = []

    def note() -> bool:
        booked.append(door.worker().load.kv_tokens)
        return True

    monkeypatch.setattr(worker, "script", [note, *OK])
    reply = door.http.post(CHAT, json={"model": "m", "messages": [], field: value})
    assert (reply.status_code, len(worker.requests)) == (200, 1)
    assert 0 < booked[0] <= 2 * ANSWER_TOKENS


def test_too_large_by_its_head(worker: Stub, door: Router) -> None:
    """A declared length over the limit gets 413 that names it, in one read with the head."""
    with send(door.port, head(CHAT, LIMIT + 1, b"expect: 100-continue")) as client:
        reply = read_all(client)
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert str(LIMIT) in json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert worker.requests == []


def test_an_upload_too_large_hears_why(door: Router) -> None:
    """A client that sends a too large body without waiting reads 413, not a connection error."""
    assert door.http.post(CHAT, content=b"x" * (4 << 20)).status_code == 413
    assert door.http.post(CHAT, content=iter([b"x" * LIMIT, b" "])).status_code == 413
