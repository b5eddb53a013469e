"""Which bodies hold a prompt that could be read, by endpoint."""

import json
from typing import Any

import pytest

from router.admin.readable import check
from router.api.endpoints import ENDPOINTS
from router.api.errors import BadRequest
from router.api.messages import MAX_ONE_PASS_BYTES
from router.api.request import parse

CHAT, CLAUDE, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
PROMPT, EMBED, POOL = "/v1/completions", "/v1/embeddings", "/pooling"
TURN = {"role": "user", "content": "hello"}
CALLED = {"type": "function_call_output", "call_id": "c", "output": "42"}
LONG = "x" * MAX_ONE_PASS_BYTES


def refused(path: str, body: dict[str, Any]) -> tuple[str | None, str]:
    """Return the field and the message of the refusal; empty if there is none."""
    raw = json.dumps(body).encode()
    parse(ENDPOINTS[path], raw, b"application/json")
    try:
        check(ENDPOINTS[path], raw)
    except BadRequest as error:
        return error.param, error.message
    return None, ""


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (CHAT, {}, "Object missing required field `messages`"),
        (CHAT, {"prompt": "hello"}, "Object missing required field `messages`"),
        (CHAT, {"messages": None}, "Expected `array`, got `null` - at `$.messages`"),
        (CHAT, {"messages": "hello"}, "Expected `array`, got `str` - at `$.messages`"),
        (CHAT, {"messages": TURN}, "Expected `array`, got `object` - at `$.messages`"),
        (CHAT, {"messages": [1, 2]}, "Expected `object`, got `int` - at `$.messages[0]`"),
        (CHAT, {"messages": [TURN, None]}, "Expected `object`, got `null` - at `$.messages[1]`"),
        (
            CHAT,
            {"messages": [{"content": "hello"}]},
            "Object missing required field `role` - at `$.messages[0]`",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": 5}]},
            "Expected `str | array | null`, got `int` - at `$.messages[0].content`",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [5]}]},
            "Expected `str | object`, got `int` - at `$.messages[0].content[0]`",
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": LONG}, {"role": 5}]},
            "Expected `str`, got `int` - at `$.messages[1].role`",
        ),
        (CLAUDE, {"messages": 5}, "Expected `array`, got `int` - at `$.messages`"),
        (RESPONSES, {}, "Object missing required field `input`"),
        (RESPONSES, {"input": 5}, "Expected `str | array`, got `int` - at `$.input`"),
        (RESPONSES, {"input": [LONG]}, "Expected `object`, got `str` - at `$.input[0]`"),
        (PROMPT, {}, "Object missing required field `prompt`"),
        (PROMPT, {"prompt": None}, "Expected `str | array`, got `null` - at `$.prompt`"),
        (PROMPT, {"prompt": 5}, "Expected `str | array`, got `int` - at `$.prompt`"),
        (PROMPT, {"prompt": {"x": LONG}}, "Expected `str | array`, got `object` - at `$.prompt`"),
        (PROMPT, {"prompt": [-1]}, "Expected `int` >= 0 - at `$.prompt[0]`"),
        (PROMPT, {"prompt": [[1.5]]}, "Expected `int`, got `float` - at `$.prompt[0][0]`"),
        (PROMPT, {"prompt": [[1], ["x"]]}, "Expected `int`, got `str` - at `$.prompt[1][0]`"),
        (PROMPT, {"prompt": [1, "x"]}, "Expected elements of one kind - at `$.prompt`"),
        (EMBED, {"input": 5}, "Expected `str | object | array`, got `int` - at `$.input`"),
        (EMBED, {"messages": 5}, "Expected `array`, got `int` - at `$.messages`"),
        (POOL, {"messages": None}, "Object missing required field `input`"),
    ],
)
def test_what_cannot_be_read_is_named(path: str, body: dict[str, Any], said: str) -> None:
    """The message has the field, what it may be and what it is; `param` has the field."""
    param, message = refused(path, body)
    assert message == f"The request body is not as expected: {said}."
    assert f"{param}`" in said or f"$.{param}[" in said or f"$.{param}." in said


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": []}),
        (CHAT, {"messages": [TURN, {"role": "assistant", "content": None}, {"role": "x"}]}),
        (CHAT, {"messages": [{"role": "user", "content": ["hello", {"type": "text"}]}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]}),
        (CLAUDE, {"messages": [TURN], "system": "be brief"}),
        (RESPONSES, {"input": "hello"}),
        (RESPONSES, {"input": [TURN, CALLED]}),
        (PROMPT, {"prompt": ""}),
        (PROMPT, {"prompt": ["hello", "you"]}),
        (PROMPT, {"prompt": [1, 2]}),
        (PROMPT, {"prompt": [[1], [2, 3]]}),
        (PROMPT, {"prompt": [1.0, 2]}),
        (PROMPT, {"prompt": [[1.0]]}),
        (PROMPT, {"prompt": [7] * MAX_ONE_PASS_BYTES}),
        (PROMPT, {"prompt_embeds": "AAAA"}),
        (PROMPT, {"prompt": None, "prompt_embeds": ["AAAA"]}),
        (EMBED, {"input": ["hello"]}),
        (EMBED, {"input": [1, 2.0]}),
        (EMBED, {"input": [{"content": []}]}),
        (EMBED, {"messages": [TURN]}),
        (POOL, {"data": {"image": "x"}}),
        ("/v1/rerank", {}),
    ],
)
def test_what_workers_take_can_be_read(path: str, body: dict[str, Any]) -> None:
    """No form of a prompt that vLLM takes is refused, nor a body whose prompt is not looked at."""
    assert refused(path, body) == (None, "")


def test_a_text_that_is_not_utf_8_cannot_be_read() -> None:
    """It is no JSON, and nobody could say how many tokens it has."""
    body = b'{"messages": [{"role": "user", "content": "\xff"}]}'
    parse(ENDPOINTS[CHAT], body, b"application/json")
    with pytest.raises(BadRequest, match="is not valid JSON: 'utf-8' codec") as caught:
        check(ENDPOINTS[CHAT], body)
    assert caught.value.param == "messages"
