"""The language of a worker's model: its tokenizer, its chat template, the words it answers with."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from simulator.model.answers import SIMULATED, Voice
from simulator.model.conversation import Conversation
from simulator.model.folder import Folder
from simulator.model.mistral import Mistral, is_mistrals
from simulator.model.template import render
from simulator.model.tokens import detokenize, tokenize


class Language(Protocol):
    """What request handlers need of a model's tokenizer and chat template."""

    @property
    def top(self) -> int:
        """The highest token id."""

    @property
    def voice(self) -> Voice:
        """What answers are made of."""

    def tokenize(self, text: str, *, special: bool = True) -> array[int]:
        """Token ids of a text, including those that the tokenizer adds itself if `special`."""

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of token ids."""

    def strings(self, tokens: Iterable[int]) -> list[str]:
        """Each token as the vocabulary spells it."""

    def chat(self, asked: Conversation) -> array[int]:
        """Token ids of a conversation rendered by the chat template; ApiError 400 if it fails."""


class Simulated:
    """The simulator's own language: no files, no vocabulary, fast."""

    top = 0xFFFF_FFFF
    voice = SIMULATED

    def tokenize(self, text: str, *, special: bool = True) -> array[int]:  # noqa: ARG002 - a Language
        """Token ids of a text; there is no BOS to add."""
        return tokenize(text)

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of token ids."""
        return detokenize(tokens)

    def strings(self, tokens: Iterable[int]) -> list[str]:
        """The text of each token."""
        return [detokenize((token,)) for token in tokens]

    def chat(self, asked: Conversation) -> array[int]:
        """Token ids of a conversation in ChatML."""
        return tokenize(
            render(
                asked.messages,
                asked.tools,
                add_generation_prompt=asked.add_generation_prompt,
                continue_final_message=asked.continue_final_message,
            )
        )


@lru_cache(maxsize=4)
def language_of(folder: Path | None) -> Language:
    """The language of a model's folder, or the simulator's own if None; callers share the result.

    Raises ValueError if the folder does not hold a tokenizer.
    """
    if folder is None:
        return Simulated()
    return Mistral(folder) if is_mistrals(folder) else Folder(folder)
