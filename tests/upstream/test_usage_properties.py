"""Of any stream, however worded and split, the last report is read and nothing is made up."""

import json
import pickle
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.upstream.usage import TAIL_BYTES, Usage, UsageTail


class Event(NamedTuple):
    """The bytes of one event, and the usage it reports."""

    data: bytes
    told: Usage | None


def read(*chunks: bytes) -> Usage:
    """Return the prompt's usage that is read from these chunks."""
    tail = UsageTail()
    for chunk in chunks:
        tail.add(chunk)
    return tail.read()._replace(answer=None)


counts = st.integers(0, 1 << 30)
words = st.text(max_size=20) | st.sampled_from(['"usage"', '"usage":{', "usage", "\\", '"', "☕"])
maybe_counts = st.none() | counts


@st.composite
def reports(draw: st.DrawFn) -> tuple[dict[str, Any], Usage]:
    """Draw a `usage` object in one of the dialects, and what it means."""
    prompt, cached, more = draw(counts), draw(maybe_counts), draw(counts)
    names = draw(st.sampled_from(["prompt_tokens", "input_tokens"]))
    usage: dict[str, Any] = {names: prompt, "total_tokens": more}
    if draw(st.booleans()):
        details = None if cached is None else {"cached_tokens": cached, "audio_tokens": 0}
        usage[f"{names}_details"] = details
        return usage, Usage(prompt, cached)
    if cached is not None:  # Anthropic's form
        usage["cache_read_input_tokens"] = cached
        return usage, Usage(prompt + cached, cached)
    return usage, Usage(prompt, None)


@st.composite
def events(draw: st.DrawFn) -> Event:
    """Draw an event as some server may word it: with a report, with null, or without the key."""
    body: dict[str, Any] = {"choices": [{"delta": {"content": draw(words)}}]}
    told = None
    kind = draw(st.sampled_from(["report", "null", "none", "nested", "comment", "done"]))
    if kind == "comment":
        return Event(b": ping\n\n", None)
    if kind == "done":
        return Event(b"data: [DONE]\n\n", None)
    if kind in ("report", "nested"):
        usage, told = draw(reports())
        body = (
            {"response": {**body, "usage": usage}} if kind == "nested" else {**body, "usage": usage}
        )
    elif kind == "null":
        body["usage"] = None
    if draw(st.booleans()):
        body["system_fingerprint"] = draw(words)
    text = json.dumps(
        body,
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])),
    )
    name = draw(st.sampled_from([b"", b"event: x\n", b"id: 1\n"]))
    end = draw(st.sampled_from([b"\n\n", b"\r\n\r\n"]))
    return Event(name + b"data: " + text.encode("utf-8", "surrogatepass") + end, told)


streams = st.lists(events(), max_size=12)
cuts = st.lists(st.integers(0), max_size=40)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Split the bytes, possibly into empty pieces."""
    at = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(at)]


def last_report(told: list[Event]) -> Usage:
    """Return what the last event with a report says."""
    said = [found.told for found in told if found.told is not None]
    return said[-1] if said else Usage()


@given(streams, cuts)
def test_the_last_report_counts(told: list[Event], places: list[int]) -> None:
    """The last report is read, whatever surrounds it and however the stream is split."""
    data = b"".join(event.data for event in told)
    if len(data) <= TAIL_BYTES:
        assert read(*cut(data, places)) == last_report(told)


@given(streams, st.integers(0))
def test_a_stream_that_breaks_off(told: list[Event], place: int) -> None:
    """Of a truncated stream, nothing is read that no event has reported."""
    data = b"".join(event.data for event in told)
    ends = list(accumulate(len(event.data) for event in told))
    stop = place % (len(data) + 1)
    whole = [event for event, end in zip(told, ends, strict=True) if end <= stop]
    nearly = told[len(whole) : len(whole) + 1]  # its report may be complete, its end is missing
    seen = read(data[:stop])
    assert seen in {Usage(), *(event.told for event in [*whole, *nearly])}


keys = st.sampled_from(["usage", "a", 'b"', "\\", "input"]) | st.text(max_size=3)
leaves: st.SearchStrategy[Any] = (
    st.none() | st.integers() | words | st.just({"prompt_tokens": 3}) | st.just({"usage": {}})
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)
fillers = st.sampled_from(
    ["", "x" * TAIL_BYTES, '{"' * TAIL_BYTES, "\\" * (2 * TAIL_BYTES), "☕" * TAIL_BYTES]
)


@st.composite
def documents(draw: st.DrawFn) -> tuple[bytes, Usage]:
    """Draw a JSON object with fields of any length, and what it reports at its top level."""
    names = draw(st.lists(keys.filter(lambda key: key != "usage"), max_size=4, unique=True))
    fields: list[tuple[str, Any]] = [(name, [draw(values), draw(fillers)]) for name in names]
    told = Usage()
    if draw(st.booleans()):
        usage, told = draw(reports())
        fields.insert(draw(st.integers(0, len(fields))), ("usage", usage))
    text = json.dumps(
        dict(fields),
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 1])),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])),
    )
    return text.encode("utf-8", "surrogatepass"), told


@given(documents(), cuts)
def test_only_the_top_level_counts(document: tuple[bytes, Usage], places: list[int]) -> None:
    """Whatever stands around it or within other fields, an answer's own report is read."""
    data, told = document
    assert read(data) == told
    assert read(*cut(data, places)) == told


HOSTILE = st.sampled_from(
    [
        b'"usage"',
        b'"usage":',
        b'"usage":{',
        b'"usage":{"prompt_tokens":',
        b'"usage":{"prompt_tokens":7}',
        b"{",
        b"[",
        b"}",
        b'"',
        b"\\",
        b'\\"',
        b"9" * 400,
        b"1e999",
        b"-0",
        b"NaN",
        b"\xff",
        b"\xe2\x98",
        b"\x00",
        b"\r\n\r\n",
    ]
)


@given(st.lists(st.tuples(HOSTILE, st.integers(1, 600)), max_size=6), cuts)
def test_hostile_answers(parts: list[tuple[bytes, int]], places: list[int]) -> None:
    """Hostile input never raises; as long as it is kept whole, splitting it changes nothing."""
    data = b"".join(piece * times for piece, times in parts)
    whole, pieces = read(data), read(*cut(data, places))
    assert whole == pieces or len(data) > 2 * TAIL_BYTES
    for usage in (whole, pieces):
        assert usage.prompt is None or 0 <= usage.prompt <= 3 << 31
        assert usage.cached is None or 0 <= usage.cached < 1 << 31


@given(st.lists(st.integers(0, 70_000) | st.integers(0, 3), min_size=1, max_size=60))
def test_what_is_kept(sizes: list[int]) -> None:
    """However long the answer, only a few tails and its largest chunk are kept."""
    tail = UsageTail()
    for size in sizes:
        tail.add(b"x" * size)
        assert len(pickle.dumps(tail)) <= 4 * TAIL_BYTES + max(sizes) + 1000
    tail.add(b'{"usage":{"prompt_tokens":7}}')
    assert tail.read() == Usage(7, None)


def test_what_is_kept_of_crumbs() -> None:
    """The bound also holds for many chunks of one byte, with empty ones between them."""
    tail = UsageTail()
    for _ in range(10 * TAIL_BYTES):
        tail.add(b"x")
        tail.add(b"")
    assert len(pickle.dumps(tail)) <= 5 * TAIL_BYTES


@pytest.mark.parametrize("piece", [b'"usage":{', b'"usage":{"a":[', b'"usage":{"a":"'])
def test_the_worst_there_is(piece: bytes) -> None:
    """A tail full of reports that never end yields no usage."""
    assert read(piece * 1000) == Usage()
