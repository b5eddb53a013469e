"""The parts of a message's content that are text."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from router.rendering.decoded import Json
from router.rendering.errors import NOT_TEXT, Unlike

#: Types of parts that are text, and the field that holds it.
_TEXTS = {
    "text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "input_text": "text",
    "output_text": "text",
}
#: Kinds for which engines have a pydantic model.
_MODELLED = frozenset(("text", "refusal", "thinking"))
#: Kinds that are skipped if their text is null.
_NULLABLE = frozenset(("text", "refusal"))
#: Fields that engines know, for parts of any kind; all others reach the template.
_KNOWN = frozenset(
    ("closed", "data", "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type")
)
#: Fields that may make a part something other than text.
_ELSE = frozenset(
    (
        "audio_embeds",
        "audio_url",
        "file",
        "image_embeds",
        "image_pil",
        "image_url",
        "input_audio",
        "uuid",
        "video_embeds",
        "video_url",
    )
)
#: The kind of a part that is a bare string.
BARE = "a string"


class Part(NamedTuple):
    """One text of a message's content."""

    kind: str
    text: str | None
    """None if the part is to be skipped."""
    more: Mapping[str, Any] = {}
    """Fields that engines do not know."""
    proper: bool = True
    """Whether engines have a model for this kind, and it accepts this part."""


def read_parts(content: Json) -> tuple[list[Part], int]:
    """Return the texts of a content, and how many of their fields are counted. Raises Unlike."""
    if content is None:
        return [], 0
    if isinstance(content, str):
        return [Part("text", content)], 0
    if not isinstance(content, list):
        raise Unlike("odd contents")
    parts, known = [], 0
    for one in content:
        part, fields = (Part(BARE, one, proper=False), 0) if isinstance(one, str) else _part(one)
        parts.append(part)
        known += fields
    return parts, known


def _part(one: Json) -> tuple[Part, int]:
    kind = one.get("type") if isinstance(one, dict) else None
    field = _TEXTS.get(kind) if isinstance(kind, str) else None
    if kind is None or field is None or not _ELSE.isdisjoint(one):
        raise Unlike(NOT_TEXT)
    text = one.get(field)
    if text is None and kind in _NULLABLE:
        return Part(kind, None, proper=False), 0
    closed = kind == "thinking" and "closed" in one
    if not isinstance(text, str) or (closed and not isinstance(one["closed"], bool)):
        raise Unlike("odd parts")
    marked = _marked(one) if kind == "text" else int(closed)
    more = {name: one[name] for name in one if name not in _KNOWN}
    if kind not in _MODELLED or marked is None:
        return Part(kind, text, more, proper=False), 0
    return Part(kind, text, more), 2 + marked


def _marked(one: Mapping[str, Any]) -> int | None:
    """Return how many fields a cache mark adds; None if it is not valid."""
    if "prompt_cache_breakpoint" not in one:
        return 0
    mark = one["prompt_cache_breakpoint"]
    if not isinstance(mark, dict) or mark.get("mode") != "explicit":
        return None
    if "ttl" not in mark:
        return 2
    return 3 if mark["ttl"] in ("30m", "12h") else None
