"""Reading a stream: first token, end and usage, however the bytes are split."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.replay.stream import Answer, StreamEnd, error_message

ROLE = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
WORD = b'data: {"choices": [{"index": 0, "delta": {"content": "w\\u00e9 "}}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2%s}}\n\n'
DONE = b"data: [DONE]\n\n"
TOLD = USAGE % b', "prompt_tokens_details": {"cached_tokens": 4}'


def read(*chunks: bytes, collect: bool = False) -> tuple[Answer, StreamEnd]:
    answer = Answer(collect=collect)
    for now, chunk in enumerate(chunks):
        answer.feed(chunk, float(now))
    return answer, answer.finish()


@given(st.lists(st.integers(0, 400), max_size=20), st.booleans())
def test_an_answer_reads_the_same_however_it_is_cut(cuts: list[int], collect: bool) -> None:
    """Events split anywhere give the same usage and text."""
    whole = b": ping\n\n" + ROLE + WORD + WORD + TOLD + DONE
    edges = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    chunks = [whole[start:end] for start, end in pairwise(edges)]
    answer, ending = read(*chunks, collect=collect)
    assert ending.fault is None
    assert ending.usage is not None
    assert (ending.usage.prompt_tokens, ending.usage.completion_tokens) == (9, 2)
    assert ending.usage.cached_tokens == 4
    assert ending.text == ("wé wé " if collect else "")
    assert answer.first_at is not None


@pytest.mark.parametrize(
    "early",
    [b": ping\n\n", b"data: {}\n\n", b'data: {"choices": []}\n\n', b"event: x\n", b"data: {x\n\n"],
)
def test_only_an_event_that_speaks_is_the_first_token(early: bytes) -> None:
    """Pings, empty events and garbage are not the first token; the role is."""
    answer, _ = read(early, early, ROLE, WORD)
    assert answer.first_at == 2.0


def test_the_first_token_of_a_completion_is_its_text() -> None:
    """The completions endpoint has text in place of deltas."""
    answer, ending = read(b'data: {"choices": [{"text": "a"}]}\n\n', DONE, collect=True)
    assert answer.first_at == 0.0
    assert ending.text == "a"


@pytest.mark.parametrize("details", [b"", b', "prompt_tokens_details": null'])
def test_cached_tokens_not_told_are_unknown(details: bytes) -> None:
    """Null or absent means unknown, not zero."""
    _, ending = read(ROLE, USAGE % details, DONE)
    assert ending.usage is not None
    assert ending.usage.cached_tokens is None


def test_a_long_answer_keeps_only_its_tail() -> None:
    """Usage at the end is found, whatever was dropped before it."""
    _, ending = read(ROLE, *[WORD] * 5000, TOLD, DONE)
    assert ending.usage is not None
    assert ending.fault is None


@pytest.mark.parametrize(
    ("chunks", "kind", "message"),
    [
        ([], "broken stream", "without [DONE]"),
        ([ROLE, WORD, TOLD], "broken stream", "without [DONE]"),
        ([ROLE, b"data: {oops\n\n", DONE], "broken stream", "{oops"),
        ([ROLE, b'data: {"usage": 3}\n\n', DONE], "broken stream", "usage"),
        ([ROLE, b'data: {"error": {"message": "no room"}}\n\n', DONE], "error event", "no room"),
        ([b'data: {"error": "no room"}\n\n'], "error event", "no room"),
        ([b'data: {"object": "error", "message": "no room"}\n\n'], "error event", "no room"),
    ],
)
def test_a_bad_ending_is_told_by_kind(chunks: list[bytes], kind: str, message: str) -> None:
    """A stream that is cut off, garbled or ended by an error event is not an answer."""
    _, ending = read(*chunks)
    assert ending.fault is not None
    assert ending.fault.kind == kind
    assert message in ending.fault.message


def test_an_error_that_is_null_is_none() -> None:
    """Some servers send a null error in every event."""
    _, ending = read(b'data: {"choices": [{"delta": {"content": "a"}}], "error": null}\n\n', DONE)
    assert ending.fault is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "full"}}', "full"),
        (b'{"message": "full"}', "full"),
        (b'{"error": "full"}', "full"),
        (b'"full"', "full"),
        (b"<html>full</html>", "<html>full</html>"),
        (b'{"detail": []}', '{"detail": []}'),
        (b"\xff", "\ufffd"),
        (b"", "(nothing)"),
    ],
)
def test_error_messages_are_found_in_any_shape(body: bytes, message: str) -> None:
    """OpenAI's format, vLLM's older one, or anything a proxy in between writes."""
    assert error_message(body) == message
