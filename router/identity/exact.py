"""A request's prompt as the ids that its engine will compute, for one model."""

from array import array
from collections.abc import Mapping
from typing import Any

import jinja2
import msgspec

from router.identity.chat import Chat, chat_of, flag
from router.identity.conversation import conversation
from router.identity.decoded import Json
from router.identity.dialects import chat_of_messages
from router.identity.folder import BadFolder, ModelFolder
from router.identity.items import chat_of_responses
from router.identity.probing import effort_for_none, wants_system_first
from router.identity.template import ChatTemplate
from router.identity.tokenizer import Tokenizer
from router.identity.unlike import Unlike
from router.openai import Endpoint, Prompted

_decode = msgspec.json.Decoder().decode
#: Characters of the longest prompt that is tokenized: a million tokens of most languages. What
#: tokenizers are slow with, a letter over and over, takes two seconds then.
LONGEST = 4 << 20
#: Characters that a template may make of one character of the request, at most, and some more.
_GROWTH, _MARGIN = 4, 1 << 20

Body = Mapping[str, Any]


class Exact:
    """Knows one model's tokens. May be used by several threads at once."""

    def __init__(
        self,
        folder: ModelFolder,
        tokenizer: Tokenizer,
        *,
        keywords: Mapping[str, Any] | None = None,
    ) -> None:
        """`keywords` are those that the engine gives every template. Raises BadFolder."""
        self._tokenizer = tokenizer
        self._keywords = dict(keywords or {})
        self._own_program = folder.own_program
        self._own_tokenizer = folder.own_tokenizer
        self._plain = _template(folder, with_tools=False)
        self._tooled = _template(folder, with_tools=True)
        templates = (self._plain, self._tooled)
        self._system_first = any(one is None or wants_system_first(one.text) for one in templates)
        self._unthinking = effort_for_none(self._plain, self._keywords)

    @property
    def short(self) -> int:
        """Bytes of a request that may be tokenized while others wait."""
        return self._tokenizer.short

    def ids(self, endpoint: Endpoint, body: bytes) -> bytes:
        """Return the prompt's ids, 32 bits each, lowest byte first. Raises Unlike."""
        try:
            asked = _decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise Unlike("not understood") from None
        if not isinstance(asked, dict):
            raise Unlike("not understood")
        if asked.get("truncate_prompt_tokens") is not None:
            raise Unlike("truncated by the engine")
        match endpoint.prompted:
            case Prompted.CHAT:
                chat = chat_of(asked)
            case Prompted.RESPONSES:
                chat = chat_of_responses(asked)
            case Prompted.MESSAGES:
                chat = chat_of_messages(
                    asked, system_first=self._system_first, unthinking=self._unthinking
                )
            case Prompted.COMPLETION:
                return self._plain_text(asked, "prompt")
            case Prompted.INPUT:
                return self._plain_text(asked, "input")
            case Prompted.NOTHING:
                raise Unlike("no prompt")
        return self._chat(chat, len(body))

    def _chat(self, chat: Chat, size: int) -> bytes:
        if chat.ids is not None:
            return _packed(chat.ids)
        if self._own_program:
            raise Unlike("a prompt program of its own")
        template = self._plain if chat.tools is None else self._tooled
        if template is None:
            raise Unlike("no chat template")
        text = template.render(
            conversation(chat.messages, parts=template.wants_parts),
            tools=chat.tools,
            documents=chat.documents,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            more={**self._keywords, **_more(chat)},
            limit=_GROWTH * size + _MARGIN,
        )
        return self._encode(text, special=chat.special)

    def _plain_text(self, asked: Body, field: str) -> bytes:
        if asked.get("prompt_embeds") is not None:
            raise Unlike("embeddings")
        if asked.get("suffix") is not None:
            raise Unlike("a suffix")
        prompt = asked.get(field)
        if not prompt:
            raise Unlike("no prompt")
        if isinstance(prompt, list) and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self._encode(prompt, special=flag(asked, "add_special_tokens", default=True))
        return _packed(prompt)

    def _encode(self, text: str, *, special: bool) -> bytes:
        if self._own_tokenizer:
            raise Unlike("a tokenizer of its own")
        if len(text) > LONGEST:
            raise Unlike("too long")
        try:
            return self._tokenizer.encode(text, special=special)
        except Exception:  # noqa: BLE001 - lone surrogates, and whatever a library may find
            raise Unlike("not tokenized") from None


def _template(folder: ModelFolder, *, with_tools: bool) -> ChatTemplate | None:
    text = folder.template(tools=with_tools)
    if text is None:
        return None
    try:
        return ChatTemplate(text, folder.special_tokens)
    except jinja2.TemplateError as error:
        raise BadFolder(f"the chat template in {folder.path} is not valid: {error}") from None


def _more(chat: Chat) -> dict[str, Any]:
    """Return keywords for the template: the request's, and what it implies."""
    more = dict(chat.keywords)
    if chat.effort is not None:
        more["reasoning_effort"] = chat.effort
        more.setdefault("enable_thinking", chat.effort != "none")
    # Engines take these two for "not set" (vLLM renderers/params.py, `merge_kwargs`).
    return {name: value for name, value in more.items() if value not in (None, "auto")}


def _packed(ids: Json) -> bytes:
    if not isinstance(ids, list) or bool in set(map(type, ids)):
        raise Unlike("odd token ids")
    try:
        return array("I", ids).tobytes()
    except (TypeError, OverflowError):
        raise Unlike("odd token ids") from None
