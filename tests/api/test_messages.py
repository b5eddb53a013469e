"""Contents of messages: decoded at once, or left as raw JSON where decoding could cost too much."""

import json
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.endpoints import ENDPOINTS
from router.api.errors import BadRequest
from router.api.media import images
from router.api.messages import MAX_ENTRIES, MAX_ONE_PASS_BYTES, entries, messages
from router.api.request import MAX_FIELDS, parse
from router.prompt.canonical import CanonicalText, canonical, measured
from router.proxy.limits import Limits
from router.settings.server import LimitSettings

CHAT, AUDIO = ENDPOINTS["/v1/chat/completions"], ENDPOINTS["/v1/audio/transcriptions"]
MULTIPART = b"multipart/form-data; boundary=x"
PART: st.SearchStrategy[object] = st.sampled_from(
    [
        {"type": "text", "text": "a\n\u00e9"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "tool_result", "content": [{"type": "image"}]},
        "plain",
        7,
        None,
        [],
    ]
)
CONTENT = st.one_of(
    st.text(st.characters(codec="utf-8")), st.lists(PART, max_size=4), st.none(), st.integers()
)


def text(body: bytes, *, texts: bool = True) -> CanonicalText:
    """Return the text that the prompt's keys are computed from."""
    return canonical(CHAT, parse(CHAT, body, b"", texts=texts))


def length(message: dict[str, object]) -> int:
    """Return the bytes of a message's content."""
    match message["content"]:
        case None:
            return 0
        case str(content):
            return len(content.encode())
        case list(parts):
            return sum(len(json.dumps(part)) for part in parts)
        case other:
            return len(json.dumps(other))


@given(st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": CONTENT}), max_size=4))
def test_both_ways_find_the_same(said: list[dict[str, object]]) -> None:
    """Decoding at once or later gives the same text, for contents of every type."""
    body = json.dumps({"model": "m", "n": 2, "messages": said}).encode()
    quick, careful = text(body), text(body, texts=False)
    assert (quick.data, quick.parts, quick.plain) == (careful.data, careful.parts, careful.plain)
    request = parse(CHAT, body, b"")
    assert (request.model, request.n) == ("m", 2)
    assert measured(CHAT, request) == sum(length(message) for message in said)


def test_without_texts_none_is_decoded() -> None:
    """Texts stay raw if `texts` is false, and in a body large enough to be costly."""
    for size, texts, whether in (
        (9, True, True),
        (9, False, False),
        (MAX_ONE_PASS_BYTES, True, False),
    ):
        content = f'"{"x" * size}"'
        body = f'{{"messages":[{{"role":"user","content":{content}}}]}}'.encode()
        request = parse(CHAT, body, b"", texts=texts)
        assert isinstance(request.messages[0].content, str) is whether
        assert measured(CHAT, request) == size + (0 if whether else 2)


@pytest.mark.parametrize("content", [b'"\xff"', b"7", b'{"a":1}'])
def test_a_content_that_is_none(content: bytes) -> None:
    """An invalid content is left for the worker to refuse; equal contents give equal data."""
    body = b'{"messages":[{"role":"user","content":"Hello"},{"role":"user","content":%b}]}'
    found = text(body % content)
    assert found.data.startswith(b"\x1euser\x1fHello\x1euser\x1f")
    assert found.data == text(body % content).data != text(body % b'"other"').data


@pytest.mark.parametrize("element", ["{}", "1", '""', '{"type":"text","text":""}'])
@pytest.mark.parametrize("more", [0, MAX_ONE_PASS_BYTES + MAX_ONE_PASS_BYTES // 2])
def test_too_many_parts(element: str, more: int) -> None:
    """They are refused, and reading them takes at most 10 times their size, or 8 MiB."""
    count = max(MAX_ENTRIES + 1, more // len(element))
    body = f'{{"messages":[{{"content":[{",".join([element] * count)}]}}]}}'.encode()
    tracemalloc.start()
    try:
        request = parse(CHAT, body, b"")
        with pytest.raises(BadRequest, match="too many parts"):
            Limits(LimitSettings()).check(CHAT, request)
        canonical(CHAT, request)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < max(10 * len(body), 16 * MAX_ONE_PASS_BYTES)


@pytest.mark.parametrize("element", ["1", '""', '{"type":"text","text":""}'])
@pytest.mark.parametrize("texts", [True, False])
@pytest.mark.parametrize("inner", [False, True])
def test_too_many_parts_in_all(element: str, *, texts: bool, inner: bool) -> None:
    """Parts are limited over all messages and tool results together, as in a single list."""
    few = f"[{','.join([element] * 1000)}]"
    if inner:
        few = f'[{{"type":"tool_result","content":{few}}}]'

    def check(count: int) -> None:
        contents = ",".join([f'{{"content":{few}}}'] * count)
        body = f'{{"messages":[{contents}]}}'.encode()
        Limits(LimitSettings()).check(CHAT, parse(CHAT, body, b"", texts=texts))

    check(MAX_ENTRIES // 1000)
    with pytest.raises(BadRequest, match="too many parts"):
        check(MAX_ENTRIES // 1000 + 1)


def test_of_a_long_list_of_items_no_parts_are_made() -> None:
    """In a long list of items the contents stay raw, even if each of them is short enough alone."""
    content = f"[{','.join(['1'] * (MAX_ONE_PASS_BYTES // 4))}]"
    item = f'{{"content":{content}}}'
    for count, kind in ((1, list), (3, msgspec.Raw)):
        raw = msgspec.Raw(f"[{','.join([item] * count)}]".encode())
        assert all(isinstance(message.content, kind) for message in messages(raw))


def raw(text: str) -> msgspec.Raw:
    """Return JSON text as it is found in a body."""
    return msgspec.Raw(text.encode())


def listed(element: str, count: int) -> msgspec.Raw:
    """Return a list that repeats one element."""
    return raw("[" + ",".join([element] * count) + "]")


def test_one_long_text_is_one_element() -> None:
    """Commas and brackets inside a text are not counted as elements."""
    text = "1,[{},2]," * 100_000
    assert entries(raw(f'[{{"type":"text","text":"{text}"}}]')) is not None
    assert images([raw(f'[{{"type":"text","text":"{text}"}}]')]) == 0


@pytest.mark.parametrize("junk", ["1", "null", "[]", "true"])
def test_something_else_in_a_long_list(junk: str) -> None:
    """A long list of anything else is refused unread: no worker takes it. A short one is passed."""
    long, short = listed(junk, 100_000), listed(junk, 3)
    assert entries(long) is None
    with pytest.raises(BadRequest, match="too many parts"):
        images([long])
    with pytest.raises(BadRequest, match="more messages than can be read"):
        messages(long)
    assert (len(entries(short) or ()), len(messages(short)), images([short])) == (3, 3, 0)


def form(field: bytes, kind: bytes = MULTIPART) -> dict[str, object]:
    """Return the fields that are read of a form."""
    found = parse(AUDIO, field + b"--x--\r\n", kind)
    return {"model": found.model, "n": found.n}


def field(name: bytes, value: bytes, more: bytes = b"") -> bytes:
    """Return one field of a form."""
    return b'--x\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (name, more, value)


def test_a_form() -> None:
    """Fields are read in the one encoding that all parsers agree on."""
    assert form(field(b"model", b"m") + field(b"n", b"3")) == {"model": "m", "n": "3"}
    plain = b"\r\nContent-Transfer-Encoding: 8bit"
    assert form(field(b"model", b"m", plain))["model"] == "m"


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"model=m&%6e=10", b"application/x-www-form-urlencoded", "must be a form"),
        (b"", b"application/octet-stream", "must be a form"),
        (b"", b"", "must be a form"),
        (
            field(b"n", b"MTA=", b"\r\ncontent-transfer-encoding:base64"),
            *(MULTIPART, "Content-Transfer-Encoding"),
        ),
        (field(b"a", b"") * (MAX_FIELDS + 1), MULTIPART.replace(b"m", b"M", 1), "more than"),
    ],
)
def test_forms_that_others_might_read_otherwise(body: bytes, kind: bytes, said: str) -> None:
    """A form that a worker might read differently, or that takes too long to read, is refused."""
    with pytest.raises(BadRequest, match=said):
        form(body, kind)
