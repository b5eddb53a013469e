"""Response formats: chat completions, completions, responses, and Anthropic's messages."""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from simulator.api.generation import CachedTokens, Choice, ResponseFormat, TokenUsage
from simulator.api.models import GenerateRequest

_encode = msgspec.json.encode
_DONE = b"data: [DONE]\n\n"


def event(data: object) -> bytes:
    """Return one server-sent event."""
    return b"data: " + _encode(data) + b"\n\n"


class _OpenAIFormat(ResponseFormat):
    """The common part of the chat and completions formats.

    The JSON of an event differs from token to token only in its text. So it is encoded once per
    choice, with and without a finish reason, and split where the text goes.
    """

    chunk_object = ""

    def __init__(self, answer_id: str, model: str, body: GenerateRequest) -> None:
        self._head: dict[str, Any] = {"id": answer_id, "created": int(time.time()), "model": model}
        self._body = body
        self._frames: dict[tuple[int, bool], tuple[bytes, bytes]] = {}

    def piece(self, choice: Choice, text: bytes, *, last: bool) -> bytes:
        """Return the event with a choice's next words."""
        frame = self._frames.get((choice.index, last))
        if frame is None:
            frame = self._frame(choice, choice.reason if last else None)
            self._frames[choice.index, last] = frame
        return frame[0] + text + frame[1]

    def closing(self, choices: Sequence[Choice], usage: TokenUsage) -> bytes:  # noqa: ARG002 - a ResponseFormat
        """Return the usage, if the request wants it, and the end of the stream."""
        options = self._body.stream_options
        if options is None or not options.include_usage:
            return _DONE
        tiers = _tiers(self._body, usage.tiers)
        return self._chunk([], usage=usage.openai(), **tiers) + _DONE

    def _frame(self, choice: Choice, reason: str | None) -> tuple[bytes, bytes]:
        before, after = self._piece_chunk(choice, "\x00", reason).split(b"\\u0000")
        return before, after

    def _piece_chunk(self, choice: Choice, text: str, reason: str | None) -> bytes:
        raise NotImplementedError

    def _chunk(self, choices: list[dict[str, Any]], **more: object) -> bytes:
        return event({**self._head, "object": self.chunk_object, "choices": choices, **more})


class ChatFormat(_OpenAIFormat):
    """`chat.completion` and its chunks; the first chunk has the role."""

    chunk_object = "chat.completion.chunk"

    def opening(self, choice: Choice) -> bytes:
        """Return the chunk that has the role."""
        delta = {"role": "assistant", "content": ""}
        return self._chunk([_chat_choice(choice.index, "delta", delta, None)])

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> dict[str, Any]:
        """Return the answer that is not streamed."""
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
            **_tiers(self._body, usage.tiers),
        }

    def _piece_chunk(self, choice: Choice, text: str, reason: str | None) -> bytes:
        return self._chunk([_chat_choice(choice.index, "delta", {"content": text}, reason)])


class CompletionFormat(_OpenAIFormat):
    """`text_completion`, streamed and not."""

    chunk_object = "text_completion"

    def opening(self, choice: Choice) -> bytes:  # noqa: ARG002 - a ResponseFormat
        """Return nothing: the first chunk is already text."""
        return b""

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> dict[str, Any]:
        """Return the answer that is not streamed."""
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
            **_tiers(self._body, usage.tiers),
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


def _tiers(body: GenerateRequest, cached: CachedTokens) -> dict[str, Any]:
    """Return the fields that report cached tokens by tier, if the request wants any.

    LMCache's server reports what was on the GPU and what it had beyond that
    (`lmcache/integration/vllm/lmcache_mp_connector.py`, `request_finished`); SGLang reports device,
    host and storage (`srt/entrypoints/openai/utils.py`, `process_cached_tokens_details_from_ret`).
    vLLM by itself reports only the sum.
    """
    fields: dict[str, Any] = {}
    params = body.kv_transfer_params
    if params is not None and params.cached_token_stats:
        beyond = cached.l1 + cached.l2
        fields["kv_transfer_params"] = {
            "cached_token_stats": {
                "num_vllm_cached_tokens": cached.gpu,
                "num_lmcache_cached_tokens": cached.gpu + beyond if beyond else 0,
                "num_lmcache_extra_cached_tokens": beyond,
            }
        }
    if body.return_cached_tokens_details:
        details = {"device": cached.gpu, "host": cached.l1, "storage": cached.l2}
        fields["sglext"] = {"cached_tokens_details": details}
    return fields


def _named(name: str, data: dict[str, Any]) -> bytes:
    """Return a server-sent event with a name, which is also the `type` in its data."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **data}))


class ResponsesFormat(ResponseFormat):
    """OpenAI's Responses API: numbered events around `response.output_text.delta`."""

    def __init__(self, answer_id: str, model: str) -> None:
        self._id = answer_id
        self._item = f"msg_{answer_id}"
        self._model = model
        self._created = int(time.time())
        self._number = -1

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> dict[str, Any]:
        """Return the answer that is not streamed."""
        item = self._message("completed", [self._part(choices[0].answer.text())])
        return self._response("completed", [item], usage)

    def announcement(self) -> bytes:
        """Return the events that vLLM sends before anything is computed."""
        response = {"response": self._response("in_progress", [], None)}
        created = self._event("response.created", response)
        return created + self._event("response.in_progress", response)

    def opening(self, choice: Choice) -> bytes:  # noqa: ARG002 - a ResponseFormat
        """Return the events that announce the response's message and the message's part."""
        return b"".join(
            (
                self._event(
                    "response.output_item.added",
                    {"output_index": 0, "item": self._message("in_progress", [])},
                ),
                self._event("response.content_part.added", self._place(part=self._part(""))),
            )
        )

    def piece(self, choice: Choice, text: bytes, *, last: bool) -> bytes:  # noqa: ARG002 - a ResponseFormat
        """Return the next words."""
        delta = self._place(delta=text.decode(), logprobs=[])
        return self._event("response.output_text.delta", delta)

    def closing(self, choices: Sequence[Choice], usage: TokenUsage) -> bytes:
        """Return the events that complete the part, the message and the response."""
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
        self, status: str, output: list[dict[str, Any]], usage: TokenUsage | None
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

    def _usage(self, usage: TokenUsage) -> dict[str, Any]:
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt + usage.completion,
        }


class MessagesFormat(ResponseFormat):
    """Anthropic's Messages API: `content_block_delta` events between a start and a stop."""

    def __init__(self, answer_id: str, model: str) -> None:
        self._head = {"id": answer_id, "type": "message", "role": "assistant", "model": model}

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> dict[str, Any]:
        """Return the answer that is not streamed."""
        return {
            **self._head,
            "content": [{"type": "text", "text": choices[0].answer.text()}],
            "stop_reason": _stop_reason(choices[0]),
            "stop_sequence": None,
            "usage": _anthropic(usage),
        }

    def opening(self, choice: Choice) -> bytes:
        """Return the events that begin the message and its content block."""
        prompt = choice.request.prompt_tokens
        cached = choice.request.cached_tokens or 0
        message: dict[str, Any] = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _anthropic(TokenUsage(prompt, 0, CachedTokens(cached))),
        }
        block = {"index": 0, "content_block": {"type": "text", "text": ""}}
        return _named("message_start", {"message": message}) + _named("content_block_start", block)

    def piece(self, choice: Choice, text: bytes, *, last: bool) -> bytes:  # noqa: ARG002 - a ResponseFormat
        """Return the next words."""
        delta = {"type": "text_delta", "text": text.decode()}
        return _named("content_block_delta", {"index": 0, "delta": delta})

    def closing(self, choices: Sequence[Choice], usage: TokenUsage) -> bytes:
        """Return the events that end the block and the message, with stop reason and usage."""
        delta = {"stop_reason": _stop_reason(choices[0]), "stop_sequence": None}
        return (
            _named("content_block_stop", {"index": 0})
            + _named("message_delta", {"delta": delta, "usage": _anthropic(usage)})
            + _named("message_stop", {})
        )


def _stop_reason(choice: Choice) -> str:
    return "max_tokens" if choice.reason == "length" else "end_turn"


def _anthropic(usage: TokenUsage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "output_tokens": usage.completion,
        "cache_read_input_tokens": usage.cached,
    }
