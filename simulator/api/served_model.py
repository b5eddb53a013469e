"""What request handlers see of a worker: the models it serves, and prompts as token ids."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from simulator.api.metrics import RequestStats
from simulator.engine.clock import EngineClock
from simulator.http.errors import bad_request, unknown_model
from simulator.model.language import Language
from simulator.model.tokens import TYPECODE


@dataclass(slots=True)
class ServedModel:
    """One base model under one or more names, with its LoRA adapters."""

    #: The base model's names; the first is the canonical one.
    models: Sequence[str]
    #: Names of the LoRA adapters; each has its own prefixes in the cache.
    adapters: Sequence[str]
    clock: EngineClock
    #: Tokenizer and chat template of the base model and its adapters.
    language: Language
    #: Where the base model was loaded from, as `/v1/models` reports it.
    root: str
    stats: RequestStats = field(default_factory=RequestStats)
    started: int = field(default_factory=lambda: int(time.time()))
    _ids: count[int] = field(default_factory=count)

    @property
    def max_model_len(self) -> int:
        """Return how many tokens of prompt and answer together one request may have."""
        return self.clock.engine.max_tokens

    def resolve(self, model: str | None) -> tuple[str, str | None]:
        """Return the served name and the adapter, if any, of a model; raise ApiError 404."""
        if not model:
            return self.models[0], None
        if model in self.adapters:
            return model, model
        if model in self.models:
            return model, None
        raise unknown_model(model)

    def engine_id(self) -> str:
        """Return a name for one request in the engine, unique while the worker lives."""
        return str(next(self._ids))


@dataclass(frozen=True, slots=True)
class TokensPrompt:
    """Token ids, and options that go into their blocks' hashes and events."""

    tokens: array[int]
    lora_name: str | None = None
    salt: str | None = None
    report_reuse: bool = False


def as_prompts(
    language: Language, source: str | list[Any], param: str = "prompt", *, special: bool = True
) -> list[array[int]]:
    """Return the prompts in a text, a list of texts, of token ids, or of lists of token ids."""
    if isinstance(source, str) or (source and all(type(item) is int for item in source)):
        source = [source]
    prompts = [_prompt(language, item, param, special=special) for item in source]
    if not prompts or not all(prompts):
        raise bad_request("Either the prompt or a part of it is empty.", param)
    return prompts


def token_ids(ids: list[Any], param: str, top: int) -> array[int]:
    """Return the token ids as an array; raise ApiError 400 unless all are from 0 to `top`."""
    if not ids:
        raise bad_request("A list of token ids must not be empty.", param)
    for token in ids:
        if type(token) is not int or not 0 <= token <= top:
            raise bad_request(f"Token id {token} is out of vocabulary", param)
    return array(TYPECODE, ids)


def _prompt(
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
