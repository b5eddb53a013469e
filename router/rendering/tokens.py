"""A request's prompt as the token ids that its engine will compute, for one model. Pure.

What is read the same way for every kind of tokenizer is here: the body's fields, prompts that are
text or ids, and whether the tools of a request with `tool_choice: none` are in its prompt. Engines
write these into the prompt, unless started with `--exclude-tools-when-tool-choice-none` (vLLM
renderers/online_renderer.py, `render_chat`, and openai/responses/utils.py, `construct_tool_dicts`).
"""

from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from router.api.endpoints import Endpoint, Prompted
from router.api.native import BESIDE
from router.rendering.chat import Body, flag
from router.rendering.messages import NOT_TEXT, Json, NotReproducible, check_values
from router.runtime.threads import BYTES, rest

#: Bytes of a packed id.
ID_BYTES = 4
#: Longest prompt that is tokenized, in characters: a million tokens of most languages. Also the
#: longest request read for that, in bytes, unless it has images and the like. The slowest input for
#: tokenizers, one letter repeated, takes two seconds at this length.
MAX_PROMPT_CHARS = 4 << 20
#: Strings that occur in requests with images and the like.
_MEDIA_MARKS = (b"image_url", b"audio_url", b"video_url", b"input_audio")

_decode = msgspec.json.Decoder().decode


class TextPrompt(NamedTuple):
    """A prompt that is text."""

    text: str
    special: bool
    """Whether the tokenizer adds BOS and the like."""


def decode_fields(body: bytes) -> Body:
    """Return a request's fields. Raises NotReproducible."""
    check_values(body)
    try:
        fields = _decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise NotReproducible("not understood") from None
    if not isinstance(fields, dict):
        raise NotReproducible("not understood")
    if fields.get("truncate_prompt_tokens") is not None:
        raise NotReproducible("truncated by the engine")
    return fields


def tokenizable_fields(endpoint: Endpoint, body: bytes) -> Body:
    """Return the fields of a request whose tokens can be made; of its conversations, the first.

    Raises NotReproducible.
    """
    if not endpoint.exact:
        raise NotReproducible("a dialect that is not tokenized")
    fields = decode_fields(body)
    if not endpoint.batched:
        return fields
    batch = fields.get("messages")
    if not isinstance(batch, list) or not batch or not isinstance(batch[0], list):
        raise NotReproducible("not understood")
    return {**fields, "messages": batch[0]}


def text_or_ids(fields: Body, endpoint: Endpoint) -> TextPrompt | bytes:
    """Return the text or the packed ids of a request without messages.

    Of several prompts it is the first. Raises NotReproducible.
    """
    if fields.get("prompt_embeds") is not None:
        raise NotReproducible("embeddings")
    if fields.get("suffix") is not None:
        raise NotReproducible("a suffix")
    if endpoint.native and any(fields.get(name) is not None for name in BESIDE):
        raise NotReproducible(NOT_TEXT)
    values = (fields[name] for name in endpoint.sources if fields.get(name) is not None)
    prompt = given = next(values, None)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and given:
        return TextPrompt(prompt, flag(fields, "add_special_tokens", default=True))
    return pack_ids(prompt)


def pack_ids(ids: Json) -> bytes:
    """Pack a list of ids as 32-bit integers, little-endian. Raises NotReproducible."""
    if not ids:
        raise NotReproducible("no prompt")
    if not isinstance(ids, list) or bool in set(map(type, ids)):
        raise NotReproducible("odd token ids")
    try:
        return array("I", ids).tobytes()
    except (TypeError, OverflowError):
        raise NotReproducible("odd token ids") from None


NO_TOOLS_CHOICE = "none"
#: Why a chat with such tools is keyed by its text until the workers were asked.
UNKNOWN_TOOLS = "tools that engines may leave out"


def without_unused_tools(fields: Body, *, left_out: bool | None) -> Body:
    """Return a chat in any dialect, without its tools if the engine leaves them out.

    `left_out` says whether it does; None: not known. Raises NotReproducible.
    """
    if left_out is False or not fields.get("tools"):
        return fields
    choice = fields.get("tool_choice")
    if isinstance(choice, dict):  # as in `/v1/messages`
        choice = choice.get("type")
    if choice != NO_TOOLS_CHOICE:
        return fields
    if left_out is None:
        raise NotReproducible(UNKNOWN_TOOLS)
    return {name: value for name, value in fields.items() if name != "tools"}


class PromptHead(NamedTuple):
    """What is known of a prompt with media."""

    ids: bytes
    """Ids before the first of the media, 32 bits each, little-endian."""
    tokens: int
    """Number of tokens of the whole prompt, with each of the media counted only as its text."""
    media: int
    """Number of media."""


class Renderer(Protocol):
    """How the engines of one model make tokens. May be used by several threads at once.

    Its methods raise NotReproducible.
    """

    @property
    def short(self) -> int:
        """Largest request, in bytes, that is tokenized on the event loop."""

    @property
    def dated(self) -> bool:
        """Return true if prompts may contain the time, by the engine's clock and time zone."""

    def chat(self, endpoint: Endpoint, fields: Body, size: int) -> bytes:
        """Return the ids of a chat in any dialect whose body has `size` bytes."""

    def head(self, endpoint: Endpoint, fields: Body, size: int) -> PromptHead:
        """Return what is known of a chat with images and the like."""

    def text(self, text: str, *, special: bool) -> bytes:
        """Return the ids of a text of at most `MAX_PROMPT_CHARS`; with `special`, BOS too."""


class PromptTokenizer:
    """Computes one model's tokens. May be used by several threads at once."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.short = renderer.short
        """Largest request, in bytes, that is tokenized on the event loop."""
        self.dated = renderer.dated
        """Whether prompts may contain the time: ours may differ from the engine's."""

    def ids(self, endpoint: Endpoint, body: bytes, *, left_out: bool | None = False) -> bytes:
        """Return the prompt's ids, 32 bits each, little-endian. Raises NotReproducible.

        `left_out`: whether the engine leaves out tools with `tool_choice: none`; None: not known.
        """
        if len(body) > MAX_PROMPT_CHARS:
            raise NotReproducible(NOT_TEXT if _has_media(body) else "too long")
        fields = tokenizable_fields(endpoint, body)
        match endpoint.prompted:
            case Prompted.COMPLETION | Prompted.INPUT:
                prompt = text_or_ids(fields, endpoint)
                if isinstance(prompt, bytes):
                    return prompt
                return self._renderer.text(prompt.text, special=prompt.special)
            case Prompted.NOTHING:
                raise NotReproducible("no prompt")
        fields = without_unused_tools(fields, left_out=left_out)
        return self._renderer.chat(endpoint, fields, len(body))

    def head(self, endpoint: Endpoint, body: bytes, *, left_out: bool | None = False) -> PromptHead:
        """Return what is known of a chat with images and the like. Raises NotReproducible."""
        fields = without_unused_tools(tokenizable_fields(endpoint, body), left_out=left_out)
        return self._renderer.head(endpoint, fields, len(body))


def _has_media(body: bytes) -> bool:
    for start in range(0, len(body), BYTES):
        piece = body[start : start + BYTES + max(map(len, _MEDIA_MARKS))]
        if any(name in piece for name in _MEDIA_MARKS):
            return True
        rest()
    return False


@dataclass(frozen=True, eq=False)
class LoadedTokenizer:
    """The result of a folder, a template and keywords; equal ones are the same object."""

    path: Path
    """A folder that it was read from."""
    exact: PromptTokenizer
    library: str
    """The name of the library that tokenizes."""
    why: str
    """Why that library was chosen."""
    opened: object
    """What it shares with others that differ in template or keywords."""
    sure: bool = True
    """Whether engines read the same; otherwise a worker has to confirm it."""
