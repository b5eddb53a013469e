"""A real model's tokenizer and chat template, read from its folder with Hugging Face's library.

The folder is one that an engine would serve: `tokenizer.json` or another supported tokenizer file
(see `vocabulary`), and `tokenizer_config.json` with the special tokens and the chat template, or
`chat_template.jinja`.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simulator.http.errors import bad_request
from simulator.model.answers import Voice, ring
from simulator.model.chat_template import ChatTemplate
from simulator.model.conversation import Conversation
from simulator.model.tokens import TYPECODE
from simulator.model.vocabulary import SPECIAL, vocabulary


class Folder:
    """The `Language` of a real model. Raises ValueError if the folder does not hold one."""

    def __init__(self, path: Path) -> None:
        self._tokenizer, named = vocabulary(path)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.top = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.voice: Voice = ring(self._pieces)
        config = _config(path / "tokenizer_config.json")
        told = {name: text for name in SPECIAL if (text := _token(config.get(name)))}
        special = {**told, **named}
        sources = _templates(path, config)
        self._templates = {name: ChatTemplate(text, special) for name, text in sources.items()}

    def tokenize(self, text: str, *, special: bool = True) -> array[int]:
        """Token ids of a text, including BOS and the like if `special`."""
        try:
            found = self._tokenizer.encode(text, add_special_tokens=special)
        except Exception as error:  # noqa: BLE001 - for lone surrogates, for example
            raise bad_request(f"The prompt cannot be tokenized: {error}") from None
        return array(TYPECODE, found.ids)

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of token ids."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)

    def strings(self, tokens: Iterable[int]) -> list[str]:
        """Each token as the vocabulary spells it."""
        return [self._tokenizer.id_to_token(token) or "" for token in tokens]

    def chat(self, asked: Conversation) -> array[int]:
        """Token ids of a conversation as the model's chat template renders it."""
        name = (
            "tool_use" if asked.tools is not None and "tool_use" in self._templates else "default"
        )
        template = self._templates.get(name)
        if template is None:
            raise bad_request("This model has no chat template.")
        return self.tokenize(template.render(asked), special=asked.add_special_tokens)

    def _pieces(self, text: str) -> list[tuple[int, bytes]]:
        """The tokens of an ASCII text, each with the part of the text it stands for."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        pieces, at = [], 0
        for token, (_, end) in zip(found.ids, found.offsets, strict=True):
            pieces.append((token, text[at:end].encode()))
            at = max(at, end)
        return pieces


def _templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates by name; `chat_template.jinja` overrides the configured default."""
    given = config.get("chat_template")
    found: dict[str, str] = {}
    if isinstance(given, str):
        found["default"] = given
    elif isinstance(given, list):
        found = {one["name"]: one["template"] for one in given}
    file = path / "chat_template.jinja"
    if file.is_file():
        found["default"] = file.read_text(encoding="utf-8")
    return found


def _config(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if not isinstance(found, dict):
        raise ValueError(f"{file} is not a JSON object")
    return found


def _token(given: object) -> str | None:
    """The text of a special token, given as a string or as an object with `content`."""
    text = given.get("content") if isinstance(given, dict) else given
    return text if isinstance(text, str) else None
