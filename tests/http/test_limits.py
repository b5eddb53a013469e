"""Limits of one request: up to a limit it is relayed unchanged, beyond it is refused."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.api.endpoints import ENDPOINTS
from router.api.errors import BadRequest
from router.api.request import parse
from router.proxy.limits import Limits
from router.settings.server import LimitSettings
from tests.support import MakeRouter, MakeStub, Router, Stub, error_of, read_all, send

CHAT, RESPONSES, CLAUDE = "/v1/chat/completions", "/v1/responses", "/v1/messages"
FORM = "/v1/audio/transcriptions"
LIMITS = {
    "messages": 5,
    "images": 2,
    "n": 4,
    "best_of": 8,
    "max_tokens": 100,
    "body": "96KiB",
    "url": "200B",
    "headers": "1KiB",
    "header_count": 20,
}


@pytest.fixture(scope="module", params=["roundrobin", "prefixaware"])
def tight(request: pytest.FixtureRequest, worker: Stub) -> Iterator[Router]:
    """A router with low limits, with strategies that do and do not read prompts."""
    with ExitStack() as stack:
        settings = {"workers": [worker.url], "limits": LIMITS, "strategy": request.param}
        made = Router(settings)
        stack.callback(made.stop)
        yield made
        assert made.idle()


def refused(door: Router, path: str, body: bytes | dict[str, Any]) -> str | None:
    """Send a body; return the field that exceeds its limit, or None if it was answered 200."""
    raw = body if isinstance(body, bytes) else json.dumps({"model": "m", **body}).encode()
    reply = door.http.post(path, content=raw)
    if reply.status_code == 200:
        return None
    error = error_of(reply)
    assert (reply.status_code, error["type"]) == (400, "invalid_request_error")
    assert re.search("limit.* [0-9]+|[0-9]+.* limit", error["message"])
    return str(error["param"])


@pytest.mark.parametrize("field", ["n", "best_of", "max_tokens"])
def test_numbers(worker: Stub, tight: Router, field: str) -> None:
    """The limit itself passes; more does not, in any spelling that vLLM accepts."""
    limit = LIMITS[field]
    assert isinstance(limit, int)
    for value in (limit, 1, 0, -5, float(limit), str(limit), f" {limit} ", True, None):
        assert refused(tight, CHAT, {field: value}) is None
    before = len(worker.requests)
    over = limit + 1
    for much in (over, 2**31, 2**63, 10**400, limit + 0.5, float(over), 1e300, f" {over}", "1_000"):
        assert refused(tight, CHAT, {field: much}) == field
    for raw in (b"1e3", b'"1e3"', b'"+101"', b"1" * 400):
        assert refused(tight, CHAT, b'{"model":"m","%b":%b}' % (field.encode(), raw)) == field
    assert len(worker.requests) == before


def test_what_is_no_number_is_for_the_worker_to_judge(tight: Router) -> None:
    """A value that is not a number is relayed."""
    odd: object
    for odd in ("x", "", "7x", "nan", [], [1000], {}, {"a": 1000}):
        assert refused(tight, CHAT, dict.fromkeys(("n", "best_of", "max_tokens"), odd)) is None


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_every_name_of_the_answer_s_length(tight: Router, field: str) -> None:
    """The limit on tokens applies to each API's name for it."""
    for path in (CHAT, RESPONSES, CLAUDE, "/v1/completions"):
        assert refused(tight, path, {field: 100}) is None
        assert refused(tight, path, {field: 101}) == field


def test_the_defaults(stub: MakeStub, route: MakeRouter) -> None:
    """By default `max_tokens` has no limit; the other limits have theirs. `images: 0`: none."""
    router, without = route(stub().url), route(stub().url, limits={"images": 0})
    for body, status in (
        ({"max_tokens": 10**9, "n": 128, "best_of": 128}, 200),
        ({"n": 129}, 400),
        ({"best_of": 129}, 400),
        ({"messages": [{}] * 4096}, 200),
        ({"messages": [{}] * 4097}, 400),
        ({"messages": [{"content": [IMAGE] * 256}]}, 200),
        ({"messages": [{"content": [IMAGE] * 257}]}, 400),
    ):
        assert router.http.post(CHAT, json={"model": "m", **body}).status_code == status
    for part, status in ((TEXT, 200), (IMAGE, 400)):
        reply = without.http.post(CHAT, json={"messages": [{"content": [TEXT, part]}]})
        assert reply.status_code == status


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b'{"model":"m","n":1,"n":5}', "n"),
        (b'{"model":"m","n":5,"n":1}', None),
        (b'{"model":"m","\\u006e":5}', "n"),
        (b'{"model":"m","N":5,"n ":5," n":5}', None),
        (b'{"model":"m","x":{"n":5}}', None),
        (b'{"model":"m","messages":"n\\":5,"}', None),
        (b'{"model":"m",\n\t"n"\r\n:\t 5 }', "n"),
    ],
)
def test_how_it_is_written_does_not_matter(tight: Router, raw: bytes, field: str | None) -> None:
    """If a field comes twice the last one counts, as in vLLM; escapes and spaces hide nothing."""
    assert refused(tight, CHAT, raw) == field


def test_forms(worker: Stub, tight: Router) -> None:
    """Numbers in multipart forms have the same limits; of a repeated field the last counts."""

    def send_form(fields: list[tuple[str, str]]) -> tuple[int, str | None]:
        files = [(name, (None, value)) for name, value in [("model", "m"), *fields]]
        reply = tight.http.post(FORM, files=[*files, ("file", ("a.wav", b"sound"))])
        return reply.status_code, None if reply.status_code == 200 else error_of(reply)["param"]

    before = len(worker.requests)
    assert send_form([("max_completion_tokens", "101")]) == (400, "max_completion_tokens")
    assert send_form([("n", "1"), ("n", "5")]) == (400, "n")
    assert len(worker.requests) == before
    assert send_form([("n", "5"), ("n", "1")]) == (200, None)
    assert send_form([("n", "4"), ("best_of", "x"), ("other", "1000")]) == (200, None)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        *((CHAT, "messages"), (RESPONSES, "input")),
        *((path, "messages") for path in (CLAUDE, "/v1/embeddings", "/tokenize", "/pooling")),
    ],
)
def test_messages(tight: Router, path: str, field: str) -> None:
    """Messages are counted on every endpoint that takes them, whatever they are and contain."""
    for entry in ({}, {"role": "user", "content": "x"}, 0, "", None, [], [1] * 6, {"a": [1] * 9}):
        assert refused(tight, path, {field: [entry] * 5}) is None
        body = {"model": "m", field: [entry] * 6}
        spaced = json.dumps(body, indent=4, separators=(" ,\n", " : ")).encode()
        assert refused(tight, path, spaced) == refused(tight, path, body) == field


def test_inputs_that_are_no_messages(tight: Router) -> None:
    """Texts and token ids do not count as messages."""
    assert refused(tight, "/v1/embeddings", {"input": ["text"] * 100}) is None
    assert refused(tight, "/v1/completions", {"prompt": [1] * 1000}) is None
    assert refused(tight, RESPONSES, {"input": "[{},{},{},{},{},{},{}]"}) is None


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TEXT = {"type": "text", "text": "What is this? [{}] {}"}
IMAGES: list[Any] = [
    IMAGE,
    {"type": "input_image", "image_url": "https://a"},
    {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
    {"type": "input_audio", "input_audio": {"data": "AAAA"}},
    {"type": "video_url", "video_url": {"url": "https://a"}},
    {"type": "whatever comes next"},
    {"image_url": "https://a"},
    {"type": None, "image_url": "https://a"},
    {"type": ["text"], "image_url": "https://a"},
    {"type": "text", "text": "x", "image_url": "https://a", "uuid": "1"},
]


def test_images(tight: Router) -> None:
    """Everything that vLLM treats as media counts, over all messages and amid any text."""
    for image in IMAGES:
        apart = [{"content": [TEXT, image]}, {"content": "text"}, {"content": [image, TEXT]}]
        assert refused(tight, CHAT, {"messages": apart}) is None
        assert refused(tight, CHAT, {"messages": [*apart, {"content": [image]}]}) == "messages"
        assert refused(tight, CHAT, {"messages": [{"content": [image] * 3}]}) == "messages"


def test_images_in_what_tools_return(tight: Router) -> None:
    """Images in tool results count too, in Anthropic's API and in OpenAI's Responses API."""
    for count, field in ((2, None), (3, "messages")):
        result = {"type": "tool_result", "content": [TEXT, *[{"type": "image"}] * count]}
        assert refused(tight, CLAUDE, {"messages": [{"content": [result]}]}) == field
    for count, field in ((2, None), (3, "input")):
        output = [{"type": "input_image"}] * count
        call = {"type": "function_call_output", "output": output}
        assert refused(tight, RESPONSES, {"input": [{"content": "x"}, call]}) == field


SCORED = [
    *(("/v1/rerank", "query", field) for field in ("query", "documents")),
    *(("/rerank", "query", field) for field in ("query", "documents")),
    *(("/v1/score", one, other) for one, other in (("data_1", "data_2"), ("queries", "items"))),
    *(("/score", one, other) for one, other in (("text_2", "text_1"), ("documents", "queries"))),
]


@pytest.mark.parametrize(("path", "other", "field"), SCORED)
def test_images_to_be_scored(tight: Router, path: str, other: str, field: str) -> None:
    """Queries and documents may be texts, parts, or a list of both; images in all of them count."""
    for count, wanted in ((2, None), (3, field)):
        several = ["text {", {"content": "text"}, *[{"content": [TEXT, IMAGE]}] * count]
        for scored in (several, {"content": [TEXT, *[IMAGE] * count]}):
            assert refused(tight, path, {other: "text", field: scored}) == wanted
    if other != field:
        one, two = {"content": [IMAGE]}, {"content": [IMAGE] * 2}
        assert refused(tight, path, {other: one, field: two}) in {other, field}
        assert refused(tight, path, {other: "text", field: [""] * 10_000}) is None


def test_words_are_no_images(tight: Router) -> None:
    """Text parts do not count as images, even if their text looks like JSON."""
    for kind in ("text", "input_text", "output_text", "reasoning", "thinking", "tool_use"):
        text = '{"type":"image_url"},[{' * 9
        part = {"type": kind, "text": text, "input": [{"type": "image"}] * 9}
        assert refused(tight, CHAT, {"messages": [{"content": [part] * 50}]}) is None


@pytest.mark.parametrize("path", ["/v1/embeddings", "/classify", "/v1/chat/completions/render"])
def test_many_images_in_messages_elsewhere(tight: Router, path: str) -> None:
    """They count, however many parts there are, although such paths also take something else."""
    for count in (3, 2000):
        messages = [{"content": [{"type": "image_url"}] * count}]
        assert refused(tight, path, {"messages": messages}) == "messages"


WORDS = st.sampled_from(["a", '{"', "[{}]", "\\", "é", "image_url", "},{", ""])
PARTS = st.one_of(
    WORDS,
    st.none(),
    st.fixed_dictionaries({"type": st.just("text"), "text": WORDS}),
    st.fixed_dictionaries({"type": st.sampled_from(["image_url", "audio", None, 5]), "a": WORDS}),
    st.fixed_dictionaries({"image_url": WORDS}),
)
MESSAGES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": WORDS, "content": st.one_of(WORDS, st.lists(PARTS))}),
        st.integers(),
        st.lists(PARTS),
    )
)


def counted(messages: list[Any]) -> int:
    """The reference count of images: look at each decoded part."""
    contents = [message["content"] for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return sum(isinstance(part, dict) and part.get("type") != "text" for part in parts)


@settings(deadline=None)
@given(MESSAGES, st.integers(1, 5), st.integers(0, 5), st.booleans(), st.booleans())
def test_it_is_refused_exactly_when_it_is_too_much(
    messages: list[Any], most: int, images: int, spaced: bool, texts: bool
) -> None:
    """The fast ways of counting agree with the reference, whatever the text and spacing."""
    limits = Limits(LimitSettings(messages=most, images=images))
    written = json.dumps({"messages": messages}, ensure_ascii=spaced, indent=1 if spaced else None)
    body, endpoint = written.encode(), ENDPOINTS[CHAT]
    too_much = len(messages) > most or counted(messages) > images
    request = parse(endpoint, body, b"", texts=texts)
    if too_much:
        with pytest.raises(BadRequest) as caught:
            limits.check(endpoint, request)
        assert caught.value.param == "messages"
    else:
        limits.check(endpoint, request)


def told(door: Router, target: bytes, *fields: bytes) -> tuple[int, str]:
    """Send a GET; return the status and the error message."""
    lines = [b"GET %b HTTP/1.1" % target, b"host: x", b"connection: close", *fields, b"", b""]
    with send(door.port, b"\r\n".join(lines)) as client:
        head, _, body = read_all(client).partition(b"\r\n\r\n")
    said = json.loads(body).get("error", {})
    return int(head.split(b" ", 2)[1]), said.get("message", "")


def test_heads(tight: Router) -> None:
    """`limits.url`, `limits.headers` and `limits.header_count` are exact; errors name them."""
    path = b"/health/live?"
    assert told(tight, path + b"x" * (200 - len(path))) == (200, "")
    url = "The request's URL is over this server's limit of 200 bytes."
    assert told(tight, path + b"x" * (201 - len(path))) == (414, url)
    assert told(tight, path, *[b"a: b"] * 18) == (200, "")
    count = "The request has more header fields than the 20 allowed."
    assert told(tight, path, *[b"a: b"] * 19) == (431, count)
    used = len(b"hostxconnectionclose" + b"a")
    assert told(tight, path, b"a: " + b"b" * (1024 - used)) == (200, "")
    size = "The request's header is over this server's limit of 1024 bytes."
    assert told(tight, path, b"a: " + b"b" * (1025 - used)) == (431, size)


@pytest.mark.parametrize("path", [FORM, "/endpoints/x/openai" + FORM])
def test_audio(stub: MakeStub, route: MakeRouter, path: str) -> None:
    """`limits.audio` holds for forms with a file, unless `limits.body` is more."""
    for limits, longest in (({"audio": "96KiB"}, 96 << 10), ({"body": "160KiB"}, 160 << 10)):
        router = route(stub().url, limits={"body": "64KiB", "audio": "128KiB"} | limits)
        form = (
            b'--X\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b'
            b'\r\n--X\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--X--\r\n'
        )
        form %= b"a" * (longest - len(form) + 2)
        kind = {"content-type": "multipart/form-data; boundary=X"}
        assert len(form) == longest
        assert router.http.post(path, content=form, headers=kind).status_code == 200
        assert router.http.post(path, content=form + b" ", headers=kind).status_code == 413
        if "body" not in limits:
            body = b'{"model":"m"}' + b" " * (64 << 10)
            assert router.http.post(CHAT, content=body).status_code == 413


def test_a_whole_song(stub: MakeStub, route: MakeRouter) -> None:
    """A file of 25 MB, which engines take, reaches the worker without a setting."""
    worker = stub()
    song = {"file": ("song.wav", b"RIFF" * 6_250_000)}
    reply = route(worker.url).http.post(FORM, files=song, data={"model": "m"})
    assert (reply.status_code, len(worker.requests)) == (200, 1)
    assert b"RIFF" * 6_250_000 in worker.requests[0]


def test_bodies(worker: Stub, tight: Router) -> None:
    """`limits.body` is exact; it holds for inference only, all other paths take 64 KiB."""
    body = b'{"model":"m","x":"%b"}' % (b"x" * (98304 - 20))
    assert tight.http.post(CHAT, content=body).status_code == 200
    assert worker.requests[-1].endswith(body)
    assert tight.http.post(CHAT, content=body + b" ").status_code == 413
    assert tight.http.request("GET", "/workers", content=b"x" * 65536).status_code == 200
    assert tight.http.request("GET", "/workers", content=b"x" * 65537).status_code == 413
