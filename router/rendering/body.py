"""The parts of a request's prompt that are read the same way for every kind of tokenizer.

Whether the tools of a request with `tool_choice: none` are in its prompt. Pure.

Engines write them into the prompt, unless started with `--exclude-tools-when-tool-choice-none`
(vLLM renderers/online_renderer.py, `render_chat`, and openai/responses/utils.py,
`construct_tool_dicts`).
"""

from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from router.api.endpoints import Endpoint
from router.api.native import BESIDE
from router.rendering.chat import flag
from router.rendering.errors import NOT_TEXT, Json, Unlike
from router.rendering.messages import check_things

Body = Mapping[str, Any]

#: Bytes of a packed id.
ID_BYTES = 4
#: Why prompts are not tokenized that engines make otherwise.
DIALECT = "a dialect that is not tokenized"

_decode = msgspec.json.Decoder().decode


class Text(NamedTuple):
    """A prompt that is text."""

    text: str
    special: bool
    """Whether the tokenizer adds BOS and the like."""


def decoded(body: bytes) -> Body:
    """Return a request's fields. Raises Unlike."""
    check_things(body)
    try:
        asked = _decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Unlike("not understood") from None
    if not isinstance(asked, dict):
        raise Unlike("not understood")
    if asked.get("truncate_prompt_tokens") is not None:
        raise Unlike("truncated by the engine")
    return asked


def readable(endpoint: Endpoint, body: bytes) -> Body:
    """Return the fields of a request whose tokens can be made; of its conversations, the first.

    Raises Unlike.
    """
    if not endpoint.exact:
        raise Unlike(DIALECT)
    asked = decoded(body)
    if not endpoint.batched:
        return asked
    batch = asked.get("messages")
    if not isinstance(batch, list) or not batch or not isinstance(batch[0], list):
        raise Unlike("not understood")
    return {**asked, "messages": batch[0]}


def plain(asked: Body, endpoint: Endpoint) -> Text | bytes:
    """Return the text or the packed ids of a request without messages.

    Of several prompts it is the first. Raises Unlike.
    """
    if asked.get("prompt_embeds") is not None:
        raise Unlike("embeddings")
    if asked.get("suffix") is not None:
        raise Unlike("a suffix")
    if endpoint.native and any(asked.get(name) is not None for name in BESIDE):
        raise Unlike(NOT_TEXT)
    given = (asked[name] for name in endpoint.sources if asked.get(name) is not None)
    prompt = found = next(given, None)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and found:
        return Text(prompt, flag(asked, "add_special_tokens", default=True))
    return packed(prompt)


def packed(ids: Json) -> bytes:
    """Pack a list of ids as 32-bit integers, little-endian. Raises Unlike."""
    if not ids:
        raise Unlike("no prompt")
    if not isinstance(ids, list) or bool in set(map(type, ids)):
        raise Unlike("odd token ids")
    try:
        return array("I", ids).tobytes()
    except (TypeError, OverflowError):
        raise Unlike("odd token ids") from None


NONE = "none"
#: Why a chat with such tools is keyed by its text until the workers were asked.
UNKNOWN = "tools that engines may leave out"


def chosen(asked: Body, *, left_out: bool | None) -> Body:
    """Return a chat in any dialect, without its tools if the engine leaves them out.

    `left_out` says whether it does; None: not known. Raises Unlike.
    """
    if left_out is False or not asked.get("tools"):
        return asked
    choice = asked.get("tool_choice")
    if isinstance(choice, dict):  # as in `/v1/messages`
        choice = choice.get("type")
    if choice != NONE:
        return asked
    if left_out is None:
        raise Unlike(UNKNOWN)
    return {name: value for name, value in asked.items() if name != "tools"}
