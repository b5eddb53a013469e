"""What request handlers see of a worker: the models it serves and the engine behind them."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from simulator.api.metrics import Stats
from simulator.engine.clock import Pump
from simulator.http.errors import unknown_model
from simulator.model.language import Language


@dataclass(slots=True)
class Served:
    """One base model under one or more names, with its LoRA adapters."""

    #: The base model's names; the first is the canonical one.
    models: Sequence[str]
    #: Names of the LoRA adapters; each has its own prefixes in the cache.
    adapters: Sequence[str]
    pump: Pump
    #: Tokenizer and chat template of the base model and its adapters.
    language: Language
    #: Where the base model was loaded from, as `/v1/models` reports it.
    root: str
    stats: Stats = field(default_factory=Stats)
    started: int = field(default_factory=lambda: int(time.time()))
    _ids: count[int] = field(default_factory=count)

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together that one request may have."""
        return self.pump.engine.max_tokens

    def resolve(self, model: str | None) -> tuple[str, str | None]:
        """The served name and adapter, if any, of a requested model; ApiError 404 if unknown."""
        if not model:
            return self.models[0], None
        if model in self.adapters:
            return model, model
        if model in self.models:
            return model, None
        raise unknown_model(model)

    def engine_id(self) -> str:
        """A name for one request in the engine, unique while the worker lives."""
        return str(next(self._ids))


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and options that go into their blocks' hashes and events."""

    tokens: array[int]
    lora_name: str | None = None
    salt: str | None = None
    report_reuse: bool = False
