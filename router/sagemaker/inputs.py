"""Conversion between completions and the `inputs` dialect of AWS's text containers. Pure.

The names of parameters are those of Hugging Face's text-generation-inference, which DJL's LMI
containers adopted, and of SGLang's sampling parameters, which the sticky session example sends.
"""

from typing import Any

import msgspec

from router.api.errors import BadRequest
from router.api.messages import UNEXPECTED

#: Parameter names, with those of OpenAI and vLLM. Others are not passed on.
_SAME = {
    "max_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_new_token": "max_tokens",  # as the example's client writes it
    "min_new_tokens": "min_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "stop": "stop",
    "stop_sequences": "stop",
    "ignore_eos": "ignore_eos",
}


_Parameters = msgspec.defstruct(
    "_Parameters",
    [(name, msgspec.Raw, msgspec.Raw()) for name in (*_SAME, "do_sample", "return_full_text")],
)
_decode = msgspec.json.Decoder(_Parameters).decode


def is_given(raw: msgspec.Raw) -> bool:
    """Whether a field is present and not null."""
    return len(raw) > 0 and bytes(memoryview(raw)[:4]) != b"null"


def as_completion(
    inputs: msgspec.Raw, parameters: msgspec.Raw, model: str | None, *, stream: bool
) -> bytes:
    """Return the body of the equivalent completion to the text `inputs`. Raises BadRequest.

    The values of parameters are left to the worker to check.
    """
    try:
        given: Any = _decode(parameters) if is_given(parameters) else _Parameters()
    except UNEXPECTED:
        raise BadRequest("The field `parameters` must be an object.", param="parameters") from None
    asked: dict[str, Any] = {} if model is None else {"model": model}
    asked["prompt"] = inputs
    for name, meant in _SAME.items():
        if is_given(value := getattr(given, name)):
            asked[meant] = value
    if bytes(given.do_sample) == b"false":
        asked["temperature"] = 0
    if bytes(given.return_full_text) == b"true":
        asked["echo"] = True
    if stream:
        asked["stream"] = True
    return msgspec.json.encode(asked)


def as_generation(answer: bytes) -> bytes:
    """Return a completion in the form of the text containers; unchanged if it is not a completion.

    `generation` is the sticky session example's, made by SGLang; `generated_text` is LMI's.
    """
    try:
        completion: dict[str, Any] = msgspec.json.decode(answer, type=dict[str, Any])
        choice = completion["choices"][0]
        text, reason = choice["text"], choice.get("finish_reason")
    except (msgspec.DecodeError, UnicodeError, LookupError, TypeError, AttributeError):
        return answer
    usage = completion.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    meta = {
        "id": completion.get("id"),
        "finish_reason": reason,
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": details.get("cached_tokens"),
    }
    generation = {"text": text, "meta_info": meta}
    return msgspec.json.encode({"generation": generation, "generated_text": text})
