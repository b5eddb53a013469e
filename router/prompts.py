"""A request's prompt → its length and its chained block keys.

Where the model's tokenizer and chat template are known (`identity/`), keys are taken over the very
tokens that the engine will see. Else they are taken over the prompt's canonical bytes, and how many
bytes make a token is learned from the `usage` that workers report.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from router.identity.exact import Exact
from router.identity.forward import may_have, written
from router.identity.text import apart, canonical, measured
from router.identity.unlike import NOT_TEXT, Unlike
from router.openai import Endpoint, Prompted, Request
from strategies.base import NO_BLOCKS, Prompt
from strategies.blocks import TEXT_ENDS, chain, even_chain, even_root, root_key

#: Bytes a token until usage was seen; English text with a large vocabulary.
BYTES_PER_TOKEN = 4.0
#: Weight of one answer's usage in what is learned, once there were many.
LEARNING: Final = 0.05
#: Prompts of fewer tokens teach nothing: their chat template would weigh too much.
SHORTEST: Final = 64
#: Tokens of an answer until some were seen; and the most that are expected. A client's limit is an
#: upper bound, seldom reached: what is expected is what answers have been like.
ANSWER_TOKENS: Final = 256
LONGEST_ANSWER: Final = 8192
#: Bytes a token id takes.
ID_BYTES = 4
#: Tokens of a part that is not text, an image say; it may be anything from 64 to some thousands.
PART_TOKENS = 768
#: Why a prompt was keyed by its text though its model's tokens are known: a metric's label.
UNKNOWN_MODEL = "tokenizer not known"


class Known(NamedTuple):
    """What is known of a model."""

    identity: str
    """The same for all names of one model, another one for each of its adapters."""
    exact: Exact
    forward: bool = False
    """Its workers may be sent the ids along with a chat."""
    media: bool = False
    """Of a chat with images its tokens are known up to the first of them."""
    left_out: bool | None = False
    """Tools of which none may be chosen are not in its prompts; None: that is not known."""


class Asked(NamedTuple):
    """A model whose tokens are asked of its workers, for every prompt."""

    identity: str
    ids: Callable[[Endpoint, bytes], Awaitable[bytes]]
    """Of a request's body, 32 bits each, lowest byte first. Raises Unlike."""


class Along(NamedTuple):
    """A prompt's ids that may be sent along, as long as its model's tokens are made this way."""

    listed: bytes
    """As a list in JSON."""
    model: str
    exact: Exact
    """What made them."""


class Made:
    """A prompt, and what else came of making it."""

    __slots__ = ("along", "prompt", "reason")

    def __init__(self, prompt: Prompt, reason: str = "", along: Along | None = None) -> None:
        self.prompt = prompt
        self.reason = reason
        """Why it is not keyed by tokens; empty if it is."""
        self.along = along


class Prompts:
    """Makes prompts, and learns how long they are. One for each pool.

    Without `keyed` nobody looks at keys, and prompts are only measured.
    """

    def __init__(self, *, keyed: bool = True) -> None:
        self.keyed = keyed
        self.sizes: Callable[[], Sequence[int]] | None = None
        """Tokens of the even blocks that somebody wants prompts to be cut into. Any thread's."""
        self.keeps_ids = False
        """Somebody wants the ids themselves too."""
        self.known: dict[str, Known] = {}
        """By the model's name. Replaced as a whole by whoever finds out; may be read by threads."""
        self.asked: dict[str, Asked] = {}
        """The same for models that are asked for; no model is in both."""
        self.asking = 0
        """Prompts whose tokens are being asked for."""
        self.bytes_per_token = BYTES_PER_TOKEN
        self.by_reason: Counter[str] = Counter()
        """Prompts made, by why they are not keyed by tokens; by an empty word if they are."""
        self.miscounted = 0
        """Prompts of which a worker reported another number of tokens than was computed."""
        self.answer_tokens = float(ANSWER_TOKENS)
        """Tokens of an answer, smoothed."""
        self._seen = self._answered = 0

    def prompt(self, endpoint: Endpoint, request: Request, body: bytes = b"") -> Prompt:
        """Turn a request into what a strategy may know of it."""
        return self.made(endpoint, request, body).prompt

    def made(self, endpoint: Endpoint, request: Request, body: bytes) -> Made:
        """The same, with all that came of it."""
        if not self.keyed:
            return Made(self._measured(endpoint, request))
        made = self.make(endpoint, request, body)
        self.by_reason[made.reason] += 1
        return made

    def make(self, endpoint: Endpoint, request: Request, body: bytes) -> Made:
        """The same without counting. May run in any thread."""
        known = self.known.get(request.model or "")
        reason = UNKNOWN_MODEL
        if known is not None:
            try:
                return self._tokenized(endpoint, request, known, body)
            except Unlike as unlike:
                reason = unlike.reason
        if known is not None and known.media and reason == NOT_TEXT:
            with suppress(Unlike):
                return Made(self._of_head(endpoint, request, known, body))
        return Made(self._by_text(endpoint, request, known), reason)

    async def ask(self, endpoint: Endpoint, request: Request, body: bytes, asked: Asked) -> Made:
        """The same with tokens that are asked for."""
        made = await self.ask_uncounted(endpoint, request, body, asked)
        self.by_reason[made.reason] += 1
        return made

    async def ask_uncounted(
        self, endpoint: Endpoint, request: Request, body: bytes, asked: Asked
    ) -> Made:
        """The same without counting."""
        try:
            ids = await asked.ids(endpoint, body)
            return Made(self._of_ids(endpoint, request, asked.identity, ids))
        except Unlike as unlike:
            return Made(self._by_text(endpoint, request, None), unlike.reason)

    def by_text(self, endpoint: Endpoint, request: Request, reason: str) -> Made:
        """Key a prompt by its text, for a reason."""
        self.by_reason[reason] += 1
        return Made(self._by_text(endpoint, request, self.known.get(request.model or "")), reason)

    def count(self, reason: str) -> None:
        """Count a prompt that was made elsewhere."""
        self.by_reason[reason] += 1

    def holds(self, along: Along) -> bool:
        """Whether ids may still be sent: a model's tokens may be others after a wait."""
        known = self.known.get(along.model)
        return known is not None and known.forward and known.exact is along.exact

    def _tokenized(self, endpoint: Endpoint, request: Request, known: Known, body: bytes) -> Made:
        ids = known.exact.ids(endpoint, body, left_out=known.left_out)
        prompt = self._of_ids(endpoint, request, known.identity, ids)
        along = known.forward and endpoint.prompted is Prompted.CHAT
        if not along or known.exact.dated or not may_have(request):
            return Made(prompt)
        return Made(prompt, along=Along(written(ids), request.model or "", known.exact))

    def _of_head(self, endpoint: Endpoint, request: Request, known: Known, body: bytes) -> Prompt:
        """Keys end where the first image begins: what is after it is another one's in the engine,
        by a hash of its own."""
        head = known.exact.head(endpoint, body, left_out=known.left_out)
        prompt = self._of_ids(endpoint, request, known.identity, head.ids)
        tokens = head.tokens + PART_TOKENS * head.media
        return replace(prompt, tokens=tokens, counted=False)

    def _of_ids(self, endpoint: Endpoint, request: Request, identity: str, ids: bytes) -> Prompt:
        # Not of the endpoint: the engine keeps the same blocks for a chat and for its plain text.
        salt = _salt(request)
        keys = chain(root_key("tokens", identity, salt, *_named(request)), ids)
        keeps = self.keeps_ids and not identity.partition("\0")[2]  # an adapter's are named apart
        return Prompt(
            model=request.model or "",
            tokens=len(ids) // ID_BYTES,
            keys=keys,
            ends=TEXT_ENDS,
            unit_tokens=1.0 / ID_BYTES,
            answer_tokens=self._answer(endpoint, request),
            counted=not _several(endpoint, request),
            stream=request.stream is True,
            blocks=self._even(identity, salt, ids) if self.sizes else NO_BLOCKS,
            ids=ids if keeps else b"",
            salt=salt if keeps else "",
        )

    def _even(self, identity: str, salt: str, ids: bytes) -> dict[int, list[int]]:
        """Keys of even blocks: engines name them by tokens, the adapter's name and the salt."""
        assert self.sizes is not None  # noqa: S101 - the caller has looked
        root = even_root(identity.partition("\0")[2], salt)
        return {size: even_chain(root, ids, size) for size in self.sizes()}

    def _by_text(self, endpoint: Endpoint, request: Request, known: Known | None) -> Prompt:
        text = canonical(endpoint, request)
        identity = known.identity if known else request.model or ""
        roots: list[str] = [endpoint.prompted, identity, _salt(request), *_named(request)]
        if more := apart(endpoint, request):
            roots.append(more)
        root = root_key(*roots)
        per_token = self.bytes_per_token if text.tokens is None else ID_BYTES
        return Prompt(
            model=request.model or "",
            tokens=int(len(text.data) / per_token) + PART_TOKENS * text.parts,
            keys=chain(root, text.data),
            ends=TEXT_ENDS,
            unit_tokens=1.0 / per_token,
            answer_tokens=self._answer(endpoint, request),
            estimated=text.plain and text.tokens is None,
            stream=request.stream is True,
        )

    def _measured(self, endpoint: Endpoint, request: Request) -> Prompt:
        return Prompt(
            model=request.model or "",
            tokens=int(measured(endpoint, request) / self.bytes_per_token),
            unit_tokens=1.0 / self.bytes_per_token,
            answer_tokens=self._answer(endpoint, request),
            estimated=endpoint.prompted is not Prompted.NOTHING,
            stream=request.stream is True,
        )

    def learn(self, prompt: Prompt, reported_tokens: int) -> None:
        """Correct bytes a token from the length that a worker reported for `prompt`."""
        if prompt.counted and reported_tokens != prompt.tokens:
            self.miscounted += 1
        if not prompt.estimated or prompt.tokens < SHORTEST or reported_tokens <= 0:
            return
        self._seen += 1
        weight = max(LEARNING, 1 / self._seen)
        step = min(2.0, max(0.5, prompt.tokens / reported_tokens)) ** weight
        self.bytes_per_token = min(16.0, max(1.0, self.bytes_per_token * step))

    def learn_answer(self, tokens: int) -> None:
        """A worker reported so long an answer."""
        self._answered += 1
        weight = max(LEARNING, 1 / (self._answered + 1))
        self.answer_tokens += weight * (min(tokens, LONGEST_ANSWER) - self.answer_tokens)

    def _answer(self, endpoint: Endpoint, request: Request) -> int:
        """Tokens that the answer is expected to take in the KV cache."""
        if not endpoint.answers:
            return 0
        expected = max(1, int(self.answer_tokens))
        return min(request.answer_limit or expected, expected)


def _several(endpoint: Endpoint, request: Request) -> bool:
    """Whether the request may hold several prompts, of which a worker reports the sum."""
    raw = {Prompted.COMPLETION: request.prompt, Prompted.INPUT: request.input}
    return bytes(memoryview(raw.get(endpoint.prompted, msgspec.Raw()))[:1]) == b"["


def _salt(request: Request) -> str:
    return request.cache_salt if isinstance(request.cache_salt, str) else ""


def _named(request: Request) -> tuple[str, ...]:
    """What the client keeps its routing apart by. Engines do not look at it, so it is no part of
    the blocks that they tell of."""
    named = request.prompt_cache_key
    return ("prompt_cache_key", named) if isinstance(named, str) and named else ()
