"""A remote controller, asked before each decision, with a deadline, and never required.

Its answer about a prompt is kept until the decision is made. If it does not answer in time, its
workers are doubted for that one prompt, and the decision goes by what was sent to them.
"""

import asyncio
import logging
import ssl
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from controller.accuracy import TrackRecord
from controller.index.block_events import MAX_BLOCK_TOKENS
from controller.kv_memory import DEFAULT_BLOCK_SIZES, MIN_NEW_TOKENS
from router.settings.server import TimeoutSettings
from router.upstream.errors import Silent
from router.upstream.pool import Upstream
from router.upstream.usage import MAX_TOKENS
from strategies.api import Outcome, Prompt
from strategies.cost.tiers import Held

log = logging.getLogger("warmroute.controller")

#: Unanswered questions in a row after which the controller counts as gone, and the log says so.
GONE = 3
#: Computed prompts of a worker that are remembered until the controller's next answer shows whether
#: events followed.
UNJUDGED = 64
#: Most answers kept, and most words (see `_RemotePrediction.words`) in all of them.
MAX_ANSWERS, MAX_ANSWER_WORDS = 4096, 1 << 19
WORD_BYTES = 50
#: Most questions at once; further ones are not asked. While the controller seems gone, only one is
#: asked at a time, so that the other requests do not wait for a deadline in vain.
MAX_QUESTIONS = 64
#: Most bytes of an answer; it needs some hundred per worker.
MAX_ANSWER_BYTES = 4 << 20
#: Seconds for which an idle connection is kept; uvicorn, which serves the controller, has 5.
KEPT_S = 4.0
SLOW, AWAY = "controller slow", "no controller"
#: Statuses with which it rejects the key.
_NOT_US = frozenset((401, 403))


#: Bounds on a controller's numbers: no prompt has more tokens, no block fewer than one.
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=MAX_BLOCK_TOKENS)]


class _RemoteAnswer(msgspec.Struct, array_like=True):
    held: dict[str, tuple[_Tokens, _Tokens, _Tokens]]
    doubts: dict[str, str]
    sizes: list[_Size]
    heard: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}
    """All events ever received from each worker; older controllers do not report it."""


_decode = msgspec.msgpack.Decoder(_RemoteAnswer).decode


class _RemotePrediction(msgspec.Struct):
    prompt: Prompt
    """Kept alive, so that its `id`, the key of this answer, is not reused."""
    held: dict[str, Held]
    doubts: dict[str, str]
    failure: str
    words: int = 0
    """Size in units of `WORD_BYTES`: one per key of the prompt, four per worker that holds part of
    it, one per doubt, and the salt."""


class RemoteMemory:
    """The memory of `kvaware`, with the answers of a remote controller."""

    def __init__(self, url: str, key: str, deadline: float) -> None:
        """`deadline` is in seconds."""
        self.url = url
        self.track_records: dict[str, TrackRecord] = {}
        self.l1 = True
        """Whether blocks in host memory (the L1 tier) count; sent along with each question."""
        self.answers = self.slow = self.failed = 0
        """Questions that were answered, that were too slow, and that failed."""
        self.failing = False
        """Whether the last question went unanswered."""
        self.why = ""
        """Why the last question that failed did, for people; may be empty."""
        self._failure, self._failures = "", 0
        self._doubts: dict[str, str] = {}
        self._heard: dict[str, int] = {}
        """Events received from each worker, according to the last answer."""
        self._computed: dict[str, deque[int]] = {}
        """For each prompt that a worker has computed: the events received before it was sent."""
        self._deadline = deadline
        self._sizes: Sequence[int] = DEFAULT_BLOCK_SIZES
        self._said: OrderedDict[int, _RemotePrediction] = OrderedDict()
        self._words = 0
        self._flying = 0
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        fields = f"host: {parts.netloc}\r\ncontent-type: application/msgpack\r\n"
        if key:
            fields += f"authorization: Bearer {key}\r\n"
        self._head = f"POST /held HTTP/1.1\r\n{fields}content-length: ".encode()
        # The same connections as for requests: one given up in mid-answer is closed at once.
        self._upstream = Upstream(
            parts.hostname or "",
            parts.port or (443 if secure else 80),
            tls=ssl.create_default_context() if secure else None,
            timeouts=TimeoutSettings.model_construct(
                connect=deadline, first_byte=deadline, idle=deadline, keepalive=KEPT_S
            ),
        )

    def sizes(self) -> Sequence[int]:
        """Return the block sizes, in tokens, to cut prompts into; the most common first."""
        return self._sizes

    async def ask(self, prompt: Prompt, workers: Sequence[str]) -> None:
        """Ask about a prompt, for no longer than the deadline. Raises nothing."""
        said = _RemotePrediction(prompt, {}, {}, "")
        if self._flying >= (MAX_QUESTIONS if self._failures < GONE else 1):
            said.failure = SLOW
        else:
            self._flying += 1
            try:
                async with asyncio.timeout(self._deadline):
                    await self._ask(said, workers)
                self.answers += 1
            except (TimeoutError, Silent):
                said.failure = SLOW
            except Exception as error:  # noqa: BLE001 - the request must go on, whatever happened
                said.failure, self.why = AWAY, str(error)
            finally:
                self._flying -= 1
        self._note(said.failure)
        self.slow += said.failure == SLOW
        self.failed += said.failure == AWAY
        self._keep(said)

    def _note(self, failure: str) -> None:
        """Record whether it answered; log when it is gone, and when it is back."""
        self.failing, self._failure = bool(failure), failure
        if not failure and self._failures >= GONE:
            log.info("controller %s: answers again", self.url)
        self._failures = self._failures + 1 if failure else 0
        if self._failures == GONE:
            log.warning("controller %s: %s: routing by what was sent", self.url, self.sentence())

    def sentence(self) -> str:
        """Say why the last question went unanswered."""
        why = self.why if self._failure == AWAY else ""
        return f"{self._failure} ({why})" if why else self._failure

    def _keep(self, said: _RemotePrediction) -> None:
        """Keep an answer until the decision is made; drop the oldest ones beyond the bounds."""
        prompt = said.prompt
        said.words = sum(map(len, prompt.blocks.values())) + 4 * len(said.held) + len(said.doubts)
        said.words += len(prompt.salt) // WORD_BYTES  # clients choose its length
        before = self._said.pop(id(prompt), None)
        self._words += said.words - (before.words if before else 0)
        self._said[id(prompt)] = said
        while len(self._said) > 1 and (
            len(self._said) > MAX_ANSWERS or self._words > MAX_ANSWER_WORDS
        ):
            self._words -= self._said.popitem(last=False)[1].words

    async def _ask(self, said: _RemotePrediction, workers: Sequence[str]) -> None:
        prompt = said.prompt
        question: dict[str, Any] = {
            "tokens": prompt.tokens,
            "keys": dict(prompt.blocks),
            "workers": list(workers),
            "l1": self.l1,
        }
        told = _decode(await self._post(msgspec.msgpack.encode(question)))
        held = {worker: Held(*tokens) for worker, tokens in told.held.items()}
        if any(one.total > prompt.tokens for one in held.values()):
            raise ValueError("a controller says that more is held than a prompt has")
        said.held = held
        said.doubts = told.doubts
        self._sizes = told.sizes or DEFAULT_BLOCK_SIZES
        self._judge(workers, told)

    def _judge(self, workers: Sequence[str], told: _RemoteAnswer) -> None:
        """Record whether prompts computed before this answer have led to events by now."""
        for worker in workers:
            self._doubts[worker] = told.doubts.get(worker, "")
            computed = self._computed.pop(worker, ())
            if worker in told.heard:
                now = self._heard[worker] = told.heard[worker]
                for before in computed:
                    self.track_records.setdefault(worker, TrackRecord()).computed(before, now)

    async def _post(self, question: bytes) -> bytes:
        head = b"%b%d\r\n\r\n" % (self._head, len(question))
        connection = await self._upstream.ask(head, question)
        said = bytearray()
        try:
            while chunk := await connection.chunk():
                said += chunk
                if len(said) > MAX_ANSWER_BYTES:
                    raise ValueError("a controller's answer is too long")
            status = connection.head.status
            if status in _NOT_US:
                raise ValueError(f"it answered {status}: controller.key is none of its auth.keys")
            if status != 200:
                raise ValueError(f"it answered {status}")
        finally:
            self._upstream.release(connection)
        return bytes(said)

    def held(self, prompt: Prompt, workers: Sequence[str]) -> Mapping[str, Held]:
        """See `strategies.api.KvMemoryView`."""
        said = self._of(prompt)
        told = said.held if said else {}
        return {worker: told[worker] for worker in workers if worker in told}

    def doubt(self, worker: str, prompt: Prompt | None = None) -> str:
        """See `strategies.api.KvMemoryView`."""
        if prompt is None:
            return self._failure or self._wrong(worker, self._doubts)
        said = self._of(prompt)
        if said is None:  # prompts without even blocks are never asked about
            return AWAY if prompt.blocks else ""
        return said.failure or self._wrong(worker, said.doubts)

    def _wrong(self, worker: str, doubts: Mapping[str, str]) -> str:
        """Return why a worker is doubted: by the controller, or by comparison with its answers."""
        if doubts.get(worker):
            return doubts[worker]
        truth = self.track_records.get(worker)
        if truth is None:
            return ""
        if truth.silent(self.heard(worker)):
            return "silent"
        return "disagrees" if truth.demoted else ""

    def heard(self, worker: str) -> int:
        """See `strategies.api.KvMemoryView`."""
        return self._heard.get(worker, 0)

    def observe(self, worker: str, predicted: int | None, outcome: Outcome, heard: int) -> None:
        """See `strategies.api.KvMemoryView`."""
        if not outcome.ok:
            return
        truth = self.track_records.setdefault(worker, TrackRecord())
        if outcome.prompt_tokens:
            truth.answered(outcome.cached_tokens is not None)
        if outcome.cached_tokens is None:
            return
        if (outcome.prompt_tokens or 0) - outcome.cached_tokens >= MIN_NEW_TOKENS:
            self._computed.setdefault(worker, deque(maxlen=UNJUDGED)).append(heard)
        if predicted is not None:
            truth.observe(predicted, outcome.cached_tokens, self._sizes[0])

    def correct(
        self, worker: str, prompt: Prompt, believed: Held, found: Held, *, sure: bool
    ) -> None:
        """Do nothing: the controller's index follows KV events, which correct it by themselves."""

    def forget(self, worker: str) -> None:
        """Drop our own record of a worker; the controller notices by itself."""
        for kept in (self.track_records, self._doubts, self._heard, self._computed):
            kept.pop(worker, None)

    def tidy(self, workers: Collection[str]) -> None:
        """Forget workers other than these: the last answers of one may end after it has left."""
        for name in (*self.track_records, *self._computed):
            if name not in workers:
                self.forget(name)

    async def close(self) -> None:
        """Close the connections."""
        self._upstream.close()

    def _of(self, prompt: Prompt | None) -> _RemotePrediction | None:
        said = self._said.get(id(prompt))
        return said if said is not None and said.prompt is prompt else None
