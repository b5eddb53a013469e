"""The usual tokenization: a chat template renders a conversation, and a tokenizer the text."""

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from router.api.endpoints import Endpoint, Prompted
from router.rendering import tokens as media
from router.rendering.anthropic import chat_of_messages, effort_for_none, wants_system_first
from router.rendering.body import ID_BYTES, Body, packed
from router.rendering.chat import Chat, chat_of, conversation
from router.rendering.errors import NOT_TEXT, Unlike
from router.rendering.folder import BadFolder, ModelFolder
from router.rendering.messages import Message
from router.rendering.responses import chat_of_responses
from router.rendering.template import TOO_DEEP, ChatTemplate
from router.rendering.tokenizer import TextTokenizer as Tokenizer
from router.rendering.tokens import LONGEST, Head

#: Most characters that a template may make of one character of the request, plus a margin.
_GROWTH, _MARGIN = 4, 1 << 20


class Templated:
    """Tokenizes as engines do for a model with a `tokenizer.json`."""

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
    def dated(self) -> bool:
        """Whether prompts may contain the time."""
        return any(one is not None and one.dated for one in (self._plain, self._tooled))

    @property
    def short(self) -> int:
        """Largest request, in bytes, that is tokenized on the event loop."""
        return self._tokenizer.short

    def chat(self, endpoint: Endpoint, asked: Body, size: int) -> bytes:
        """Return the ids of a chat in any dialect whose body has `size` bytes. Raises Unlike."""
        chat = self._chat(endpoint, asked)
        if chat.ids is not None:
            return packed(chat.ids)
        template = self._template(chat)
        messages = conversation(chat.messages, parts=template.wants_parts)
        return self.text(self._rendered(template, chat, messages, size), special=chat.special)

    def head(self, endpoint: Endpoint, asked: Body, size: int) -> Head:
        """Return what is known of a chat with images and the like. Raises Unlike."""
        if endpoint.prompted is not Prompted.CHAT:
            raise Unlike(NOT_TEXT)
        asked, count = media.with_words(asked)
        chat = chat_of(asked)
        template = self._template(chat)
        if chat.ids is not None or chat.continue_final_message or not template.wants_parts:
            raise Unlike(NOT_TEXT)  # with a template that takes texts, only the engine knows
        messages = conversation(chat.messages, parts=True)
        all_, one, none = (
            self._rendered(template, chat, media.with_media(messages, most), size)
            for most in (count, 1, 0)
        )
        before = self.text(media.head(one, all_, none), special=chat.special)
        whole = self.text(all_, special=chat.special)
        same = media.same_start(before, whole) // ID_BYTES * ID_BYTES
        return Head(whole[:same], len(whole) // ID_BYTES, count)

    def _template(self, chat: Chat) -> ChatTemplate:
        if self._own_program:
            raise Unlike("a prompt program of its own")
        template = self._plain if chat.tools is None else self._tooled
        if template is None:
            raise Unlike("no chat template")
        return template

    def _rendered(
        self, template: ChatTemplate, chat: Chat, messages: Sequence[Message], size: int
    ) -> str:
        return template.render(
            messages,
            tools=chat.tools,
            documents=chat.documents,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            more={**self._keywords, **_more(chat)},
            limit=min(_GROWTH * size + _MARGIN, LONGEST),
        )

    def text(self, text: str, *, special: bool) -> bytes:
        """Return the ids of a text; with `special`, with BOS. Raises Unlike."""
        if self._own_tokenizer:
            raise Unlike("a tokenizer of its own")
        try:
            return self._tokenizer.encode(text, special=special)
        except Exception:  # noqa: BLE001 - lone surrogates, and whatever a library may find
            raise Unlike("not tokenized") from None

    def _chat(self, endpoint: Endpoint, asked: Body) -> Chat:
        match endpoint.prompted:
            case Prompted.RESPONSES:
                return chat_of_responses(asked)
            case Prompted.MESSAGES:
                return chat_of_messages(
                    asked, system_first=self._system_first, unthinking=self._unthinking
                )
        return chat_of(asked)


def _template(folder: ModelFolder, *, with_tools: bool) -> ChatTemplate | None:
    text = folder.template(tools=with_tools)
    if text is None:
        return None
    try:
        return ChatTemplate(text, folder.special_tokens)
    except jinja2.TemplateError as error:
        raise BadFolder(f"the chat template in {folder.path} is not valid: {error}") from None
    except TOO_DEEP:
        raise BadFolder(f"the chat template in {folder.path} is nested too deeply") from None


def _more(chat: Chat) -> dict[str, Any]:
    """Return keywords for the template: those of the request, and those that it implies."""
    more = dict(chat.keywords)
    if chat.effort is not None:
        more["reasoning_effort"] = chat.effort
        more.setdefault("enable_thinking", chat.effort != "none")
    # Engines treat these two as "not set" (vLLM renderers/params.py, `merge_kwargs`).
    return {name: value for name, value in more.items() if value not in (None, "auto")}
