"""Bounds on the work that the canonical bytes of a prompt take."""

import json

import pytest

from router.api.endpoints import Endpoint
from router.api.messages import MAX_ENTRIES
from router.api.request import parse
from router.prompt.canonical import MAX_IDS, MAX_SPELLED_IDS, canonical
from tests.prompt.prompted import (
    COMPLETION,
    MESSAGES,
    RESPONSES,
)


def data_of(endpoint: Endpoint, body: object, indent: int | None = None) -> bytes:
    """Return a prompt's canonical bytes."""
    raw = json.dumps(body, indent=indent).encode()
    return canonical(endpoint, parse(endpoint, raw, b"")).data


@pytest.mark.parametrize("more", [0, 1, 5000])
def test_of_too_many_ids_the_first_are_packed(more: int) -> None:
    """Spaces matter only beyond a bound, and a longer prompt begins like a shorter one."""
    body = {"prompt": [7] * (MAX_IDS + more)}
    text = canonical(COMPLETION, parse(COMPLETION, json.dumps(body).encode(), b""))
    assert text.tokens == MAX_IDS + more
    assert text.data.startswith(data_of(COMPLETION, {"prompt": [7] * MAX_IDS}))
    assert (text.data != data_of(COMPLETION, body, indent=0)) == bool(more)
    assert text.data != data_of(COMPLETION, {"prompt": [7] * (MAX_IDS + more - 1) + [8]})


def test_quotes_in_a_text_are_no_further_texts() -> None:
    """A list of one text gives the same keys as the text, however many quotes there are in it."""
    text = 'a "word", ' * MAX_ENTRIES
    assert data_of(COMPLETION, {"prompt": [text]}) == data_of(COMPLETION, {"prompt": text})


@pytest.mark.parametrize("endpoint", [RESPONSES, MESSAGES], ids=lambda e: e.path)
def test_of_too_many_values_the_first_are_spelled(endpoint: Endpoint) -> None:
    """Spaces matter only beyond a bound, and a longer conversation begins like a shorter one."""
    values = [1] * 1000

    def data(count: int, indent: int | None = None) -> bytes:
        parts = [{"type": "tool_use", "input": values}] * count
        body = {"input": parts, "messages": [{"role": "user", "content": parts}]}
        raw = json.dumps(body, indent=indent).encode()
        return canonical(endpoint, parse(endpoint, raw, b"")).data

    few, many = MAX_SPELLED_IDS // 1002, MAX_SPELLED_IDS // 1000 + 4
    assert data(few) == data(few, indent=0)
    assert data(many) != data(many, indent=0)
    assert data(many).startswith(data(few))
    assert data(many + 1).startswith(data(many))
