"""Response formats of `/v1/responses` and Anthropic's `/v1/messages`, one choice each."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from simulator.api.generation import Choice, Shape, Usage

_encode = msgspec.json.encode


def _named(name: str, data: dict[str, Any]) -> bytes:
    """A server-sent event with a name, which is also the `type` in its data."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **data}))


class ResponsesShape(Shape):
    """OpenAI's Responses API: numbered events around `response.output_text.delta`."""

    def __init__(self, answer_id: str, model: str) -> None:
        self._id = answer_id
        self._item = f"msg_{answer_id}"
        self._model = model
        self._created = int(time.time())
        self._number = -1

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer that is not streamed."""
        item = self._message("completed", [self._part(choices[0].answer.text())])
        return self._response("completed", [item], usage)

    def announcement(self) -> bytes:
        """The events that announce the response; vLLM sends them before anything is computed."""
        response = {"response": self._response("in_progress", [], None)}
        created = self._event("response.created", response)
        return created + self._event("response.in_progress", response)

    def opening(self, choice: Choice) -> bytes:  # noqa: ARG002 - a Shape
        """The events that announce the response's message and the message's part."""
        return b"".join(
            (
                self._event(
                    "response.output_item.added",
                    {"output_index": 0, "item": self._message("in_progress", [])},
                ),
                self._event("response.content_part.added", self._place(part=self._part(""))),
            )
        )

    def piece(self, choice: Choice, text: bytes, *, last: bool) -> bytes:  # noqa: ARG002 - a Shape
        """The next words."""
        delta = self._place(delta=text.decode(), logprobs=[])
        return self._event("response.output_text.delta", delta)

    def closing(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The events that complete the part, the message and the response."""
        text = choices[0].answer.text()
        part = self._part(text)
        item = self._message("completed", [part])
        return b"".join(
            (
                self._event("response.output_text.done", self._place(text=text, logprobs=[])),
                self._event("response.content_part.done", self._place(part=part)),
                self._event("response.output_item.done", {"output_index": 0, "item": item}),
                self._event("response.completed", {"response": self.whole(choices, usage)}),
            )
        )

    def _event(self, name: str, data: dict[str, Any]) -> bytes:
        self._number += 1
        return _named(name, {"sequence_number": self._number, **data})

    def _place(self, **more: object) -> dict[str, Any]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0, **more}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}

    def _message(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._item,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _response(
        self, status: str, output: list[dict[str, Any]], usage: Usage | None
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": self._model,
            "status": status,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": None,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None if usage is None else self._usage(usage),
        }

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt + usage.completion,
        }


class MessagesShape(Shape):
    """Anthropic's Messages API: `content_block_delta` events between a start and a stop."""

    def __init__(self, answer_id: str, model: str) -> None:
        self._head = {"id": answer_id, "type": "message", "role": "assistant", "model": model}

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The answer that is not streamed."""
        return {
            **self._head,
            "content": [{"type": "text", "text": choices[0].answer.text()}],
            "stop_reason": _stop_reason(choices[0]),
            "stop_sequence": None,
            "usage": _anthropic(usage),
        }

    def opening(self, choice: Choice) -> bytes:
        """The events that begin the message and its content block."""
        prompt = choice.request.prompt_tokens
        cached = choice.request.cached_tokens or 0
        message: dict[str, Any] = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _anthropic(Usage(prompt, 0, cached)),
        }
        block = {"index": 0, "content_block": {"type": "text", "text": ""}}
        return _named("message_start", {"message": message}) + _named("content_block_start", block)

    def piece(self, choice: Choice, text: bytes, *, last: bool) -> bytes:  # noqa: ARG002 - a Shape
        """The next words."""
        delta = {"type": "text_delta", "text": text.decode()}
        return _named("content_block_delta", {"index": 0, "delta": delta})

    def closing(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The events that end the block and the message, with stop reason and usage."""
        delta = {"stop_reason": _stop_reason(choices[0]), "stop_sequence": None}
        return (
            _named("content_block_stop", {"index": 0})
            + _named("message_delta", {"delta": delta, "usage": _anthropic(usage)})
            + _named("message_stop", {})
        )


def _stop_reason(choice: Choice) -> str:
    return "max_tokens" if choice.reason == "length" else "end_turn"


def _anthropic(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "output_tokens": usage.completion,
        "cache_read_input_tokens": usage.cached,
    }
