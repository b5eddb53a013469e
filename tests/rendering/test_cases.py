"""Requests, and the prompts that engines make of them.

Each text in `cases.json` was rendered by vLLM 0.32.0 for a model with that family's template, and
chosen so that its ids decode to the text and the text encodes to the ids.
"""

import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from tests.rendering.folders import ids, reference, says, text

CASES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("cases.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_request_becomes_the_engines_prompt(case: dict[str, Any]) -> None:
    """Text and tokens are exactly the engine's."""
    family, path, asked = case["family"], case["path"], case["asked"]
    assert text(family, path, **asked) == case["text"]
    found = array("I", reference(family).encode(case["text"], special=False)).tolist()
    assert ids(family, path, **asked) == found


def test_special_tokens_are_added_where_engines_add_them() -> None:
    """By default to texts and responses; to chats only if the request asks for it."""
    bos = 0
    assert ids("llama", "/v1/completions", prompt="Hi")[0] == bos
    assert ids("llama", "/v1/completions", prompt="Hi", add_special_tokens=False)[0] != bos
    responses = ids("llama", "/v1/responses", input="Hi")
    assert responses == [bos, *ids("llama", messages=[says("user", "Hi")])]
    assert ids("llama", messages=[says("user", "Hi")], add_special_tokens=True) == responses


def test_ids_may_be_the_prompt_itself() -> None:
    """In a completion, and in a chat that another router has sent with token ids."""
    assert ids("llama", "/v1/completions", prompt=[5, 6, 7]) == [5, 6, 7]
    assert ids("llama", "/v1/completions", prompt=[[5, 6], [7]]) == [5, 6]
    sent = {"prompt_token_ids": [5, 6, 7]}
    hi = [says("user", "Hi")]
    assert ids("llama", messages=hi, kv_transfer_params=sent) == [5, 6, 7]
    assert ids("llama", messages=hi, kv_transfer_params=sent, echo=True) == ids(
        "llama", messages=hi
    )
    assert ids("llama", "/v1/responses", input="Hi", kv_transfer_params=sent) == [5, 6, 7]
