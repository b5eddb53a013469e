"""Computes a prompt's length in tokens and its chained block keys.

If the model's tokenizer and chat template are known (`rendering/`), keys are made from the exact
tokens that the engine will see. Otherwise they are made from the prompt's canonical bytes, and the
number of bytes per token is estimated (`Estimates`).

Lengths that are learned from the `usage` that workers report: of prompts, and of answers.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from router.api.endpoints import CHAT, COMPLETION, INPUT, NOTHING, RESPONSES, Endpoint
from router.api.request import Adapted, Request
from router.prompt.canonical import CanonicalText, apart, canonical, further, measured
from router.prompt.forward import may_have, written
from router.rendering.messages import NOT_TEXT, NotReproducible
from router.rendering.tokens import ID_BYTES, PromptTokenizer
from strategies.api import NO_BLOCKS, Prompt
from strategies.prefix.block_keys import TEXT_ENDS, chain, even_chain, even_root, root_key

#: Bytes per token until usage was seen; as for English text with a large vocabulary.
BYTES_PER_TOKEN = 4.0
#: Weight of one answer's usage in the learned averages, once there were many answers.
LEARNING_RATE: Final = 0.05
#: Prompts of fewer tokens are not learned from: the chat template is too large a part of them.
MIN_LEARNED_TOKENS: Final = 64
#: Expected tokens of an answer until some were seen, and the most ever expected. The expectation is
#: an average of past answers, because a client's limit is an upper bound that is seldom reached.
ANSWER_TOKENS: Final = 256
MAX_ANSWER_TOKENS: Final = 8192


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
        if not prompt.estimated or prompt.tokens < MIN_LEARNED_TOKENS or reported_tokens <= 0:
            return
        self.seen += 1
        weight = max(LEARNING_RATE, 1 / self.seen)
        step = min(2.0, max(0.5, prompt.tokens / reported_tokens)) ** weight
        self.bytes_per_token = min(16.0, max(1.0, self.bytes_per_token * step))

    def learn_answer(self, tokens: int) -> None:
        """Learn from the length of an answer that a worker reported."""
        self.answered += 1
        weight = max(LEARNING_RATE, 1 / (self.answered + 1))
        self.answer_tokens += weight * (min(tokens, MAX_ANSWER_TOKENS) - self.answer_tokens)

    def answer(self, limit: int | None) -> int:
        """Return how many tokens an answer is expected to have within the client's limit."""
        expected = max(1, int(self.answer_tokens))
        return min(limit or expected, expected)


#: Assumed tokens of a part that is not text, such as an image: in truth 64 to some thousands.
PART_TOKENS = 768
#: Metric label: the prompt was keyed by its text because its model's tokenizer is not known.
UNKNOWN_MODEL = "tokenizer not known"


class KnownModel(NamedTuple):
    """A model whose prompts the router can tokenize itself."""

    identity: str
    """The same for all names of one model, but different for each of its adapters."""
    exact: PromptTokenizer
    forward: bool = False
    """Its workers may be sent the token ids along with a chat."""
    media: bool = False
    """In a chat with images, the tokens before the first image are known."""
    left_out: bool | None = False
    """Whether tools are left out of the prompt if none may be chosen; None: not known."""


class AskedModel(NamedTuple):
    """A model whose workers are asked for the tokens of every prompt."""

    identity: str
    ids: Callable[[Endpoint, bytes], Awaitable[bytes]]
    """Returns the token ids of a request's body, 32-bit little-endian. Raises NotReproducible."""


class ForwardedIds(NamedTuple):
    """Token ids to send along with a chat, valid while `exact` still makes its model's tokens."""

    listed: bytes
    """The ids as a JSON list."""
    model: str
    exact: PromptTokenizer
    """What made the ids."""


class MadePrompt:
    """A prompt, and what else resulted from making it."""

    __slots__ = ("along", "prompt", "reason")

    def __init__(self, prompt: Prompt, reason: str = "", along: ForwardedIds | None = None) -> None:
        self.prompt = prompt
        self.reason = reason
        """Why it is not keyed by tokens; empty if it is keyed by them."""
        self.along = along


class Prompts:
    """Makes the prompts of one pool.

    If not `keyed`, nobody looks at keys, so prompts are only measured.
    """

    def __init__(self, *, keyed: bool = True) -> None:
        self.keyed = keyed
        self.sizes: Callable[[], Sequence[int]] | None = None
        """Returns the sizes, in tokens, of the even blocks that prompts are also cut into; None: no
        even blocks are needed. Called from any thread."""
        self.keeps_ids = False
        """Whether prompts also carry their token ids."""
        self.known: dict[str, KnownModel] = {}
        """By model name. Always replaced as a whole, because threads read it."""
        self.asked: dict[str, AskedModel] = {}
        """The same for models whose workers are asked for tokens; no model is in both."""
        self.asking = 0
        """Prompts whose tokens are being asked for right now."""
        self.estimates = Estimates()
        self.by_reason: Counter[str] = Counter()
        """Prompts made, by the reason why they are not keyed by tokens; "" for those that are."""
        self.miscounted = 0
        """Prompts for which a worker reported a different number of tokens than was computed."""

    def follow(self, before: "Prompts") -> None:
        """Take over what was learned and counted under another strategy."""
        self.estimates.follow(before.estimates)
        # Shared, so that requests that are still with the other strategy count too.
        self.by_reason = before.by_reason
        self.miscounted = before.miscounted

    def prompt(self, endpoint: Endpoint, request: Request, body: bytes = b"") -> Prompt:
        """Turn a request into the prompt that strategies see, and count it."""
        made = self.make(endpoint, request, body)
        self.count(made.reason)
        return made.prompt

    def make(self, endpoint: Endpoint, request: Request, body: bytes) -> MadePrompt:
        """Make a prompt without counting it. May run in any thread."""
        if not self.keyed:
            return MadePrompt(self._measured(endpoint, request))
        known = self.known.get(request.model or "")
        reason = UNKNOWN_MODEL
        if known is not None:
            try:
                return self._tokenized(endpoint, request, known, body)
            except NotReproducible as refusal:
                reason = refusal.reason
        if known is not None and known.media and reason == NOT_TEXT:
            with suppress(NotReproducible):
                return MadePrompt(self._of_head(endpoint, request, known, body))
        return self.by_text(endpoint, request, reason)

    async def ask(
        self, endpoint: Endpoint, request: Request, body: bytes, asked_model: AskedModel
    ) -> Callable[[], MadePrompt]:
        """Ask a worker for the tokens; return what makes the prompt of them, without counting it.

        That may run in any thread.
        """
        try:
            ids = await asked_model.ids(endpoint, body)
        except NotReproducible as refusal:
            return partial(self.by_text, endpoint, request, refusal.reason)
        return lambda: MadePrompt(self._of_ids(endpoint, request, asked_model.identity, ids))

    def count(self, reason: str) -> None:
        """Count a prompt that `make`, `ask` or `by_text` made, by its reason."""
        if self.keyed:
            self.by_reason[reason] += 1

    def holds(self, along: ForwardedIds) -> bool:
        """Return true while the ids may be sent: how the model is tokenized can change."""
        known = self.known.get(along.model)
        return known is not None and known.forward and known.exact is along.exact

    def _tokenized(
        self, endpoint: Endpoint, request: Request, known: KnownModel, body: bytes
    ) -> MadePrompt:
        ids = known.exact.ids(endpoint, body, left_out=known.left_out)
        prompt = self._of_ids(endpoint, request, known.identity, ids)
        along = known.forward and endpoint.prompted is CHAT and not endpoint.batched
        if not along or known.exact.dated or not may_have(request):
            return MadePrompt(prompt)
        return MadePrompt(
            prompt, along=ForwardedIds(written(ids), request.model or "", known.exact)
        )

    def _of_head(
        self, endpoint: Endpoint, request: Request, known: KnownModel, body: bytes
    ) -> Prompt:
        """Make a prompt whose keys end before the first image.

        In the engine, the blocks after that depend on a hash of the image.
        """
        head = known.exact.head(endpoint, body, left_out=known.left_out)
        prompt = self._of_ids(endpoint, request, known.identity, head.ids)
        tokens = head.tokens + PART_TOKENS * head.media
        return replace(prompt, tokens=tokens, counted=False)

    def _of_ids(self, endpoint: Endpoint, request: Request, identity: str, ids: bytes) -> Prompt:
        # The endpoint is no part of the key: a chat and the same text as a completion share blocks.
        salt = _salt(request)
        keys = chain(root_key("tokens", identity, salt, *_named(request)), ids)
        keeps = self.keeps_ids and not identity.partition("\0")[2]  # not for adapters
        several = _several(endpoint, request)
        prompt = Prompt(
            model=request.model or "",
            tokens=len(ids) // ID_BYTES,
            keys=keys,
            ends=TEXT_ENDS,
            unit_tokens=1.0 / ID_BYTES,
            answer_tokens=self._answer(endpoint, request),
            counted=not several,
            stream=_tells_first(endpoint, request),
            path=endpoint.path,
            blocks=self._even(identity, salt, ids) if self.sizes else NO_BLOCKS,
            ids=ids if keeps else b"",
            salt=salt if keeps else "",
        )
        if not several:
            return prompt
        text = canonical(endpoint, request)
        if not text.further and not text.plain:  # it cannot be read, but its size counts
            size = int(len(text.data) / self.estimates.bytes_per_token)
            return replace(prompt, tokens=max(prompt.tokens, size))
        return self._with_further(prompt, text)

    def _with_further(self, prompt: Prompt, text: CanonicalText) -> Prompt:
        """Return the prompt with the lengths of the others in its request, if there are any.

        The first byte of the answer says nothing of theirs.
        """
        if not text.further:
            return prompt
        per_token = self.estimates.bytes_per_token if text.tokens is None else ID_BYTES
        tokens = int(text.unread / per_token)
        return replace(
            prompt,
            tokens=prompt.tokens + tokens,
            answer_tokens=prompt.answer_tokens * (1 + text.further),
            stream=False,
            further=text.further,
            further_tokens=tokens,
        )

    def _even(self, identity: str, salt: str, ids: bytes) -> dict[int, list[int]]:
        """Return keys of even blocks, made from what engines use: tokens, adapter name and salt."""
        assert self.sizes is not None  # noqa: S101 - the caller has looked
        root = even_root(identity.partition("\0")[2], salt)
        return {size: even_chain(root, ids, size) for size in self.sizes()}

    def by_text(self, endpoint: Endpoint, request: Request, reason: str) -> MadePrompt:
        """Make a prompt keyed by its text, for `reason`, without counting it."""
        text = canonical(endpoint, request)
        known = self.known.get(request.model or "")
        identity = known.identity if known else request.model or ""
        roots: list[str] = [endpoint.prompted, identity, _salt(request), *_named(request)]
        if more := apart(endpoint, request):
            roots.append(more)
        per_token = self.estimates.bytes_per_token if text.tokens is None else ID_BYTES
        prompt = Prompt(
            model=request.model or "",
            tokens=int(len(text.data) / per_token) + PART_TOKENS * text.parts,
            keys=chain(root_key(*roots), text.data),
            ends=TEXT_ENDS,
            unit_tokens=1.0 / per_token,
            answer_tokens=self._answer(endpoint, request),
            estimated=text.plain and text.tokens is None,
            stream=_tells_first(endpoint, request),
            path=endpoint.path,
        )
        return MadePrompt(self._with_further(prompt, text), reason)

    def _measured(self, endpoint: Endpoint, request: Request) -> Prompt:
        per_token = self.estimates.bytes_per_token
        return Prompt(
            model=request.model or "",
            tokens=int(measured(endpoint, request) / per_token),
            unit_tokens=1.0 / per_token,
            answer_tokens=self._answer(endpoint, request) * (1 + further(endpoint, request)),
            estimated=endpoint.prompted is not NOTHING,
            stream=_tells_first(endpoint, request),
            path=endpoint.path,
        )

    def learn(self, prompt: Prompt, reported_tokens: int) -> None:
        """Learn from the length that a worker reported for `prompt`."""
        if prompt.counted and reported_tokens != prompt.tokens:
            self.miscounted += 1
        self.estimates.learn(prompt, reported_tokens)

    def _answer(self, endpoint: Endpoint, request: Request) -> int:
        """Return how many tokens the answer is expected to take in the KV cache."""
        return self.estimates.answer(request.answer_limit) if endpoint.answers else 0


def _tells_first(endpoint: Endpoint, request: Request) -> bool:
    """Return true if the first byte of the answer comes with its first token.

    A stream of `/v1/responses` begins with two events before anything is computed (vLLM
    `entrypoints/openai/responses/serving.py`, `responses_stream_generator`).
    """
    return request.stream is True and endpoint.prompted is not RESPONSES


def _several(endpoint: Endpoint, request: Request) -> bool:
    """Return true if there may be several prompts, whose lengths a worker reports as one sum."""
    if isinstance(request, Adapted) and request.native.further:
        return True
    raw = {COMPLETION: request.prompt, INPUT: request.input}
    return bytes(memoryview(raw.get(endpoint.prompted, msgspec.Raw()))[:1]) == b"["


def _salt(request: Request) -> str:
    return request.cache_salt if isinstance(request.cache_salt, str) else ""


def _named(request: Request) -> tuple[str, ...]:
    """Return the client's `prompt_cache_key`, which separates prompts in routing.

    Engines ignore it, so it is no part of the even blocks, whose keys match KV events.
    """
    named = request.prompt_cache_key
    return ("prompt_cache_key", named) if isinstance(named, str) and named else ()
