"""The usual tokenization: a chat template renders a conversation, and a tokenizer the text.

Of chats with images and the like, only engines know what they make of an image, but up to the first
one a prompt is text. To find where that text ends, two renderings of the chat are compared: with
the image, and with a word in its place. Both are the same up to there.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, AnyStr
from uuid import uuid4

import jinja2

from router.api.endpoints import Endpoint, Prompted
from router.rendering.anthropic import chat_of_messages, effort_for_none, wants_system_first
from router.rendering.chat import Body, Chat, chat_of, conversation
from router.rendering.folder import BadFolder, ModelFolder
from router.rendering.messages import NOT_TEXT, Message, NotReproducible
from router.rendering.responses import chat_of_responses
from router.rendering.sandbox import TOO_DEEP
from router.rendering.template import ChatTemplate
from router.rendering.tokenizer import TextTokenizer
from router.rendering.tokens import ID_BYTES, MAX_PROMPT_CHARS, PromptHead, pack_ids

#: Parts that are not text, by type, and the type that engines show to templates (vLLM
#: renderers/chat_utils.py, `_parse_chat_message_content_part`).
_MEDIA = {
    "image_url": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
}
#: Fields allowed in a message with such parts: others could change how it is read.
_PLAIN = frozenset(("role", "content", "name"))
#: Placeholder for media: a random word that nobody else has written.
_WORD = uuid4().hex
#: Token-like text that represents an image in a prompt: `<|image_pad|>`, `[IMG]`.
_TOKENS = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")
#: Most characters that a template may make of one character of the request, plus a margin.
_MAX_GROWTH, _GROWTH_MARGIN_CHARS = 4, 1 << 20


class TemplateRenderer:
    """Tokenizes as engines do for a model with a `tokenizer.json`."""

    def __init__(
        self,
        folder: ModelFolder,
        tokenizer: TextTokenizer,
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
        self.short = tokenizer.short
        self.dated = any(template is not None and template.dated for template in templates)
        try:
            self._system_first = any(
                template is None or wants_system_first(template.text) for template in templates
            )
            self._unthinking = effort_for_none(self._plain, self._keywords)
        except NotReproducible:
            raise BadFolder(
                f"the chat template in {folder.path} makes too much of a few words"
            ) from None

    def chat(self, endpoint: Endpoint, fields: Body, size: int) -> bytes:
        """Return the ids of a chat in any dialect whose body has `size` bytes.

        Raises NotReproducible.
        """
        match endpoint.prompted:
            case Prompted.RESPONSES:
                chat = chat_of_responses(fields)
            case Prompted.MESSAGES:
                first, unthinking = self._system_first, self._unthinking
                chat = chat_of_messages(fields, system_first=first, unthinking=unthinking)
            case _:
                chat = chat_of(fields)
        if chat.ids is not None:
            return pack_ids(chat.ids)
        template = self._template(chat)
        messages = conversation(chat.messages, parts=template.wants_parts)
        return self.text(self._rendered(template, chat, messages, size), special=chat.special)

    def head(self, endpoint: Endpoint, fields: Body, size: int) -> PromptHead:
        """Return what is known of a chat with images and the like. Raises NotReproducible."""
        if endpoint.prompted is not Prompted.CHAT:
            raise NotReproducible(NOT_TEXT)
        fields, count = _words_for_media(fields)
        chat = chat_of(fields)
        template = self._template(chat)
        if chat.ids is not None or chat.continue_final_message or not template.wants_parts:
            # With a template that takes texts, only the engine knows where it puts an image.
            raise NotReproducible(NOT_TEXT)
        messages = conversation(chat.messages, parts=True)
        with_all, with_first, with_none = (
            self._rendered(template, chat, _media_for_words(messages, most), size)
            for most in (count, 1, 0)
        )
        before = self.text(
            _text_before_media(with_first, with_all, with_none), special=chat.special
        )
        whole = self.text(with_all, special=chat.special)
        same = _same_start(before, whole) // ID_BYTES * ID_BYTES
        return PromptHead(whole[:same], len(whole) // ID_BYTES, count)

    def _template(self, chat: Chat) -> ChatTemplate:
        if self._own_program:
            raise NotReproducible("a prompt program of its own")
        template = self._plain if chat.tools is None else self._tooled
        if template is None:
            raise NotReproducible("no chat template")
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
            max_chars=min(_MAX_GROWTH * size + _GROWTH_MARGIN_CHARS, MAX_PROMPT_CHARS),
        )

    def text(self, text: str, *, special: bool) -> bytes:
        """Return the ids of a text; with `special`, with BOS. Raises NotReproducible."""
        if self._own_tokenizer:
            raise NotReproducible("a tokenizer of its own")
        try:
            return self._tokenizer.encode(text, special=special)
        except Exception:  # noqa: BLE001 - lone surrogates, and whatever a library may find
            raise NotReproducible("not tokenized") from None


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


def _words_for_media(fields: Body) -> tuple[Body, int]:
    """Return the request with words in place of media, and their number. Raises NotReproducible."""
    given = fields.get("messages")
    messages, count = [], 0
    for message in given if isinstance(given, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list) or not any(map(_is_medium, content)):
            messages.append(message)
            continue
        media = list(filter(_is_medium, content))
        usual = (part.keys() == {"type", part["type"]} and part[part["type"]] for part in media)
        if not all(usual) or not message.keys() <= _PLAIN:
            raise NotReproducible(NOT_TEXT)
        words = [
            {"type": "text", "text": _WORD + _MEDIA[part["type"]]} if _is_medium(part) else part
            for part in content
        ]
        messages.append({**message, "content": words})
        count += len(media)
    if not count:
        raise NotReproducible(NOT_TEXT)
    return {**fields, "messages": messages}, count


def _is_medium(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in _MEDIA


def _media_for_words(conversation: Sequence[Message], most: int) -> list[Message]:
    """Return a conversation with its first `most` words turned back into media."""
    left = iter(range(most))

    def medium(part: Mapping[str, Any]) -> Mapping[str, Any]:
        is_word = str(part.get("text", "")).startswith(_WORD)
        return {"type": part["text"][len(_WORD) :]} if is_word and next(left, -1) >= 0 else part

    return [
        {**message, "content": list(map(medium, message["content"]))}
        if isinstance(message["content"], list)
        else message
        for message in conversation
    ]


def _text_before_media(with_first: str, with_all: str, with_none: str) -> str:
    """Return the text before the first of the media. Raises NotReproducible.

    `with_first` is the prompt with only the first of the media, `with_all` with all of them, and
    `with_none` with words only.
    """
    place = with_none.find(_WORD)
    if place < 0:
        raise NotReproducible(NOT_TEXT)
    before = (
        with_none[:place]
        if with_first.startswith(with_none[:place])
        else with_none[: _same_start(with_first, with_none)]
    )
    after = with_none[place + len(_WORD) :]
    shown = with_first[len(before) : len(with_first) - _same_start(with_first[::-1], after[::-1])]
    tokens = _TOKENS.findall(shown)
    # A user may have written the image's token: engines could take that for the first image.
    if not tokens or any(token in before for token in tokens) or not with_all.startswith(before):
        raise NotReproducible(NOT_TEXT)
    return before


def _same_start(first: AnyStr, second: AnyStr) -> int:
    """Return the length of the common prefix, by bisection: comparing slices is fast."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
