"""A huge list where a small value is expected: its elements are never turned into objects."""

import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest

from router.api.endpoints import ENDPOINTS
from router.api.errors import BadRequest
from router.api.messages import MAX_ENTRIES, MAX_ONE_PASS_BYTES
from router.api.request import parse
from router.prompt.canonical import apart, canonical
from router.proxy.limits import Limits
from router.sagemaker.invocation import read, with_model
from router.sessions.ids import in_body
from router.settings.server import LimitSettings

#: Number of elements; as a Python object the smallest of them would take at least 24 bytes.
COUNT = 200_000
CHAT = ENDPOINTS["/v1/chat/completions"]
SMALL = ("model", "stream", "n", "best_of", "max_tokens", "max_completion_tokens", "tool_choice")
SALTS = ("max_output_tokens", "cache_salt", "prompt_cache_key")
WORDS = ("inputs", "parameters", "sampling_params", "stream", "model", "requestType")


def openai(body: bytes) -> object:
    """Return what is read of a chat request."""
    return parse(CHAT, body, b"")


def keyed(path: str, body: bytes) -> object:
    """Return what a prompt's keys are made of, as for any request that the limits allow."""
    endpoint = ENDPOINTS[path]
    request = parse(endpoint, body, b"")
    Limits(LimitSettings()).check(endpoint, request)
    return apart(endpoint, request), canonical(endpoint, request)


def user(body: bytes) -> object:
    """Return the session that a body names."""
    return in_body(body, "user")


def named(body: bytes) -> object:
    """Return the length of the same body with a model added."""
    return len(with_model(body, "m"))


@pytest.mark.parametrize("element", ["[]", "1.5"])
@pytest.mark.parametrize(
    ("reads", "field"),
    [
        *((openai, field) for field in (*SMALL, *SALTS)),
        *((read, field) for field in (*WORDS, "extSessionID")),
        *((user, field) for field in ("user", "other")),
        (named, "other"),
    ],
)
def test_none_is_made_an_object(reads: Callable[[bytes], object], field: str, element: str) -> None:
    """Memory stays below four times the body, whether it is refused or left to the worker."""
    listed = ",".join([element] * COUNT)
    text = "" if field == "inputs" else '"inputs":"Hello",'
    body = f'{{"messages":[],{text}"{field}":[{listed}]}}'.replace(
        '"messages":[],', "", reads is read
    )
    tracemalloc.start()
    try:
        with suppress(BadRequest):
            reads(body.encode())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 * len(body)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("{}", {"model": "m"}),
        (' { "a" : [ ] } \n', {"a": [], "model": "m"}),
        ('{"model": null, "a": "}"}', {"a": "}", "model": "m"}),
    ],
)
def test_a_body_gets_a_model(body: str, wanted: object) -> None:
    """A missing or null model is filled in; the rest of the body stays."""
    made = with_model(body.encode(), "m")
    assert json.loads(made) == wanted
    assert read(made).model == openai(made).model == "m"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ('{"max_new_tokens": 7, "stop": ["a"], "other": 1}', {"max_tokens": 7, "stop": ["a"]}),
        ('{"do_sample": false, "top_p": null}', {"temperature": 0}),
        ('{"return_full_text": true}', {"echo": True}),
        ("null", {}),
    ],
)
def test_parameters_of_a_text(parameters: str, wanted: dict[str, object]) -> None:
    """Parameters with an OpenAI equivalent are translated; others are dropped."""
    made = read(f'{{"inputs": "Hello", "parameters": {parameters}}}'.encode())
    assert json.loads(made.body) == {"prompt": "Hello", **wanted}


@pytest.mark.parametrize(
    "body", [b'{"inputs":"\xff"}', b'{"inputs":"\\ud800"}', b'{"model":"\xff"}']
)
def test_texts_that_are_none(body: bytes) -> None:
    """Texts that are not valid Unicode are refused."""
    with pytest.raises(BadRequest):
        read(body)


#: Where a client may write a list of any length, by path: what precedes it, and what follows.
WHERE = [
    ("/v1/completions", '{"prompt":[', "]}"),
    ("/v1/embeddings", '{"input":[', "]}"),
    ("/v1/chat/completions", '{"chat_template_kwargs":{"a":[', "]}}"),
    ("/v1/chat/completions", '{"messages":[', "]}"),
    ("/v1/responses", '{"reasoning":{"a":[', "]}}"),
    ("/v1/responses", '{"input":[{"type":"reasoning","a":[', "]}]}"),
    ("/v1/responses", '{"input":[', "]}"),
    ("/v1/messages", '{"messages":[{"content":[{"type":"tool_use","input":[', "]}]}]}"),
    ("/rerank", '{"documents":[', "]}"),
]


@pytest.mark.parametrize("element", ["[]", '{"a":1}', "1000", '""'])
@pytest.mark.parametrize(("path", "before", "after"), WHERE)
def test_none_is_made_an_object_for_a_key(path: str, before: str, after: str, element: str) -> None:
    """Whatever its form, a prompt takes less than three times its body's size in memory.

    Of token ids, the first become objects for a moment.
    """
    spare = (48 << 18) if element == "1000" else 0
    count = 4 * MAX_ONE_PASS_BYTES // (len(element) + 1)
    body = f"{before}{','.join([element] * count)}{after}".encode()
    tracemalloc.start()
    try:
        with suppress(BadRequest):
            keyed(path, body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3 * len(body) + spare


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_no_element_ends_the_count(path: str) -> None:
    """A list with too many entries is refused, whatever comes after the most there may be."""
    for odd in ("null", "1", "0", "-1", "1.0", "true", "[]", "{}", '""'):
        listed = ",".join(['""'] * MAX_ENTRIES + [odd] + ['""'] * MAX_ENTRIES)
        with pytest.raises(BadRequest, match="more messages than can be read"):
            keyed(path, f'{{"messages":[{listed}]}}'.encode())
