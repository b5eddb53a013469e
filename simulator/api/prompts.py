"""Conversion of prompts in request bodies to token ids."""

from __future__ import annotations

from array import array
from typing import Any

from simulator.api.bodies import Generate
from simulator.api.served_model import Prompt
from simulator.http.errors import bad_request
from simulator.model.language import Language
from simulator.model.tokens import TYPECODE


def as_prompts(
    language: Language, source: str | list[Any], param: str = "prompt", *, special: bool = True
) -> list[array[int]]:
    """The prompts in a text, a list of texts, a list of token ids, or a list of such lists."""
    if isinstance(source, str):
        found = [language.tokenize(source, special=special)]
    elif source and all(type(item) is int for item in source):
        found = [token_ids(source, param, language.top)]
    else:
        found = [_one(language, item, param, special=special) for item in source]
    if not found or not all(found):
        raise bad_request("Either the prompt or a part of it is empty.", param)
    return found


def token_ids(ids: list[Any], param: str, top: int) -> array[int]:
    """The token ids as an array; raises ApiError 400 unless all are from 0 to `top`."""
    if not ids:
        raise bad_request("A list of token ids must not be empty.", param)
    for token in ids:
        if type(token) is not int or not 0 <= token <= top:
            raise bad_request(f"Token id {token} is out of vocabulary", param)
    return array(TYPECODE, ids)


def with_options(tokens: array[int], body: Generate, adapter: str | None) -> Prompt:
    """A prompt with the adapter and the body's cache options."""
    if body.cache_salt == "":
        raise bad_request("Parameter 'cache_salt' must be a non-empty string.", "cache_salt")
    xargs = body.vllm_xargs or {}
    return Prompt(
        tokens,
        lora_name=adapter,
        salt=body.cache_salt,
        report_reuse=xargs.get("kv_cache_report_mode") == "full",
    )


def _one(
    language: Language,
    item: Any,  # noqa: ANN401 - any JSON value
    param: str,
    *,
    special: bool,
) -> array[int]:
    if isinstance(item, str):
        return language.tokenize(item, special=special)
    if isinstance(item, list):
        return token_ids(item, param, language.top)
    raise bad_request("A prompt is a text or a list of token ids.", param)
