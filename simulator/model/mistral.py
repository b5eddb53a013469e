"""Models in Mistral's own format, whose library encodes conversations without a chat template.

Engines read such folders the same way (vLLM `tokenizers/mistral.py`). The library is an extra,
`warmroute[mistral]`.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from simulator.http.errors import bad_request
from simulator.model.answers import Voice, ring
from simulator.model.conversation import Conversation, Message, prepared_tools
from simulator.model.tokens import TYPECODE

_FILES = ("tekken.json", "tokenizer.model.v*")
#: Engines keep this many characters of a tool call's id, the last ones.
_ID = 9


def is_mistrals(path: Path) -> bool:
    """Whether to read a folder in Mistral's format.

    If the folder also holds a `tokenizer.json`, only when Mistral's `params.json` is there too.
    """
    if not any(any(path.glob(name)) for name in _FILES):
        return False
    return (path / "params.json").is_file() or not (path / "tokenizer.json").is_file()


class Mistral:
    """The `Language` of a Mistral model. Raises ValueError if the folder cannot be read."""

    def __init__(self, path: Path) -> None:
        try:
            from mistral_common.tokens.tokenizers.mistral import MistralTokenizer  # noqa: PLC0415
        except ImportError:
            raise ValueError(
                f"the tokenizer in {path} is read by Mistral's own library:"
                " pip install 'warmroute[mistral]'"
            ) from None
        file = next(file for name in _FILES for file in sorted(path.glob(name), reverse=True))
        try:
            library = MistralTokenizer.from_file(file)
        except Exception as error:  # noqa: BLE001 - that library raises all kinds of exceptions
            raise ValueError(f"{file} cannot be read: {str(error)[:200]}") from None
        self._library = library
        self._tokenizer = library.instruct_tokenizer.tokenizer
        self.top = self._tokenizer.n_words - 1
        self.voice: Voice = ring(self._pieces)

    def tokenize(self, text: str, *, special: bool = True) -> array[int]:
        """Token ids of a text, including BOS if `special`."""
        try:
            return array(TYPECODE, self._tokenizer.encode(text, bos=special, eos=False))
        except Exception as error:  # noqa: BLE001 - for lone surrogates, for example
            raise bad_request(f"The prompt cannot be tokenized: {error}") from None

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of token ids."""
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy  # noqa: PLC0415

        return self._tokenizer.decode(list(tokens), SpecialTokenPolicy.KEEP)

    def strings(self, tokens: Iterable[int]) -> list[str]:
        """Each token as the vocabulary spells it."""
        return [self._tokenizer.id_to_piece(token) for token in tokens]

    def chat(self, asked: Conversation) -> array[int]:
        """Token ids of a conversation as the library encodes it."""
        from mistral_common.protocol.instruct.request import ChatCompletionRequest  # noqa: PLC0415

        answered = asked.messages[-1].get("role") == "assistant" if asked.messages else False
        if asked.add_generation_prompt and (answered or asked.continue_final_message):
            raise bad_request("An answer cannot be there and begun.")
        if asked.continue_final_message and not answered:
            raise bad_request("There is no answer to continue.")
        messages = [_message(message) for message in asked.messages]
        try:
            request = ChatCompletionRequest.from_openai(
                messages=messages,
                tools=prepared_tools(asked.tools),
                continue_final_message=asked.continue_final_message,
            )
            return array(TYPECODE, self._library.encode_chat_completion(request).tokens)
        except Exception as error:  # noqa: BLE001 - that library raises all kinds of exceptions
            raise bad_request(str(error)) from None

    def _pieces(self, text: str) -> list[tuple[int, bytes]]:
        """The tokens of an ASCII text, each with what it adds to the text."""
        ids = self._tokenizer.encode(text, bos=False, eos=False)
        texts = [self._tokenizer.decode(ids[:end]) for end in range(len(ids) + 1)]
        return [(token, texts[at + 1][len(texts[at]) :].encode()) for at, token in enumerate(ids)]


def _message(given: Message) -> Message:
    made: Message = {"role": given.get("role"), "content": given.get("content")}
    match made["role"]:
        case "assistant":
            made["tool_calls"] = [_call(call) for call in given.get("tool_calls") or ()]
            made["reasoning"] = given.get("reasoning", given.get("reasoning_content"))
        case "tool":
            made["tool_call_id"] = str(given.get("tool_call_id", ""))[-_ID:]
            made["name"] = given.get("name")
    return made


def _call(given: Any) -> Message:  # noqa: ANN401 - any JSON value
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict):
        raise bad_request("Only calls of functions are known.", "tool_calls")
    try:
        arguments = json.loads(str(function.get("arguments")))
    except ValueError:
        arguments = {}
    inner = {**function, "arguments": arguments if isinstance(arguments, dict) else {}}
    return {**given, "function": inner, "id": str(given.get("id", ""))[-_ID:]}
