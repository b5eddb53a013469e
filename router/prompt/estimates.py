"""Lengths that are learned from the `usage` that workers report: of prompts, and of answers."""

from typing import Final

from strategies.api import Prompt

#: Bytes per token until usage was seen; as for English text with a large vocabulary.
BYTES_PER_TOKEN = 4.0
#: Weight of one answer's usage in the learned averages, once there were many answers.
LEARNING: Final = 0.05
#: Prompts of fewer tokens are not learned from: the chat template is too large a part of them.
SHORTEST: Final = 64
#: Expected tokens of an answer until some were seen, and the most ever expected. The expectation is
#: an average of past answers, because a client's limit is an upper bound that is seldom reached.
ANSWER_TOKENS: Final = 256
LONGEST_ANSWER: Final = 8192


class Estimates:
    """How long prompts and answers of one pool are."""

    __slots__ = ("answer_tokens", "answered", "bytes_per_token", "seen")

    def __init__(self) -> None:
        self.bytes_per_token = BYTES_PER_TOKEN
        self.answer_tokens = float(ANSWER_TOKENS)
        """Average tokens of an answer, smoothed."""
        self.seen = self.answered = 0
        """How many prompts' lengths, and answers', were learned from."""

    def follow(self, before: "Estimates") -> None:
        """Take over what was learned before."""
        self.bytes_per_token = before.bytes_per_token
        self.answer_tokens = before.answer_tokens
        self.seen, self.answered = before.seen, before.answered

    def learn(self, prompt: Prompt, reported_tokens: int) -> None:
        """Correct the bytes per token by the length that a worker reported for `prompt`."""
        if not prompt.estimated or prompt.tokens < SHORTEST or reported_tokens <= 0:
            return
        self.seen += 1
        weight = max(LEARNING, 1 / self.seen)
        step = min(2.0, max(0.5, prompt.tokens / reported_tokens)) ** weight
        self.bytes_per_token = min(16.0, max(1.0, self.bytes_per_token * step))

    def learn_answer(self, tokens: int) -> None:
        """Learn from the length of an answer that a worker reported."""
        self.answered += 1
        weight = max(LEARNING, 1 / (self.answered + 1))
        self.answer_tokens += weight * (min(tokens, LONGEST_ANSWER) - self.answer_tokens)

    def answer(self, limit: int | None) -> int:
        """Return how many tokens an answer is expected to have within the client's limit."""
        expected = max(1, int(self.answer_tokens))
        return min(limit or expected, expected)
