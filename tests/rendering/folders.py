"""Model folders and requests for the tests of rendering."""

import json
from array import array
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from router.rendering.folder import read_folder
from router.rendering.messages import NotReproducible
from router.rendering.renderer import TemplateRenderer
from router.rendering.template import ChatTemplate
from router.rendering.tokenizer import ReferenceTokenizer, load
from router.rendering.tokens import PromptTokenizer
from tests.rendering.families import FAMILIES, folder, train

CHAT = "/v1/chat/completions"


def of_folder(path: Path) -> PromptTokenizer:
    """Return how prompts for the model in a folder are tokenized."""
    return PromptTokenizer(TemplateRenderer(read_folder(path), load(path)[0]))


@cache
def known(name: str) -> PromptTokenizer:
    """Return how prompts for a model of that family are tokenized."""
    with TemporaryDirectory() as made:
        return of_folder(folder(Path(made), FAMILIES[name]))


@cache
def reference(name: str) -> ReferenceTokenizer:
    """Return that family's tokenizer."""
    return ReferenceTokenizer(train(FAMILIES[name]))


def ids(name: str, path: str = CHAT, **asked: Any) -> list[int]:
    """Return the token ids of a request to a model of that family."""
    body = json.dumps({"model": "m", **asked}).encode()
    return array("I", known(name).ids(ENDPOINTS[path], body)).tolist()


def refusal(name: str, path: str = CHAT, **asked: Any) -> str:
    """Return why the token ids of such a request are not known."""
    with pytest.raises(NotReproducible) as told:
        ids(name, path, **asked)
    return told.value.reason


def text(name: str, path: str = CHAT, **asked: Any) -> str:
    """Return the tokens of a request as text, including special tokens."""
    return train(FAMILIES[name]).decode(ids(name, path, **asked), skip_special_tokens=False)


def says(role: str, content: Any = None, **more: Any) -> dict[str, Any]:
    """Return a message."""
    return {"role": role, "content": content, **more}


def rendered(template: str, *messages: dict[str, Any], **more: Any) -> str:
    """Render messages with a template."""
    return ChatTemplate(template, {}).render(messages or [HI], **more)


def reason(template: str, *messages: dict[str, Any], **more: Any) -> str:
    """Return why a template says nothing."""
    with pytest.raises(NotReproducible) as told:
        rendered(template, *messages, **more)
    return told.value.reason


HI = says("user", "Hi")
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"place": "Zürich", "days": 2}'},
}
TOOL = {
    "type": "function",
    "function": {
        "description": "The weather",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
