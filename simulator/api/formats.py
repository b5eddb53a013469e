"""Response formats of `/v1/chat/completions` and `/v1/completions`."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from simulator.api.generation import Choice, Shape, Usage
from simulator.api.sources import NOTHING, Asked

_encode = msgspec.json.encode
_DONE = b"data: [DONE]\n\n"


def event(data: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(data) + b"\n\n"


class _OpenAI(Shape):
    """The common part of the chat and completions formats.

    The JSON of an event differs from token to token only in its text. So it is encoded once per
    choice, with and without a finish reason, and split where the text goes.
    """

    chunk_object = ""

    def __init__(
        self, answer_id: str, model: str, asked: Asked = NOTHING, *, include_usage: bool = False
    ) -> None:
        self._head: dict[str, Any] = {"id": answer_id, "created": int(time.time()), "model": model}
        self._include_usage = include_usage
        self._asked = asked
        self._frames: dict[tuple[int, bool], tuple[bytes, bytes]] = {}

    def piece(self, choice: Choice, text: bytes, *, last: bool) -> bytes:
        """The event with a choice's next words."""
        frame = self._frames.get((choice.index, last))
        if frame is None:
            frame = self._frame(choice, choice.reason if last else None)
            self._frames[choice.index, last] = frame
        return frame[0] + text + frame[1]

    def closing(self, choices: Sequence[Choice], usage: Usage) -> bytes:  # noqa: ARG002 - a Shape
        """The usage, if asked for, and the end of the stream."""
        if not self._include_usage:
            return _DONE
        told = self._asked.told(usage.found)
        return self._chunk([], usage=usage.openai(), **told) + _DONE

    def _frame(self, choice: Choice, reason: str | None) -> tuple[bytes, bytes]:
        before, after = self._piece_chunk(choice, "\x00", reason).split(b"\\u0000")
        return before, after

    def _piece_chunk(self, choice: Choice, text: str, reason: str | None) -> bytes:
        raise NotImplementedError

    def _chunk(self, choices: list[dict[str, Any]], **more: object) -> bytes:
        return event({**self._head, "object": self.chunk_object, "choices": choices, **more})


class ChatShape(_OpenAI):
    """`chat.completion` and its chunks; the first chunk has the role."""

    chunk_object = "chat.completion.chunk"

    def opening(self, choice: Choice) -> bytes:
        """The chunk that has the role."""
        delta = {"role": "assistant", "content": ""}
        return self._chunk([_chat_choice(choice.index, "delta", delta, None)])

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer that is not streamed."""
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [
                {**_chat_choice(c.index, "message", _message(c), c.reason), "stop_reason": None}
                for c in choices
            ],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage.openai(),
            "prompt_logprobs": None,
            "kv_transfer_params": None,
            **self._asked.told(usage.found),
        }

    def _piece_chunk(self, choice: Choice, text: str, reason: str | None) -> bytes:
        return self._chunk([_chat_choice(choice.index, "delta", {"content": text}, reason)])


class CompletionShape(_OpenAI):
    """`text_completion`, streamed and not."""

    chunk_object = "text_completion"

    def opening(self, choice: Choice) -> bytes:  # noqa: ARG002 - a Shape
        """Nothing: the first chunk is already text."""
        return b""

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer that is not streamed."""
        return {
            **self._head,
            "object": "text_completion",
            "choices": [
                {**_text_choice(c.index, c.answer.text(), c.reason), "prompt_logprobs": None}
                for c in choices
            ],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage.openai(),
            "kv_transfer_params": None,
            **self._asked.told(usage.found),
        }

    def _piece_chunk(self, choice: Choice, text: str, reason: str | None) -> bytes:
        return self._chunk([_text_choice(choice.index, text, reason)])


def _chat_choice(index: int, key: str, content: object, reason: str | None) -> dict[str, Any]:
    return {"index": index, key: content, "logprobs": None, "finish_reason": reason}


def _text_choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": reason,
        "stop_reason": None,
    }


def _message(choice: Choice) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": choice.answer.text(),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [],
        "reasoning": None,
    }
