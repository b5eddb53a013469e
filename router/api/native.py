"""Requests in another form than OpenAI's: engines' own endpoints, and those of other APIs.

What the router reads of them is put where OpenAI's requests have it; what has no place there is
kept in `Native`.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from router.api.errors import BadRequest
from router.api.messages import MAX_ENTRIES, UNEXPECTED, Message, Unread, entries, is_list, messages

#: Fields that make the engine see another prompt for the same text or tokens.
BESIDE: Final = (
    "features",
    "content_parts",
    "image_data",
    "video_data",
    "audio_data",
    "input_embeds",
    "images",
    "inputs",
    "mm_hashes",
    "session_params",
    "lora_path",
    "extra_key",
)
#: Those that hold images, sounds and the like, with names of other endpoints that have no prompt.
_MEDIA: Final = (
    "content_parts",
    "image_data",
    "video_data",
    "audio_data",
    "images",
    "audio",
    "videos",
)
#: Where a prompt is, besides the names that OpenAI's requests have.
_PROMPTS: Final = ("text", "input_ids", "token_ids", "texts")
_SAMPLING: Final = ("sampling_params", "options")

_Read: Any = msgspec.defstruct(
    "_Read",
    [
        (name, Raw, Raw())
        for name in dict.fromkeys(
            (*BESIDE, *_MEDIA, *_PROMPTS, *_SAMPLING, "prompt", "input", "messages", "system")
        )
    ],
)


class _Sampling(msgspec.Struct):
    """The limits in `sampling_params`, or Ollama's `options`."""

    n: Raw = Raw()
    max_tokens: Raw = Raw()
    max_new_tokens: Raw = Raw()
    num_predict: Raw = Raw()


class _Features(msgspec.Struct):
    mm_hashes: dict[str, Raw] = {}


_features = msgspec.json.Decoder(_Features).decode
_read = msgspec.json.Decoder(_Read).decode
_sampling = msgspec.json.Decoder(_Sampling).decode
_number = msgspec.json.Decoder(int | float | str | None).decode
_text = msgspec.json.Decoder(str).decode
_lengths: Final = ("max_tokens", "max_new_tokens", "num_predict")


class Native:
    """What is read of a request in another form."""

    __slots__ = ("beside", "further", "media", "names", "others", "replaced")

    def __init__(self) -> None:
        self.replaced: dict[str, Any] = {}
        """The fields of OpenAI's requests that these have under other names."""
        self.names: dict[str, str] = {}
        """Those other names."""
        self.beside: dict[str, Raw] = {}
        """Fields that distinguish the prompt from others of the same text or tokens."""
        self.media: dict[str, int] = {}
        """Number of images, sounds and the like in each field but messages and documents."""
        self.others: list[Message | Unread] = []
        """The messages of all conversations but the first."""
        self.further = 0
        """Number of those conversations."""


def native(body: bytes, sources: Sequence[str], *, batched: bool, after_system: bool) -> Native:
    """Read what is in another form in a body that was parsed. Raises BadRequest.

    `sources` are the names that the prompt may have, `batched` whether `messages` are lists of
    messages, `after_system` whether `system` precedes the prompt.
    """
    result = Native()
    try:
        read = _read(body)
    except UNEXPECTED as error:
        raise BadRequest(f"The request body is not valid JSON: {error}.") from None
    source = next((name for name in sources if is_given(getattr(read, name))), "")
    if source:
        raw = getattr(read, source)
        result.names = dict.fromkeys(("prompt", "input"), source)
        result.replaced = {
            "prompt": _after(read.system, raw) if after_system else raw,
            "input": raw,
        }
    result.beside = {name: raw for name in BESIDE if is_given(raw := getattr(read, name))}
    result.media = {name: _count(getattr(read, name)) for name in _MEDIA}
    result.media["features"] = _hashed(read.features)
    for name in _SAMPLING:
        _limits(result, name, getattr(read, name))
    if batched:
        _conversations(result, read.messages)
    return result


def is_given(raw: Raw) -> bool:
    """Whether a field is there, and not null."""
    return len(raw) > 0 and bytes(memoryview(raw)[:4]) != b"null"


def _after(system: Raw, prompt: Raw) -> Raw:
    """Return the prompt as SGLang makes it (srt/entrypoints/ollama/serving.py)."""
    try:
        return Raw(msgspec.json.encode(f"{_text(system)}\n\n{_text(prompt)}")) if system else prompt
    except UNEXPECTED:
        return prompt


def _limits(result: Native, name: str, raw: Raw) -> None:
    """Take over the largest limits in parameters for one prompt, or in a list of such."""
    if not is_given(raw):
        return
    listed = entries(raw)
    if listed is None and is_list(raw):
        raise BadRequest(f"`{name}` has more entries than can be read.", param=name)
    for parameters in [raw] if listed is None else listed:
        if bytes(memoryview(parameters)[:1]) != b"{":
            continue  # the worker refuses it
        try:
            sampling = _sampling(parameters)
        except UNEXPECTED as error:
            raise BadRequest(f"`{name}` cannot be read: {error}.", param=name) from None
        _larger(result, "n", f"{name}.n", sampling.n)
        for length in _lengths:
            _larger(result, "max_tokens", f"{name}.{length}", getattr(sampling, length))


def _larger(result: Native, field: str, name: str, raw: Raw) -> None:
    if not raw:
        return
    try:
        number = float(_number(raw) or 0)
    except (*UNEXPECTED, ValueError, OverflowError):
        return  # the worker refuses it
    if number > result.replaced.get(field, 0):
        result.replaced[field] = int(number) if number < 1 << 53 else number
        result.names[field] = name


def _count(raw: Raw) -> int:
    """Count the media in a field: one, a list of some, or one of those for each prompt."""
    if not is_given(raw):
        return 0
    if not is_list(raw):
        return 1
    return sum([len(_entries(item)) if is_list(item) else is_given(item) for item in _entries(raw)])


def _hashed(features: Raw) -> int:
    """Count the media that were rendered before (vllm/entrypoints/scale_out)."""
    try:
        hashes = _features(features).mm_hashes if features else {}
    except UNEXPECTED:
        return 0
    return sum([len(_entries(listed)) for listed in hashes.values()])


def _entries(raw: Raw) -> list[Raw]:
    items = entries(raw)
    if items is None:
        raise BadRequest("The request has more images and the like than can be read.")
    return items


def _conversations(result: Native, raw: Raw) -> None:
    """Read a list of conversations; the first one is where chats have theirs."""
    result.replaced["messages"] = []
    count = 0
    for place, conversation in enumerate(entries(raw) or ()):
        listed = messages(conversation)
        count += len(listed)
        if count > MAX_ENTRIES:
            raise BadRequest("The request has more messages than can be read.", param="messages")
        if place:
            result.others += listed
            result.further = place
        else:
            result.replaced["messages"] = listed
