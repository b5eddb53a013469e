"""A real model's tokenizer and chat template, read from its folder.

The folder holds `tokenizer.json`, and `tokenizer_config.json` with the special tokens and the chat
template, or `chat_template.jinja`. Messages reach the template in vLLM's form for templates that
take contents as text (`vllm/entrypoints/chat_utils.py`). That makes a worker whose tokens a router
can know. It does not replace the engine where the question is what an engine makes of a request.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from simulator.http.errors import bad_request
from simulator.model.answers import Voice, ring
from simulator.model.tokens import TYPECODE, ChatParams, Message, texts_of


class FolderLanguage:
    """The `Language` of a real model. Raises ValueError if the folder does not hold one."""

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        except Exception as error:  # noqa: BLE001 - that library raises plain Exceptions
            raise ValueError(f"{path / 'tokenizer.json'} cannot be read: {error}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.top = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.voice: Voice = ring(self._pieces)
        config = _config(path / "tokenizer_config.json")
        self._special = {name: _special(config.get(f"{name}_token")) for name in ("bos", "eos")}
        self._template = _template(path / "chat_template.jinja", config)

    def tokenize(self, text: str, *, special: bool = True) -> array[int]:
        """Return token ids of a text, including BOS and the like if `special`."""
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=special)
        except Exception as error:  # noqa: BLE001 - for lone surrogates, for example
            raise bad_request(f"The prompt cannot be tokenized: {error}") from None
        return array(TYPECODE, encoding.ids)

    def detokenize(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)

    def strings(self, tokens: Iterable[int]) -> list[str]:
        """Return each token as the vocabulary spells it."""
        return [self._tokenizer.id_to_token(token) or "" for token in tokens]

    def chat(self, chat: ChatParams) -> array[int]:
        """Return token ids of a conversation as the model's chat template renders it."""
        if self._template is None:
            raise bad_request("This model has no chat template.")
        messages = [_message(message) for message in chat.messages]
        try:
            text = self._template.render(
                bos_token=self._special["bos"],
                eos_token=self._special["eos"],
                messages=messages,
                tools=chat.tools,
                documents=chat.documents,
                add_generation_prompt=chat.add_generation_prompt,
                **chat.keywords,
            )
            if chat.continue_final_message:
                last = messages[-1]["content"].strip()
                text = text[: text.rindex(last) + len(last)]
        except Exception as error:  # noqa: BLE001 - a template may do whatever Python's operators do
            raise bad_request(str(error)) from None
        return self.tokenize(text, special=chat.add_special_tokens)

    def _pieces(self, text: str) -> list[tuple[int, bytes]]:
        """Return the tokens of an ASCII text, each with the part of the text it stands for."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        pieces, at = [], 0
        for token, (_, end) in zip(encoding.ids, encoding.offsets, strict=True):
            pieces.append((token, text[at:end].encode()))
            at = max(at, end)
        return pieces


def _config(file: Path) -> dict[str, Any]:
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if not isinstance(config, dict):
        raise ValueError(f"{file} is not a JSON object")
    return config


def _special(entry: object) -> str:
    """Return the text of a special token, given as a string or as an object with `content`."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else ""


def _template(file: Path, config: dict[str, Any]) -> jinja2.Template | None:
    source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
    if not isinstance(source, str):
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ValueError(f"not a valid chat template: {error}") from None


def _message(message: Message) -> Message:
    """Return a message with its content as one text and its calls' arguments as objects."""
    prepared = {**message, "content": "\n".join(filter(None, texts_of(message.get("content"))))}
    if prepared.get("role") == "developer":
        prepared["role"] = "system"
    if calls := message.get("tool_calls"):
        prepared["tool_calls"] = [
            {**call, "function": _function(call["function"])} for call in calls
        ]
    return prepared


def _function(function: Message) -> Message:
    # Engines do not keep the client's field order; theirs comes from OpenAI's library models.
    return {"arguments": json.loads(function["arguments"]), "name": function["name"]}


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
