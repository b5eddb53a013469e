"""Reported usage is found wherever it stands in an answer, however the bytes are split."""

import json
from typing import Any

import pytest

from router.upstream.usage import TAIL_BYTES, Usage, UsageTail


def read(*chunks: bytes) -> Usage:
    """Return the prompt's usage that is read from these chunks."""
    tail = UsageTail()
    for chunk in chunks:
        tail.add(chunk)
    return tail.read()._replace(answer=None)


def sse(*events: object) -> bytes:
    """Build a whole stream of events."""
    lines = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    return b"".join([*lines, b"data: [DONE]\n\n"])


USAGE = {
    "prompt_tokens": 120,
    "total_tokens": 125,
    "completion_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 96},
}
FOUND = Usage(120, 96)
CHUNK = {"choices": [{"delta": {"content": "word"}}], "usage": None}


def test_the_last_one_counts() -> None:
    """With continuous usage every event has a report; the last one has the totals. An
    event without usage may follow it."""
    events = [{"usage": {**USAGE, "prompt_tokens": n}} for n in range(101, 109)]
    assert read(sse(*events)) == read(sse(*events, CHUNK)) == Usage(108, 96)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b'{"usage":null}',
        b'{"usage":7}',
        b'{"usage":[]}',
        b'{"usage":{}}',
        b'{"usage":{"prompt_tokens":',
        b'{"usage":{"prompt_tokens":"7","completion_tokens":-1}}',
        b'{"usage":{"prompt_tokens":1' + b"0" * 400 + b"}}",
        b'{"usage":{"prompt_tokens":null,"prompt_tokens_details":7}}',
        b'{"usage":' + b"[" * 4000,
        b'{"usage":' + b'{"a":' * 700,
        b'{"text":"usage"}',
        b"data: [DONE]\n\n",
    ],
    ids=lambda answer: repr(answer[:30]),
)
def test_no_usage(answer: bytes) -> None:
    """Without a valid report nothing is made up."""
    assert read(answer) == Usage()


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2},
            Usage(9, 4, 2),
        ),
        ({"input_tokens": 9, "output_tokens": 2}, Usage(9, None, 2)),
        # Anthropic counts cached tokens in addition to the input, not as part of it.
        ({"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 4}, Usage(9, 4, 2)),
        (
            {"input_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 4},
            Usage(9, 0),
        ),
        ({"input_tokens": 5, "cache_read_input_tokens": None}, Usage(5, None)),
        ({"prompt_tokens": 9, "completion_tokens": 5}, Usage(9, None, 5)),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, Usage(9, None)),
        ({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}, Usage(9, 0)),
        ({"completion_tokens": -1}, Usage()),
    ],
)
def test_other_names(usage: dict[str, Any], expected: Usage) -> None:
    """Responses and Messages have their own names; what is missing is unknown, not zero."""
    assert wholly({"usage": usage}, streamed=False) == expected


STATS = {
    "num_vllm_cached_tokens": 32,
    "num_lmcache_cached_tokens": 96,
    "num_lmcache_extra_cached_tokens": 64,
}
LMCACHE = {"kv_transfer_params": {"cached_token_stats": STATS}}
SGLANG = {"sglext": {"cached_tokens_details": {"device": 32, "host": 48, "storage": 16}}}
SUMLESS = {key: value for key, value in USAGE.items() if key != "prompt_tokens_details"}


def wholly(*events: object, streamed: bool) -> Usage:
    """Return everything that is read of an answer."""
    tail = UsageTail()
    tail.add(sse(*events) if streamed else b"".join(json.dumps(one).encode() for one in events))
    return tail.read()


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("usage", [USAGE, SUMLESS])
@pytest.mark.parametrize(("more", "host"), [(LMCACHE, None), (SGLANG, 48)])
def test_where_cached_tokens_lay(
    streamed: bool, usage: dict[str, Any], more: dict[str, Any], host: int | None
) -> None:
    """Tiers are read as LMCache's server or SGLang reports them, even if `usage` has no sum."""
    found = Usage(120, 96, 5, 32, host)
    assert wholly({"usage": usage, **more}, streamed=streamed) == found
    assert wholly({**more, "usage": usage}, streamed=streamed) == found
    long = {"choices": [{"text": "x" * TAIL_BYTES}], "usage": usage, **more}
    assert wholly(long, streamed=streamed) == found


@pytest.mark.parametrize(
    "more",
    [
        {"kv_transfer_params": None, "sglext": 7},
        {"kv_transfer_params": {"cached_token_stats": True}},
        {"kv_transfer_params": {"cached_token_stats": {**STATS, "num_vllm_cached_tokens": -1}}},
        {"kv_transfer_params": {"cached_token_stats": {"num_vllm_cached_tokens": 96}}},
        {"kv_transfer_params": {"cached_token_stats": {**STATS, "num_vllm_cached_tokens": 33}}},
        {"sglext": {"cached_tokens_details": {"device": 96}}},
        {"sglext": {"cached_tokens_details": {"device": 1, "host": 2, "storage": "3"}}},
        {"sglext": {"cached_tokens_details": []}},
    ],
)
def test_parts_that_do_not_make_the_whole(more: dict[str, Any]) -> None:
    """Tiers that do not add up to the sum are ignored."""
    assert wholly({"usage": USAGE, **more}, streamed=False) == Usage(120, 96, 5)
    assert wholly({"usage": USAGE, **more}, streamed=True) == Usage(120, 96, 5)


LONG = "x" * (3 * TAIL_BYTES)
IDS = list(range(10_000))
#: Usage that is not the answer's own, in objects that clients or tools have written.
NESTED = {"usage": {"prompt_tokens": 1, "completion_tokens": 1}, "text": '{"\\'}
PLACES: list[dict[str, Any]] = [
    {"usage": USAGE, "choices": [{"text": LONG}]},
    {"choices": [{"text": LONG}], "usage": USAGE, "prompt_token_ids": IDS},
    {"choices": [], "usage": USAGE, "prompt_logprobs": [{"7": {"decoded_token": "}"}}] * 500},
    {"choices": [], "usage": USAGE, "kv_transfer_params": {"remote_block_ids": IDS}},
    {"content": [{"type": "tool_use", "input": NESTED}], "usage": USAGE, "metrics": LONG},
    {"usage": USAGE, "content": [{"type": "tool_use", "input": NESTED}], "metrics": LONG},
    {"usage": USAGE, "metrics": LONG, "content": [{"type": "tool_use", "input": NESTED}]},
    {"usage": USAGE, "choices": [{"text": json.dumps(NESTED)}] * 300},
    {"a": {"b": {"c": NESTED}}, "ids": IDS, "usage": USAGE, "more": IDS, "d": [NESTED] * 300},
]


@pytest.mark.parametrize("size", [1 << 30, 1, 1000, TAIL_BYTES, 2 * TAIL_BYTES + 1])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("answer", PLACES)
def test_it_may_stand_anywhere(answer: dict[str, Any], indent: int | None, size: int) -> None:
    """Long fields may come before or after it, and objects of that name may be within others."""
    said = json.dumps(answer, indent=indent).encode()
    pieces = [said[at : at + size] for at in range(0, len(said), size)]
    assert read(*pieces) == FOUND
    others = {key: value for key, value in answer.items() if key != "usage"}
    for without in (others, {**others, "usage": None}):
        assert read(json.dumps(without).encode()) == Usage()


def test_a_stream_may_repeat_all_after_it() -> None:
    """The last event of `/v1/responses` may have long fields after its report."""
    response = {"usage": USAGE, "output_messages": [{"text": LONG}], "tools": [{"usage": {}}]}
    said = sse(CHUNK, {"type": "response.completed", "response": response})
    for size in (len(said), 100, TAIL_BYTES):
        assert read(*[said[at : at + size] for at in range(0, len(said), size)]) == FOUND
