"""What one request may ask for, so that no single one takes a worker down.

Numbers are cheap to judge. Lists are decoded only where they could be over their limit: most
requests are too short for that, or hold too few braces.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from router.errors import BadRequest
from router.openai import Endpoint, Prompted, Request
from router.settings import LimitSettings

T = TypeVar("T")

#: The types of a message's parts that are no image, sound or the like, in the APIs of OpenAI and
#: Anthropic. Whatever else there will be counts as an image.
_WORDS = frozenset(
    (
        "text",
        "input_text",
        "output_text",
        "summary_text",
        "reasoning_text",
        "reasoning",
        "refusal",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "tool_result",
        "tool_reference",
    )
)


class _Message(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw()
    output: msgspec.Raw = msgspec.Raw()
    """What a tool returned, in `/v1/responses`."""


class _Part(msgspec.Struct):
    type: Any = None
    uuid: Any = None
    """vLLM looks for an image where this is given, whatever the type (entrypoints/chat_utils)."""
    content: msgspec.Raw = msgspec.Raw()
    """What a tool returned, in `/v1/messages`."""


_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_message = msgspec.json.Decoder(_Message).decode
_part = msgspec.json.Decoder(_Part).decode


class Limits:
    """The bounds on every request. `check` is on the hot path."""

    def __init__(self, settings: LimitSettings) -> None:
        self._n = settings.n
        self._best_of = settings.best_of
        self._max_tokens = settings.max_tokens
        self._messages = settings.messages
        self._images = settings.images
        # Brackets, entries of one byte or `{}`, and the commas between them.
        self._short = min(2 * self._messages + 2, 3 * self._images + 3)

    def check(self, endpoint: Endpoint, request: Request) -> None:
        """Raise BadRequest, with the name of the field, if a request asks for too much."""
        if request.n is not None:
            _check_number("n", request.n, self._n)
        if request.best_of is not None:
            _check_number("best_of", request.best_of, self._best_of)
        if self._max_tokens is not None:
            for field in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                _check_number(field, getattr(request, field), self._max_tokens)
        if len(request.messages) > self._short:
            self._check_list("messages", bytes(request.messages))
        if endpoint.prompted is Prompted.RESPONSES and len(request.input) > self._short:
            self._check_list("input", bytes(request.input))

    def _check_list(self, field: str, raw: bytes) -> None:
        if len(raw) > 2 * self._messages + 2:
            count = len(_entries(raw))
            if count > self._messages:
                raise _too_much(field, f"{count} messages", self._messages)
        # A part stands in braces, in a list of its own; these bytes are never written otherwise.
        if b"[" in raw[1:] and raw.count(b"{") > self._images:
            count = _images(raw)
            if count > self._images:
                raise _too_much(field, f"{count} images", self._images)


def _check_number(field: str, value: object, limit: int) -> None:
    if _number(value) > limit:
        raise BadRequest(f"`{field}` is over this server's limit of {limit}.", param=field)


def _number(value: object) -> float:
    """What vLLM takes for a number: also `7.0` and `"7"`. What is none is for it to judge."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return 0
    return value if isinstance(value, int | float) else 0


def _too_much(field: str, what: str, limit: int) -> BadRequest:
    return BadRequest(
        f"The request has {what}; this server's limit is {limit} in one request.", param=field
    )


def _images(raw: bytes) -> int:
    """Count the parts of all messages that are not text."""
    count = 0
    for entry in _entries(raw):
        message = _decoded(_message, entry)
        if message is not None:
            count += _others(message.content) + _others(message.output)
    return count


def _others(raw: msgspec.Raw, *, outermost: bool = True) -> int:
    count = 0
    for entry in _entries(raw):
        part = _decoded(_part, entry)
        if part is None:  # a string, which is text
            continue
        if not isinstance(part.type, str) or part.type not in _WORDS or part.uuid is not None:
            count += 1
        elif outermost:
            count += _others(part.content, outermost=False)
    return count


def _entries(raw: bytes | msgspec.Raw) -> list[msgspec.Raw]:
    """Return what a list holds; nothing if it is none."""
    return _decoded(_list, raw) or []


def _decoded(decode: Callable[[bytes | msgspec.Raw], T], raw: bytes | msgspec.Raw) -> T | None:
    try:
        return decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
