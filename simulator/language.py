"""How a worker's model reads and writes: its tokenizer, its chat template, the words it says."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from simulator.answers import SIMULATED, Voice
from simulator.conversation import Conversation
from simulator.folder import Folder
from simulator.mistral import Mistral, is_mistrals
from simulator.template import render
from simulator.tokens import detokenize, tokenize


class Language(Protocol):
    """What request handlers need of a tokenizer."""

    @property
    def top(self) -> int:
        """The highest token id there is."""

    @property
    def voice(self) -> Voice:
        """What answers are made of."""

    def tokenize(self, text: str, *, special: bool = True) -> array[int]:
        """Token ids of a text; with `special`, those that the tokenizer adds by itself too."""

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of token ids."""

    def strings(self, tokens: Iterable[int]) -> list[str]:
        """Each token as its vocabulary writes it."""

    def chat(self, asked: Conversation) -> array[int]:
        """Token ids of a conversation as the chat template renders it; ApiError 400 if it can't."""


class Simulated:
    """The simulator's own: no files, no vocabulary, fast."""

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
    """The language of a model's folder, or the simulator's own; the same for all who ask.

    ValueError where the folder is not one.
    """
    if folder is None:
        return Simulated()
    return Mistral(folder) if is_mistrals(folder) else Folder(folder)
