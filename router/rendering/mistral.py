"""Mistral's tokenizers: its own library tokenizes whole conversations, without a chat template.

Engines use it for models in Mistral's own format (vLLM tokenizers/mistral.py and
renderers/mistral.py; its `--tokenizer-mode mistral`), with the same library, `mistral-common`. It
is an extra, `warmroute[mistral]`, because it requires numpy and Pillow; PyTorch is not needed.
"""

from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from router.api.endpoints import Endpoint, Prompted
from router.rendering.chat import Body, Chat, chat_of, with_arguments
from router.rendering.folder import MAX_FILE_BYTES, BadFolder
from router.rendering.messages import NOT_TEXT, Json, Message, NotReproducible
from router.rendering.tokens import MAX_PROMPT_CHARS, PromptHead, pack_ids

if TYPE_CHECKING:
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

MistralsLibrary: TypeAlias = "MistralTokenizer[Any, Any, Any, Any, Any]"

#: The error if the library is not installed.
NOT_INSTALLED = "Mistral's tokenizers need the extra mistral: pip install 'warmroute[mistral]'"
#: Characters of a tool call's id that engines keep, counted from its end.
_ID = 9
#: First version of the conversation format that supports reasoning effort.
_EFFORTFUL = 15


class Mistral:
    """Tokenizes as engines do for a model in Mistral's format."""

    name = "mistral-common"
    short = 2 << 10
    dated = False

    def __init__(self, library: MistralsLibrary, keywords: Mapping[str, Any]) -> None:
        """`keywords` are those that engines give every template; only `reasoning_effort` matters
        here."""
        self._library = library
        self._effortful = int(library.version.value.lstrip("v").split("m")[0]) >= _EFFORTFUL
        self._effort = keywords.get("reasoning_effort")

    def chat(self, endpoint: Endpoint, fields: Body, size: int) -> bytes:
        """Return the ids of a chat whose body has `size` bytes. Raises NotReproducible."""
        if endpoint.prompted is not Prompted.CHAT:
            raise NotReproducible("a dialect that is not known of Mistral's tokenizers")
        chat = chat_of(fields)
        if chat.ids is not None:
            return pack_ids(chat.ids)
        if size > MAX_PROMPT_CHARS:
            raise NotReproducible("too long")
        if fields.get("chat_template_kwargs") is not None:
            raise NotReproducible("odd template keywords")
        _check_end(chat)
        try:
            return self._encoded(chat, fields["messages"])
        except NotReproducible:
            raise
        except Exception:  # noqa: BLE001 - that library refuses by all kinds of exceptions
            raise NotReproducible("refused by Mistral's library") from None

    def head(self, endpoint: Endpoint, fields: Body, size: int) -> PromptHead:  # noqa: ARG002 - the protocol's
        """Always raises NotReproducible: nothing is known of chats with images."""
        raise NotReproducible(NOT_TEXT)

    def text(self, text: str, *, special: bool) -> bytes:
        """Return the ids of a text; with `special`, with BOS. Raises NotReproducible."""
        try:
            ids = self._library.instruct_tokenizer.tokenizer.encode(text, bos=special, eos=False)
        except Exception:  # noqa: BLE001 - lone surrogates, and whatever a library may find
            raise NotReproducible("not tokenized") from None
        return array("I", ids).tobytes()

    def _encoded(self, chat: Chat, given: list[Json]) -> bytes:
        from mistral_common.protocol.instruct.request import ChatCompletionRequest  # noqa: PLC0415

        more = {}
        if self._effortful:
            more["reasoning_effort"] = chat.effort or self._effort
        request = ChatCompletionRequest.from_openai(
            messages=[_message(*pair) for pair in zip(given, chat.messages, strict=True)],
            tools=chat.tools,
            continue_final_message=chat.continue_final_message,
            **more,
        )
        return array("I", self._library.encode_chat_completion(request).tokens).tobytes()


def mistrals_library(path: Path) -> MistralsLibrary:
    """Open the tokenizer in a model's folder. Takes a second. Raises BadFolder."""
    try:
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer  # noqa: PLC0415
        from mistral_common.tokens.tokenizers.utils import (  # noqa: PLC0415
            get_one_valid_tokenizer_file,
        )
    except ImportError:
        raise BadFolder(NOT_INSTALLED) from None
    try:
        name = get_one_valid_tokenizer_file([file.name for file in path.iterdir()])
        if (path / name).stat().st_size > MAX_FILE_BYTES:
            raise BadFolder(f"{path / name} is over {MAX_FILE_BYTES >> 20} MiB")
        return MistralTokenizer.from_file(path / name)
    except BadFolder:
        raise
    except Exception as error:  # noqa: BLE001 - that library raises all kinds of exceptions
        message = str(error).split("\n")[0][:200]
        raise BadFolder(f"the tokenizer in {path} cannot be read: {message}") from None


def _check_end(chat: Chat) -> None:
    """Raise NotReproducible if the chat both continues an answer and starts one."""
    answered = chat.messages[-1]["role"] == "assistant"
    if chat.add_generation_prompt and (answered or chat.continue_final_message):
        raise NotReproducible("continues and begins a message")
    if chat.continue_final_message and not answered:
        raise NotReproducible("nothing to continue")


def _message(given: Json, read: Message) -> Message:
    """Return the message for the library, without the fields that it does not know."""
    role = read["role"]
    message: Message = {"role": role, "content": _content(given.get("content"))}
    if role == "assistant":
        message["tool_calls"] = [_call(call) for call in read.get("tool_calls") or ()]
        message["reasoning"] = read.get("reasoning")
    if role == "tool":
        message["tool_call_id"] = read["tool_call_id"][-_ID:]
        message["name"] = read.get("name")
    return message


def _content(given: Json) -> Json:
    """Return text, or a list of text parts: the library treats these two differently."""
    if given is None or isinstance(given, str):
        return given
    if not all(isinstance(part, dict) and part.get("type") == "text" for part in given):
        raise NotReproducible(NOT_TEXT)
    return [{"type": "text", "text": part.get("text")} for part in given]


def _call(given: Message) -> Message:
    # Engines have parsed the arguments before this (vLLM chat_utils.py, `_postprocess_messages`).
    return {**with_arguments(given), "id": given["id"][-_ID:]}
