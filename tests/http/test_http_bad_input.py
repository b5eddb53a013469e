"""Bad requests get a clear error in OpenAI's format, and the router goes on serving."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from router.estimates import ANSWER_TOKENS
from tests.support import (
    OK,
    MakeRouter,
    MakeStub,
    Router,
    Stub,
    error_of,
    head,
    read_all,
    send,
    until,
)

CHAT = "/v1/chat/completions"
LIMIT = 65536
DEEP = b"[" * 100_000 + b"]" * 100_000
FORM = "/v1/audio/transcriptions"
MULTIPART = "multipart/form-data; boundary=xx"


@pytest.fixture(autouse=True)
def _still_open(worker: Stub, door: Router) -> Iterator[None]:
    """Check after every test that nothing is booked and the next request is served."""
    yield
    until(door.idle)
    assert door.http.post(CHAT, json={"model": "m", "messages": []}).status_code == 200
    assert door.worker().ready
    worker.requests.clear()


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
        b'{"model":"\\ud800"}',
        b"\xef\xbb\xbf{}",
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


def answer_to(door: Router, sent: bytes) -> bytes:
    """Send bytes; return all that the router answers before it closes the connection."""
    with send(door.port, sent) as client:
        return read_all(client)


@pytest.mark.parametrize("fields", [[], [b"expect: 100-continue"]], ids=["plain", "expect"])
def test_a_body_declared_too_large(worker: Stub, door: Router, fields: list[bytes]) -> None:
    """A declared length over the limit gets 413 from the head alone, without a 100 Continue."""
    reply = answer_to(door, head(CHAT, LIMIT + 1, *fields))
    assert reply.startswith(b"HTTP/1.1 413 ")
    error = json.loads(reply.partition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert str(LIMIT) in error["message"]
    assert worker.requests == []


def test_expect_is_answered_for_a_body_that_fits(door: Router) -> None:
    """`Expect` is answered with 100 Continue before the body is sent."""
    body = b'{"model":"m"}'
    with send(door.port, head(CHAT, len(body), b"expect: 100-continue")) as client:
        assert client.recv(100).startswith(b"HTTP/1.1 100 Continue")
        client.sendall(body)
        assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")


def test_a_body_that_grows_too_large(worker: Stub, door: Router) -> None:
    """A chunked body gets 413 once it exceeds the limit."""
    start = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
    piece = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    reply = answer_to(door, start + piece * 16 + b"1\r\nx\r\n")
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert worker.requests == []


def test_the_limit_itself_fits(worker: Stub, door: Router) -> None:
    """A body of exactly the limit passes, with a length or in chunks; one byte more does not."""
    body = b'{"model":"m","x":"%b"}' % (b"x" * (LIMIT - 20))
    assert len(body) == LIMIT
    assert door.http.post(CHAT, content=body).status_code == 200
    assert door.http.post(CHAT, content=iter([body[:1000], body[1000:]])).status_code == 200
    assert len(worker.requests) == 2
    assert door.http.post(CHAT, content=body + b" ").status_code == 413
    assert door.http.post(CHAT, content=iter([body, b" "])).status_code == 413


def test_an_upload_too_large_hears_why(door: Router) -> None:
    """A client that sends a too large body without waiting reads 413, not a connection error."""
    reply = door.http.post(CHAT, content=b"x" * (4 << 20))
    assert reply.status_code == 413
    error_of(reply)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1",
        "/v1/chat",
        CHAT + "/",
        "/V1/CHAT/COMPLETIONS",
        "/v1/chat/completions%00",
        "/v1/chat/completions%0d%0ax",
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
        "/collective_rpc",
        "/sleep",
        "/shutdown",
        "/simulator/fault",
        "/%ff",
        "/" + "x" * 5000,
    ],
    ids=lambda path: path[:30],
)
def test_a_path_that_is_not_served(worker: Stub, door: Router, path: str) -> None:
    """Unknown paths get 404 in OpenAI's format; vLLM's admin paths never reach a worker."""
    for method in ("GET", "POST"):
        reply = door.http.request(method, path, json={"model": "m"})
        assert reply.status_code == 404
        assert error_of(reply)["code"] == "unknown_url"
        assert reply.headers["x-request-id"]
        assert len(reply.content) < 1000
    assert worker.requests == []


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", CHAT),
        ("/v1" + CHAT, CHAT),
        (CHAT + "/", CHAT),
        ("/models", "/v1/models"),
        ("/v1/tokenize", "/tokenize"),
        ("/nothing", None),
        ("/", None),
    ],
)
def test_a_base_url_that_is_wrong(door: Router, path: str, meant: str | None) -> None:
    """A path with `/v1` missing or too much is a 404 that names the right one."""
    error = error_of(door.http.post(path, json={"model": "m"}))
    assert error["code"] == "unknown_url"
    assert error["message"].partition(" Did you mean ")[2] == (f"{meant!r}?" if meant else "")


def test_a_double_slash(worker: Stub, door: Router) -> None:
    """A path with a doubled slash is another path: 404."""
    body = b'{"model":"m"}'
    for path in ("/" + CHAT, "/v1//chat/completions"):
        reply = answer_to(door, head(path, len(body), b"connection: close") + body)
        assert reply.startswith(b"HTTP/1.1 404 ")
    assert worker.requests == []


def test_a_percent_encoded_path(worker: Stub, door: Router) -> None:
    """A percent-encoded path is decoded, and the worker gets it decoded."""
    assert door.http.post("/v1/%63hat/completions", json={"model": "m"}).status_code == 200
    assert worker.requests[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize(("path", "allowed"), [(CHAT, "POST"), (FORM, "POST"), ("/workers", "GET")])
def test_a_wrong_method(worker: Stub, door: Router, path: str, allowed: str, method: str) -> None:
    """A wrong method gets 405 that names the right one, also in `Allow`."""
    if method == allowed:
        assert door.http.request(method, path).status_code == 200
        return
    reply = door.http.request(method, path)
    assert reply.status_code == 405
    assert reply.headers["allow"] == allowed
    if method == "HEAD":
        assert reply.content == b""
    else:
        assert f"use {allowed}" in error_of(reply)["message"]
    assert worker.requests == []


ODD_MESSAGES: list[Any] = [
    None,
    7,
    "hello",
    {},
    [],
    [None],
    ["hello"],
    [[]],
    [{}],
    [{"role": "user"}],
    [{"content": "no role"}],
    [{"role": None, "content": "x"}],
    [{"role": 1, "content": "x"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": 7}],
    [{"role": "user", "content": {"a": 1}}],
    [{"role": "user", "content": []}],
    [{"role": "user", "content": [None, 1, "x", {}]}],
    [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ],
        }
    ],
    [{"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {}}]}],
    [{"role": "assistant", "tool_calls": 5}],
    [{"role": "user", "content": "x" * 20_000}, None],
]
ODD_PROMPTS: list[Any] = [
    None,
    7,
    1.5,
    True,
    {},
    [],
    [[]],
    [""],
    [None],
    [1, "a"],
    ["a", 1],
    [[1], "a"],
    [1, [2]],
    [1.5],
    [-1],
    [2**32],
    [2**64],
    [10**400],
    [[1, 2], [3]],
    [0] * 4000,
    "x" * 20_000,
]


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
@pytest.mark.parametrize("messages", ODD_MESSAGES, ids=lambda odd: json.dumps(odd)[:40])
def test_odd_messages_are_for_the_worker_to_judge(
    worker: Stub, door: Router, path: str, messages: Any
) -> None:
    """Messages that the router does not understand are relayed unchanged."""
    body = json.dumps({"model": "m", "messages": messages}).encode()
    assert door.http.post(path, content=body).status_code == 200
    assert worker.requests[0].endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/responses"])
@pytest.mark.parametrize("prompt", ODD_PROMPTS, ids=lambda odd: json.dumps(odd)[:40])
def test_odd_prompts_are_for_the_worker_to_judge(
    worker: Stub, door: Router, path: str, prompt: Any
) -> None:
    """Odd prompts are relayed unchanged: numbers, nested lists, huge and negative token ids."""
    body = json.dumps({"model": "m", "prompt": prompt, "input": prompt}).encode()
    assert door.http.post(path, content=body).status_code == 200
    assert worker.requests[0].endswith(b"\r\n\r\n" + body)


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
    assert reply.status_code == 200
    assert len(worker.requests) == 1
    assert 0 < booked[0] <= 2 * ANSWER_TOKENS


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
