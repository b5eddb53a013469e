"""The language of a worker's model: its tokenizer, its chat template, the words it answers with."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from simulator.model.answers import SIMULATED, Voice
from simulator.model.folder import FolderLanguage
from simulator.model.tokens import ChatParams, detokenize, render, tokenize


class Language(Protocol):
    """What request handlers need of a model's tokenizer and chat template."""

    @property
    def top(self) -> int:
        """Return the highest token id."""

    @property
    def voice(self) -> Voice:
        """Return what answers are made of."""

    def tokenize(self, text: str, *, special: bool = True) -> array[int]:
        """Return token ids of a text, including those that the tokenizer adds if `special`."""

    def detokenize(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids."""

    def strings(self, tokens: Iterable[int]) -> list[str]:
        """Return each token as the vocabulary spells it."""

    def chat(self, chat: ChatParams) -> array[int]:
        """Return token ids of a conversation; raise ApiError 400 if the template fails."""


class SimulatedLanguage:
    """The simulator's own language: no files, no vocabulary, fast."""

    top = 0xFFFF_FFFF
    voice = SIMULATED

    def tokenize(self, text: str, *, special: bool = True) -> array[int]:  # noqa: ARG002 - a Language
        """Return token ids of a text; there is no BOS to add."""
        return tokenize(text)

    def detokenize(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids."""
        return detokenize(tokens)

    def strings(self, tokens: Iterable[int]) -> list[str]:
        """Return the text of each token."""
        return [detokenize((token,)) for token in tokens]

    def chat(self, chat: ChatParams) -> array[int]:
        """Return token ids of a conversation in ChatML."""
        return tokenize(render(chat))


@lru_cache(maxsize=4)
def language_of(folder: Path | None) -> Language:
    """Return the language of a model's folder, or the simulator's own if None.

    Callers share the result. Raises ValueError if the folder does not hold a tokenizer.
    """
    return SimulatedLanguage() if folder is None else FolderLanguage(folder)
