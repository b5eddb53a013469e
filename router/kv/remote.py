"""A remote controller, asked before each decision, with a deadline, and never required.

Its answer about a prompt is kept until the decision is made. If it does not answer in time, its
workers are doubted for that one prompt, and the decision goes by what was sent to them.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from controller.accuracy import TrackRecord
from controller.index.block_events import MAX_BLOCK_TOKENS
from controller.kv_memory import DEFAULT_BLOCK_SIZES
from router.kv.answers import Answers
from router.settings.server import TimeoutSettings
from router.upstream.errors import ResponseTimeout
from router.upstream.pool import Upstream
from router.upstream.usage import MAX_TOKENS
from strategies.api import Outcome, Prompt
from strategies.cost.prefill import Held

log = logging.getLogger("warmroute.controller")

#: Unanswered questions in a row after which the controller counts as gone, and the log says so.
MAX_FAILURES = 3
#: Computed prompts of a worker that are remembered until the controller's next answer shows whether
#: events followed.
MAX_UNJUDGED = 64
#: Most answers kept, and their size in units of `UNIT_BYTES`: one per key of a prompt, four per
#: worker that holds part of it, one per doubt, and the salt, whose length clients choose.
MAX_ANSWERS, MAX_ANSWERS_SIZE, UNIT_BYTES = 4096, 1 << 19, 50
#: Most questions at once; further ones are not asked. While the controller seems gone, only one is
#: asked at a time, so that the other requests do not wait for a deadline in vain.
MAX_QUESTIONS = 64
#: Most bytes of an answer; it needs some hundred per worker.
MAX_ANSWER_BYTES = 4 << 20
#: Seconds for which an idle connection is kept; uvicorn, which serves the controller, has 5.
IDLE_TIMEOUT_S = 4.0
SLOW, AWAY = "controller slow", "no controller"

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
    held: dict[str, Held]
    doubts: dict[str, str]
    failure: str


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
        self._predictions = Answers[_RemotePrediction](MAX_ANSWERS, MAX_ANSWERS_SIZE)
        self._in_flight = 0
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
                connect=deadline, first_byte=deadline, idle=deadline, keepalive=IDLE_TIMEOUT_S
            ),
        )

    def sizes(self) -> Sequence[int]:
        """Return the block sizes, in tokens, to cut prompts into; the most common first."""
        return self._sizes

    async def ask(self, prompt: Prompt, workers: Sequence[str]) -> None:
        """Ask about a prompt, for no longer than the deadline. Raises nothing."""
        prediction = _RemotePrediction({}, {}, "")
        if self._in_flight >= (MAX_QUESTIONS if self._failures < MAX_FAILURES else 1):
            prediction.failure = SLOW
        else:
            self._in_flight += 1
            try:
                async with asyncio.timeout(self._deadline):
                    await self._ask(prompt, prediction, workers)
                self.answers += 1
            except (TimeoutError, ResponseTimeout):
                prediction.failure = SLOW
            except Exception as error:  # noqa: BLE001 - the request must go on, whatever happened
                prediction.failure, self.why = AWAY, str(error)
            finally:
                self._in_flight -= 1
        self._note(prediction.failure)
        self.slow += prediction.failure == SLOW
        self.failed += prediction.failure == AWAY
        size = sum(map(len, prompt.blocks.values())) + len(prompt.salt) // UNIT_BYTES
        size += 4 * len(prediction.held) + len(prediction.doubts)
        self._predictions.keep(prompt, prediction, size)

    def _note(self, failure: str) -> None:
        """Record whether it answered; log when it is gone, and when it is back."""
        self.failing, self._failure = bool(failure), failure
        if not failure and self._failures >= MAX_FAILURES:
            log.info("controller %s: answers again", self.url)
        self._failures = self._failures + 1 if failure else 0
        if self._failures == MAX_FAILURES:
            log.warning("controller %s: %s: routing by what was sent", self.url, self.sentence())

    def sentence(self) -> str:
        """Say why the last question went unanswered."""
        why = self.why if self._failure == AWAY else ""
        return f"{self._failure} ({why})" if why else self._failure

    async def _ask(
        self, prompt: Prompt, prediction: _RemotePrediction, workers: Sequence[str]
    ) -> None:
        question: dict[str, Any] = {
            "tokens": prompt.tokens,
            "keys": dict(prompt.blocks),
            "workers": list(workers),
            "l1": self.l1,
        }
        answer = _decode(await self._post(msgspec.msgpack.encode(question)))
        held = {worker: Held(*tokens) for worker, tokens in answer.held.items()}
        if any(tokens.total > prompt.tokens for tokens in held.values()):
            raise ValueError("a controller says that more is held than a prompt has")
        prediction.held, prediction.doubts = held, answer.doubts
        self._sizes = answer.sizes or DEFAULT_BLOCK_SIZES
        self._judge(workers, answer)

    def _judge(self, workers: Sequence[str], answer: _RemoteAnswer) -> None:
        """Record whether prompts computed before this answer have led to events by now."""
        for worker in workers:
            self._doubts[worker] = answer.doubts.get(worker, "")
            computed = self._computed.pop(worker, ())
            if worker in answer.heard:
                now = self._heard[worker] = answer.heard[worker]
                for before in computed:
                    self.track_records.setdefault(worker, TrackRecord()).computed(before, now)

    async def _post(self, question: bytes) -> bytes:
        head = b"%b%d\r\n\r\n" % (self._head, len(question))
        connection = await self._upstream.ask(head, question)
        body = bytearray()
        try:
            while chunk := await connection.chunk():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    raise ValueError("a controller's answer is too long")
            status = connection.head.status
            if status in (401, 403):
                raise ValueError(f"it answered {status}: controller.key is none of its auth.keys")
            if status != 200:
                raise ValueError(f"it answered {status}")
        finally:
            self._upstream.release(connection)
        return bytes(body)

    def held(self, prompt: Prompt, workers: Sequence[str]) -> Mapping[str, Held]:
        """See `strategies.api.KvMemoryView`."""
        prediction = self._predictions.get(prompt)
        held = prediction.held if prediction else {}
        return {worker: held[worker] for worker in workers if worker in held}

    def doubt(self, worker: str, prompt: Prompt | None = None) -> str:
        """See `strategies.api.KvMemoryView`."""
        if prompt is None:
            return self._failure or self._wrong(worker, self._doubts)
        prediction = self._predictions.get(prompt)
        if prediction is None:  # prompts without even blocks are never asked about
            return AWAY if prompt.blocks else ""
        return prediction.failure or self._wrong(worker, prediction.doubts)

    def _wrong(self, worker: str, doubts: Mapping[str, str]) -> str:
        """Return why a worker is doubted: by the controller, or by comparison with its answers."""
        if doubts.get(worker):
            return doubts[worker]
        record = self.track_records.get(worker)
        return record.doubt(self.heard(worker)) if record is not None else ""

    def heard(self, worker: str) -> int:
        """See `strategies.api.KvMemoryView`."""
        return self._heard.get(worker, 0)

    def observe(self, worker: str, predicted: int | None, outcome: Outcome, heard: int) -> None:
        """See `strategies.api.KvMemoryView`."""
        if not outcome.ok:
            return
        record = self.track_records.setdefault(worker, TrackRecord())
        if record.compare(predicted, outcome, self._sizes[0]):
            self._computed.setdefault(worker, deque(maxlen=MAX_UNJUDGED)).append(heard)

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
