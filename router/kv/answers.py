"""Answers about prompts, kept until their decisions are made."""

from collections import OrderedDict
from typing import Generic, TypeVar

from strategies.api import Prompt

T = TypeVar("T")


class Answers(Generic[T]):
    """Answers by prompt: by the object itself, so an equal prompt has none of its own.

    They are bounded by their number and by their sizes, in any unit; the oldest go first, and the
    latest always stays.
    """

    def __init__(self, max_number: int, max_size: int) -> None:
        self._max_number, self._max_size = max_number, max_size
        self._size = 0
        # Prompts are kept too, so that no `id` is reused.
        self._kept: OrderedDict[int, tuple[Prompt, T, int]] = OrderedDict()

    def get(self, prompt: Prompt | None) -> T | None:
        """Return the answer about a prompt, if it is still kept."""
        kept = self._kept.get(id(prompt))
        return kept[1] if kept is not None else None

    def keep(self, prompt: Prompt, answer: T, size: int) -> None:
        """Keep an answer in place of any earlier one about the same prompt."""
        before = self._kept.pop(id(prompt), None)
        self._size += size - (before[2] if before is not None else 0)
        self._kept[id(prompt)] = (prompt, answer, size)
        while len(self._kept) > 1 and (
            len(self._kept) > self._max_number or self._size > self._max_size
        ):
            self._size -= self._kept.popitem(last=False)[1][2]
