"""Tokens of prompts in another form than OpenAI's."""

import json
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from router.api.request import parse
from router.prompt.prompts import KnownModel, Prompts
from router.rendering.errors import NotReproducible
from tests.rendering.folders import ids, known, says

TEXT = "All the king's horses"
BATCH = "/v1/chat/completions/batch"


def test_a_text_is_a_completion_s() -> None:
    """SGLang makes the same tokens of `text` as of a completion's prompt."""
    expected = ids("qwen", "/v1/completions", prompt=TEXT)
    assert ids("qwen", "/generate", text=TEXT) == expected
    assert ids("qwen", "/generate", text=[TEXT, "more"]) == expected
    assert ids("qwen", "/encode", text=TEXT) == expected
    assert ids("qwen", "/classify", text=TEXT) == ids("qwen", "/classify", input=TEXT) == expected
    assert ids("qwen", "/v2/embed", texts=[TEXT, "more"]) == expected


def test_token_ids_are_taken_as_they_are() -> None:
    """They need no tokenizer."""
    assert ids("qwen", "/inference/v1/generate", token_ids=[3, 1, 2]) == [3, 1, 2]
    assert ids("qwen", "/generate", text=None, input_ids=[[3, 1], [2]]) == [3, 1]


def test_the_first_conversation_of_a_batch() -> None:
    """Its tokens are those of a chat, so both share blocks; no ids are sent along with it."""
    first, other = [says("user", TEXT)], [says("user", "other")]
    assert ids("qwen", BATCH, messages=[first, other]) == ids("qwen", messages=first)
    prompts = Prompts()
    prompts.known = {"m": KnownModel("m", known("qwen"), forward=True)}
    body = json.dumps({"model": "m", "messages": [first, other]}).encode()
    made = prompts.made(ENDPOINTS[BATCH], parse(ENDPOINTS[BATCH], body, b""), body)
    assert (made.reason, made.along, made.prompt.further) == ("", None, 1)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/generate", {"text": TEXT, "image_data": "x"}),
        ("/generate", {"input_ids": [1], "session_params": {"id": "s"}}),
        ("/generate", {"text": TEXT, "lora_path": "adapter"}),
        ("/generate", {}),
        ("/inference/v1/generate", {"token_ids": [1], "content_parts": [{"type": "image_url"}]}),
        ("/encode", {"text": TEXT, "input_embeds": [[0.5]]}),
        (BATCH, {"messages": [says("user", TEXT)]}),
        (BATCH, {"messages": []}),
        ("/api/chat", {"messages": [says("user", TEXT)]}),
        ("/api/generate", {"prompt": TEXT}),
        ("/cohere/v2/chat", {"messages": [says("user", TEXT)]}),
        ("/v1/messages/count_tokens", {"messages": [says("user", TEXT)]}),
    ],
)
def test_what_is_not_tokenized(path: str, asked: dict[str, Any]) -> None:
    """With images, adapters and sessions, and in dialects whose rendering is the engine's own."""
    body = json.dumps(asked).encode()
    for call in (known("qwen").ids, known("qwen").head):
        with pytest.raises(NotReproducible):
            call(ENDPOINTS[path], body)


def test_images_in_a_batch_are_keyed_by_text() -> None:
    """As are all requests that no tokenizer can be used for."""
    prompts = Prompts()
    prompts.known = {"m": KnownModel("m", known("qwen"), media=True)}
    image = says("user", [{"type": "image_url", "image_url": {"url": "x"}}])
    body = json.dumps({"model": "m", "messages": [[image], [image]]}).encode()
    made = prompts.made(ENDPOINTS[BATCH], parse(ENDPOINTS[BATCH], body, b""), body)
    assert made.reason
    assert made.prompt.further == 1
