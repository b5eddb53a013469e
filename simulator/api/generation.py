"""Run the prompts of one HTTP request through the engine and answer in a given format."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from simulator.api.served_model import ServedModel, TokensPrompt
from simulator.engine.core import QueueFullError
from simulator.engine.request import EngineRequest
from simulator.http.errors import DisconnectedError, bad_request, queue_full
from simulator.http.exchange import AsgiExchange
from simulator.model.answers import GeneratedAnswer, natural_length


class CachedTokens(NamedTuple):
    """Cached tokens of one HTTP request's prompts, by tier."""

    gpu: int = 0
    l1: int = 0
    l2: int = 0


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token counts of one HTTP request, summed over its prompts."""

    prompt: int
    completion: int
    tiers: CachedTokens

    @property
    def cached(self) -> int:
        """Return how many tokens of the prompts were cached, on any tier."""
        return sum(self.tiers)

    def openai(self) -> dict[str, Any]:
        """Return the `usage` object of chat completions and completions."""
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(frozen=True, slots=True)
class AnswerLength:
    """How long an answer may be, in tokens."""

    wanted: int | None = None
    at_least: int = 0
    ignore_eos: bool = False
    #: The request field that sets the limit, for error messages.
    param: str = "max_tokens"

    def of(self, prompt: array[int], max_model_len: int) -> tuple[int, str]:
        """Return the answer's length and finish reason.

        Prompt and answer together may have `max_model_len` tokens. Raises ApiError 400 if the
        prompt or the requested length does not fit.
        """
        room = max_model_len - len(prompt)
        if room < 1:
            raise bad_request(
                f"This model's maximum context length is {max_model_len} tokens. However, your "
                f"request has {len(prompt)} input tokens. Please reduce the length of the input "
                "messages.",
                "input_tokens",
            )
        if self.wanted is None:
            own = max(natural_length(prompt), self.at_least)
            return min(own, room), "length" if own > room or self.ignore_eos else "stop"
        if self.wanted < 1:
            raise bad_request(f"{self.param} must be at least 1, got {self.wanted}.", self.param)
        if self.wanted > room:
            raise bad_request(
                f"'{self.param}' is too large: {self.wanted}. This model's maximum context length "
                f"is {max_model_len} tokens and your request has {len(prompt)} input tokens.",
                self.param,
            )
        return self.wanted, "length"


class Choice:
    """One answer among those of a request."""

    __slots__ = ("answer", "index", "produced", "reason", "request", "sent")

    def __init__(
        self, index: int, request: EngineRequest, answer: GeneratedAnswer, reason: str
    ) -> None:
        self.index = index
        self.request = request
        self.answer = answer
        self.reason = reason
        #: How many tokens the engine has produced, and how many of them were sent.
        self.produced = 0
        self.sent = 0


class ResponseFormat(Protocol):
    """The response format of one endpoint."""

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> Any:  # noqa: ANN401 - JSON
        """Return the body of an answer that is not streamed."""

    def announcement(self) -> bytes:
        """Return events before anything is computed: none, except where a format has some."""
        return b""

    def opening(self, choice: Choice) -> bytes:
        """Return events before a choice's first token."""

    def piece(self, choice: Choice, text: bytes, *, last: bool) -> bytes:
        """Return the event with a choice's next words (ASCII, nothing to escape)."""

    def closing(self, choices: Sequence[Choice], usage: TokenUsage) -> bytes:
        """Return events after the last token of all choices."""


class Generation:
    """One HTTP request in progress. If the client disconnects, it ends at once."""

    def __init__(
        self,
        served: ServedModel,
        exchange: AsgiExchange,
        prompts: Sequence[TokensPrompt],
        length: AnswerLength,
        *,
        n: int = 1,
        interval: int = 1,
    ) -> None:
        self._served = served
        self._exchange = exchange
        self._interval = interval
        self._n = n
        self._format: ResponseFormat | None = None
        self._prompt_tokens = sum(len(prompt.tokens) for prompt in prompts)
        #: True once all choices are complete, False if the client has left.
        self._done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._begun = time.monotonic()
        self.choices = [
            self._choice(index, prompts[index // n], length, index % n)
            for index in range(len(prompts) * n)
        ]
        self._left = len(self.choices)

    async def run(self) -> TokenUsage:
        """Generate all choices and return the usage."""
        try:
            self._submit()
            await self._finish()
        finally:
            self._abort()
        return self._usage()

    async def answer(self, answer_format: ResponseFormat) -> None:
        """Generate all choices and answer with one body."""
        usage = await self.run()
        await self._exchange.json(answer_format.whole(self.choices, usage))

    async def stream(self, answer_format: ResponseFormat) -> None:
        """Generate all choices and stream events as tokens come."""
        try:
            self._submit()  # before the status line, so that a full queue is still a 503
            await self._exchange.start_stream()
            if announcement := answer_format.announcement():
                self._exchange.write(announcement)
            self._format = answer_format
            for choice in self.choices:
                if choice.produced:  # produced while the response head was being sent
                    self._show(answer_format, choice, last=choice.produced == choice.answer.length)
            await self._finish()
        finally:
            self._abort()
        self._exchange.write(answer_format.closing(self.choices, self._usage()))
        await self._exchange.end_stream()

    def _choice(
        self, index: int, prompt: TokensPrompt, length: AnswerLength, variant: int
    ) -> Choice:
        count, reason = length.of(prompt.tokens, self._served.max_model_len)
        answer = GeneratedAnswer(prompt.tokens, count, variant, self._served.language.voice)
        request = EngineRequest(
            self._served.engine_id(),
            prompt.tokens,
            answer.ids,
            lora_name=prompt.lora_name,
            salt=prompt.salt,
            report_reuse=prompt.report_reuse,
        )
        return Choice(index, request, answer, reason)

    def _submit(self) -> None:
        try:
            for choice in self.choices:
                self._served.clock.submit(choice.request, partial(self._tokens, choice))
        except QueueFullError:
            raise queue_full() from None
        self._exchange.when_lost(self._lost)

    async def _finish(self) -> None:
        if not await self._done:
            raise DisconnectedError

    def _tokens(self, choice: Choice, count: int, last: bool) -> None:
        """The engine produced `count` more tokens of a choice."""
        if not choice.produced:
            self._served.stats.first_token(time.monotonic() - self._begun)
        choice.produced += count
        if self._format is not None:
            self._show(self._format, choice, last=last)
        if last:
            self._served.stats.finished[choice.reason] += 1
            self._left -= 1
            if not self._left and not self._done.done():
                self._done.set_result(True)

    def _show(self, answer_format: ResponseFormat, choice: Choice, *, last: bool) -> None:
        """Send the tokens due: the first alone, then `interval` per event, the rest at the end."""
        events = [] if choice.sent else [answer_format.opening(choice)]
        words = choice.answer.words(choice.sent, choice.produced)
        at, step, end = 0, self._interval, len(words)
        while at < end:
            size = step if choice.sent else 1
            if at + size > end:
                if not last:
                    break
                size = end - at
            text = words[at] if size == 1 else b"".join(words[at : at + size])
            at += size
            choice.sent += size
            events.append(answer_format.piece(choice, text, last=last and at == end))
        if events:
            self._exchange.write(b"".join(events))

    def _usage(self) -> TokenUsage:
        completion = sum(choice.produced for choice in self.choices)
        firsts = self.choices[:: self._n]  # count each prompt's cached tokens once, not n times
        cached = sum(choice.request.cached_tokens or 0 for choice in firsts)
        l1 = sum(choice.request.l1_tokens for choice in firsts)
        l2 = sum(choice.request.l2_tokens for choice in firsts)
        tiers = CachedTokens(cached - l1 - l2, l1, l2)
        return TokenUsage(self._prompt_tokens, completion, tiers)

    def _lost(self) -> None:
        self._abort()
        if not self._done.done():
            self._done.set_result(False)

    def _abort(self) -> None:
        """Stop the requests that still run and stop watching the client."""
        self._exchange.when_lost(None)
        for choice in self.choices:
            self._served.clock.abort(choice.request.request_id)
