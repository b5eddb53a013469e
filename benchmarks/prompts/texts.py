"""Conversations of a given length in tokens, no two of which share a message."""

import json
import random
from collections.abc import Callable

from benchmarks.prompts.model import library

#: Fewest tokens of a message, and about the most messages of a long conversation.
_MESSAGE, _MESSAGES = 400, 64
#: Tokens of a turn: an answer and the next question.
ANSWER, QUESTION = 200, 100
MODEL = "model"

Message = dict[str, str]


class Texts:
    """Makes conversations from excerpts of the standard library's sources.

    They repeat words as texts do, but never a whole message. The same seed gives the same ones.
    """

    def __init__(self, seed: int, count: Callable[[str], int]) -> None:
        """Start from a seed; `count` returns the number of tokens of a text."""
        self._chance = random.Random(seed)
        self._lines = [line for text in library() for line in text.splitlines(keepends=True)]
        sample = "".join(self._lines[:20_000])
        self._token = len(sample) / count(sample)
        """Characters per token."""

    def conversation(self, tokens: int) -> list[Message]:
        """Return a conversation of about `tokens` tokens that ends with a user message."""
        each = max(_MESSAGE, tokens // _MESSAGES)
        messages = [{"role": "system", "content": self._text(min(each, tokens // 2))}]
        left = tokens - min(each, tokens // 2)
        rounds = max(left // each, 1) | 1  # odd: the user begins and ends
        for number in range(rounds):
            role = "assistant" if number % 2 else "user"
            messages.append({"role": role, "content": self._text(left // rounds)})
        return messages

    def turn(self, messages: list[Message]) -> list[Message]:
        """Return the conversation with another answer and question."""
        answer = {"role": "assistant", "content": self._text(ANSWER)}
        return [*messages, answer, {"role": "user", "content": self._text(QUESTION)}]

    def _text(self, tokens: int) -> str:
        """Return text of about `tokens` tokens that begins with a random number."""
        wanted = int(tokens * self._token)
        pieces, length = [f"{self._chance.getrandbits(48):x} "], 0
        while length < wanted:
            start = self._chance.randrange(len(self._lines))
            piece = "".join(self._lines[start : start + 12])
            pieces.append(piece)
            length += len(piece)
        return "".join(pieces)[: max(wanted, 1)]


def body(messages: list[Message], model: str = MODEL) -> bytes:
    """Return a chat request's body as a client writes it."""
    asked = {"model": model, "messages": messages, "temperature": 0.7, "max_tokens": 256}
    return json.dumps(asked, ensure_ascii=False, separators=(",", ":")).encode()
