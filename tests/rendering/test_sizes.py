"""What would hold the GIL for long is not read: bodies that are long or have many values."""

import json
from array import array
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from router.rendering.errors import NOT_TEXT, NotReproducible
from router.rendering.messages import ENTRIES_PER_VALUE, MAX_VALUES
from router.rendering.tokens import MAX_PROMPT_CHARS, decode_fields
from tests.rendering import test_media
from tests.rendering.folders import CALL, CHAT, ids, known, says

HI = says("user", "Hi")


def exactly(body: bytes) -> bytes:
    """Return the packed token ids of a chat."""
    return known("qwen").ids(ENDPOINTS[CHAT], body)


def reason(body: bytes) -> str:
    """Return why the tokens of a chat are not known."""
    with pytest.raises(NotReproducible) as told:
        exactly(body)
    return told.value.reason


def calling(arguments: str) -> bytes:
    """Return a chat with a tool call."""
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    messages = [HI, says("assistant", tool_calls=[call])]
    return json.dumps({"messages": messages}).encode()


@pytest.mark.parametrize("thing", ["{},", "[],", "0," * ENTRIES_PER_VALUE])
def test_things_in_large_numbers(thing: str) -> None:
    """Anywhere in the body, even in fields that are not used; up to the limit they are read."""
    for many in (MAX_VALUES // 2, MAX_VALUES + 1):
        listed = "[" + thing * many + "1]"
        body = b'{"messages":[{"role":"user","content":"Hi"}],"z":%b}' % listed.encode()
        called = calling('{"a":' + listed + "}")
        assert max(len(body), len(called)) < MAX_PROMPT_CHARS
        if many < MAX_VALUES:
            assert array("I", exactly(body)).tolist() == ids("qwen", messages=[HI])
            assert exactly(called)
        else:
            assert reason(body) == "too long"
            assert reason(called) == "too long"


def test_things_written_as_escapes() -> None:
    """They are noticed once the string that contains them has been decoded."""
    body = calling('{"a":[' + "{}," * MAX_VALUES + "1]}")
    for letter in b"{[,":
        head, _, arguments = body.partition(b'"arguments": "')
        arguments, end, rest = arguments.partition(b'"}}]')
        body = head + b'"arguments": "' + arguments.replace(b"%c" % letter, b"\\u%04x" % letter)
        body += end + rest
    decode_fields(body)
    assert reason(body) == "too long"


def test_long_bodies() -> None:
    """Long bodies are not tokenized, whatever makes them long."""
    body = json.dumps({"messages": [HI], "z": "x" * MAX_PROMPT_CHARS}).encode()
    assert reason(body) == "too long"
    assert decode_fields(body)


def test_images_are_long() -> None:
    """The length of images does not count."""
    url = "data:image/png;base64," + "A" * MAX_PROMPT_CHARS
    image: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
    message = says("user", [test_media.part("What is this? "), image])
    body = json.dumps({"messages": [message]}).encode()
    assert reason(body) == NOT_TEXT
    short = says("user", [test_media.part("What is this? "), test_media.IMAGE])
    assert test_media.head(message) == test_media.head(short)
