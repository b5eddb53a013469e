"""A worker gets what Python's `json` and pydantic take, and limits see what it sees."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from tests.support import MakeRouter, MakeStub, Router, Stub, error_of

CHAT = "/v1/chat/completions"
REST = '"model":"m","messages":[{"role":"user","content":"hi"}]'
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "x"}}
pytestmark = pytest.mark.usefixtures("still_open")

BODIES = {
    "mark": b"\xef\xbb\xbf{%b}",
    "mark and blanks": b"\xef\xbb\xbf \r\n\t{%b}\n",
    "half an emoji": rb'{%b,"user":"x\ud83d"}',
    "the other half": rb'{%b,"user":"\ude00x"}',
    "halves in the wrong order": rb'{%b,"user":"\ude00\ud83d"}',
    "half in UTF-8": b'{%b,"user":"\xed\xa0\xbd"}',
    "half in a name": rb'{%b,"\udc00":1}',
    "half in a message": rb'{%b,"messages":[{"role":"user","content":"\ud83d"}]}',
    "half in a role": rb'{%b,"messages":[{"role":"\ud83d","content":"x"}]}',
    "half in UTF-8 in a message": b'{%b,"messages":[{"role":"user","content":"\xed\xb0\x80"}]}',
    "half in a key": rb'{%b,"prompt_cache_key":"\ud83d","cache_salt":"\ud83d"}',
    "half in UTF-8 in a key": b'{%b,"prompt_cache_key":"\xed\xa0\xbd","cache_salt":"\xed\xa0\xbd"}',
    "half in a tool": rb'{%b,"tools":[{"type":"function","function":{"name":"\ud83d"}}]}',
    "not a number": b'{%b,"temperature":NaN}',
    "infinity": b'{%b,"logit_bias":{"1":-Infinity,"2":[Infinity]}}',
    "beyond all floats": b'{%b,"temperature":1e999,"seed":-1E+999}',
    "a long number": b'{%b,"seed":' + b"9" * 400 + b"}",
    "a number twice": b'{%b,"n":[1],"n":1}',
    "a model twice": b'{"model":1,"model":["a"],%b}',
    "messages twice": b'{"messages":7,%b}',
    "an escaped name": rb'{"mod\u0065l":"x",%b}',
    "numbers as texts": b'{%b,"n":"1","max_tokens":" 7 ","stream":"false"}',
    "numbers with a point": b'{%b,"n":1.0,"max_tokens":1e2,"max_completion_tokens":-0}',
    "a flag as a number": b'{%b,"stream":0,"echo":1.0}',
    "all at once": b'\xef\xbb\xbf{%b,"user":"\\ud83d","x":NaN,"n":[],"n":"1"}',
    "nested": b'{%b,"x":' + b"[" * 900 + b"]" * 900 + b"}",
    "long": b'\xef\xbb\xbf{%b,"user":"\\ude00","x":NaN,"y":"' + b'\\"NaN, ' * 7000 + b'"}',
}


@pytest.fixture(scope="module", params=["roundrobin", "prefixaware", "session"])
def reader(request: pytest.FixtureRequest, worker: Stub) -> Iterator[Router]:
    """Routers with strategies that read prompts, or fields, or nothing."""
    settings = {"strategy": request.param, "session": {"field": "user"}}
    with ExitStack() as stack:
        made = Router({"workers": [worker.url], **settings})
        stack.callback(made.stop)
        yield made


@pytest.mark.parametrize("name", BODIES)
def test_what_engines_take(worker: Stub, reader: Router, name: str) -> None:
    """It reaches the worker byte for byte."""
    body = BODIES[name].replace(b"%b", REST.encode())
    assert json.loads(body)["model"] == "m"
    worker.requests.clear()
    for path in (CHAT, "/invocations", "/endpoints/x/openai" + CHAT):
        reply = reader.http.post(path, content=body)
        assert (reply.status_code, path) == (200, path)
        assert worker.requests[-1].partition(b"\r\n\r\n")[2] == body
    assert len(worker.requests) == 3
    assert reader.http.post("/explain", content=body).status_code == 200


def test_a_text_for_a_container(worker: Stub, route: MakeRouter) -> None:
    """What AWS's clients call `inputs` keeps half an emoji, and so does what a container gets."""
    body = b'\xef\xbb\xbf{"model":"m","x":"\xee\x80\xbd","inputs":"\\ud83d \\"a\\"\xee\x80\xbd"}'
    router = route(worker.url)
    assert router.http.post("/invocations", content=body).status_code == 200
    made = json.loads(worker.requests[-1].partition(b"\r\n\r\n")[2])
    assert made == {"model": "m", "prompt": '\ud83d "a"\ue03d'}
    container = route({"url": worker.url, "stateful": True}, strategy="session")
    body = b'{%b,"user":"\\ud83d","x":NaN}' % REST.encode()
    assert container.http.post("/invocations", content=body).status_code == 200
    assert worker.requests[-1].partition(b"\r\n\r\n")[2] == body


@pytest.mark.parametrize("path", [CHAT, "/invocations"])
def test_other_encodings(worker: Stub, door: Router, path: str) -> None:
    """`json.loads` finds out about them; the worker gets the same in UTF-8."""
    text = f'{{{REST},"user":"é\\ud83d😀"}}'
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"):
        assert door.http.post(path, content=text.encode(encoding)).status_code == 200
        assert json.loads(worker.requests[-1].partition(b"\r\n\r\n")[2]) == json.loads(text)


@pytest.mark.parametrize(
    "body",
    [
        *(b"\xef\xbb\xbf", b"\xef\xbb\xbf\xef\xbb\xbf{}", b'{"a":nan}', b'{"a":+Infinity}'),
        *(b'{"a":NaN1}', b'{"a":-NaN}', b"{NaN:1}", b'{"a":"\\ud8"}', b"{'a':1}", b'{"a":\xff}'),
        *(b'{"model":"\xff"}', '{"a":'.encode("utf-16"), '{"a":1}'.encode("utf-16")[:-1]),
        *(b"\xef\xbb\xbf[]", b'{"model":NaN}', b'{"model":"m","model":1}', b'{"a":"\x01\\ud83d"}'),
        b'{"a":[%b]}' % b",".join([b"NaN"] * 70_000)[:60_000],
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/invocations", "/explain"])
def test_what_engines_refuse(worker: Stub, door: Router, path: str, body: bytes) -> None:
    """It is a 400 that says so, and reaches no worker."""
    worker.requests.clear()
    reply = door.http.post(path, content=body)
    assert (reply.status_code, worker.requests) == (400, [])
    if path == CHAT:
        assert error_of(reply)["message"].startswith("The request body is not ")


def twice(role: str) -> str:
    """A message whose role is a text only the second time, with too many images."""
    return f'{{"role":{role},"role":"user","content":{json.dumps([IMAGE] * 3)}}}'


@pytest.mark.parametrize(
    ("field", "rest"),
    [
        ("n", '"n":"1_000"'),
        ("n", '"n":" +1000.0 "'),
        ("n", '"n":1e3'),
        ("n", '"n":1,"\\u006e":1000'),
        ("n", '"n":1000,"x":NaN,"user":"\\ud83d"'),
        ("max_tokens", '"max_tokens":1,"max_tokens":"1e9"'),
        ("messages", f'"messages":[{twice("7")}]'),
        ("messages", f'"messages":[{twice("[]")},7]'),
        ("messages", f'"x":-Infinity,"messages":[{twice("NaN")}]'),
        ("messages", f'"messages":"\\ud83d","messages":[{twice("null")}]'),
    ],
)
def test_limits_see_what_the_worker_sees(
    stub: MakeStub, route: MakeRouter, field: str, rest: str
) -> None:
    """However a number, a flag or a message is spelled."""
    worker = stub()
    router = route(worker.url, limits={"n": 9, "max_tokens": 99, "images": 2})
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32-be"):
        body = f'{{"model":"m",{rest}}}'.encode(encoding)
        json.loads(body)
        reply = router.http.post(CHAT, content=body)
        assert (reply.status_code, error_of(reply)["param"]) == (400, field)
    assert worker.requests == []


@pytest.mark.parametrize("odd", ["\\ud83d", "x", "\udc00"])
@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf"])
def test_such_a_prompt_is_known_again(
    stub: MakeStub, route: MakeRouter, odd: str, before: bytes
) -> None:
    """A conversation that holds half an emoji goes on where it is cached."""
    router = route(stub().url, stub().url, strategy="prefixaware")
    told = '{"role":"user","content":"%s"}' % (f"Some words {odd}. " * 400)
    body = before + f'{{"model":"m","messages":[{told}]}}'.encode("utf-8", "surrogatepass")
    first = router.http.post(CHAT, content=body).headers
    for _ in range(3):
        again = router.http.post(CHAT, content=body).headers
        assert again["x-warmroute-worker"] == first["x-warmroute-worker"]
        assert "held=0;" not in again["x-warmroute-decision"]
    other = body.replace(b"Some", b"Same").replace(b"\\ud83d", b"\\ud83e")
    assert "held=0;" in router.http.post(CHAT, content=other).headers["x-warmroute-decision"]


def test_separate_caches(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The salt of a key is added to any body, and wins over every other."""
    monkeypatch.setenv("KEY", "sk-0123456789abcdef")
    keys = [{"name": "a", "key": "${KEY}"}]
    worker = stub()
    router = route(worker.url, auth={"keys": keys, "separate_caches": True})
    salts = set()
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        for mine in ("", ',"cache_salt":"\\ud83d"', ',"cache_salt":"\\ud83e"'):
            body = f'{{{REST}{mine},"x":NaN}}'.encode(encoding)
            fields = {"authorization": "Bearer sk-0123456789abcdef"}
            assert router.http.post(CHAT, content=body, headers=fields).status_code == 200
            salts.add(json.loads(worker.requests[-1].partition(b"\r\n\r\n")[2])["cache_salt"])
    assert len(salts) == 3


@pytest.mark.parametrize("stream", ["true", '"true"', '"ON"', "1", "1.0", '"y"'])
def test_a_stream_however_it_is_asked_for(stub: MakeStub, route: MakeRouter, stream: str) -> None:
    """Comments keep it open."""
    waits = [False]
    events = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: [DONE]\n\n"
    router = route(stub([lambda: waits[0], events, "close"]).url, timeouts={"comment": "20ms"})
    body = f'{{{REST},"stream":{stream}}}'
    with router.http.stream("POST", CHAT, content=body) as reply, suppress(StopIteration):
        pieces = reply.iter_raw()
        assert next(pieces).startswith(b":")
        waits[0] = True
        assert b"".join(pieces).endswith(b"data: [DONE]\n\n")
