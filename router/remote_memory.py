"""A controller elsewhere, asked before each decision: with a deadline, and never needed.

What it says of a prompt is kept until the decision is made. Where it does not answer in time, its
workers are doubted for this one prompt, and what was sent to them decides.
"""

import asyncio
import logging
import ssl
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from controller.events import WIDEST
from controller.memory import SURELY_NEW, USUAL
from controller.truth import Truth
from router.connection import Patience
from router.errors import Silent
from router.upstream import Upstream
from router.usage import MOST
from strategies.base import Outcome, Prompt
from strategies.loads import Held

log = logging.getLogger("warmroute.controller")

#: Questions in a row that are not answered before the log says so.
GONE = 3
#: Computed prompts of a worker that wait for the controller's next answer to be judged by it.
UNJUDGED = 64
#: Prompts whose answers are kept; and what there may be in all of them, keys and workers.
KEPT, KEPT_WORDS = 4096, 1 << 19
WORD_BYTES = 50
#: Questions under way; more are not asked. While it seems to be gone, it is one: the others need
#: not wait for a deadline that will pass.
AT_ONCE = 64
#: Bytes of an answer: some hundred for each worker.
LARGEST = 4 << 20
#: Seconds for which a connection is kept; uvicorn, which serves the controller, has 5.
KEPT_S = 4.0
SLOW, AWAY = "controller slow", "no controller"


#: What a controller may say: no prompt has more tokens, and no block fewer than one.
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=WIDEST)]


class _Answer(msgspec.Struct, array_like=True):
    held: dict[str, tuple[_Tokens, _Tokens, _Tokens]]
    doubts: dict[str, str]
    sizes: list[_Size]
    heard: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}
    """Events that each worker has told, ever; an older controller does not say."""


_decode = msgspec.msgpack.Decoder(_Answer).decode


class _Said(msgspec.Struct):
    prompt: Prompt
    """Kept, so that no other one can be taken for it."""
    held: dict[str, Held]
    doubts: dict[str, str]
    failure: str
    words: int = 0
    """Keys of the prompt, and workers that something is said of: `WORD_BYTES` each, or 200."""


class RemoteMemory:
    """Answers `kvaware` with what a controller has said."""

    def __init__(self, url: str, key: str, deadline: float) -> None:
        """`deadline` in seconds."""
        self.url = url
        self.truths: dict[str, Truth] = {}
        self.l1 = True
        """Whether what lies in the hosts' memory counts here: the controller is told."""
        self.answers = self.slow = self.failed = 0
        """Questions that were answered, that were not in time, that could not be."""
        self.failing = False
        """The last question was not answered."""
        self._failure, self._failures = "", 0
        self._doubts: dict[str, str] = {}
        self._heard: dict[str, int] = {}
        """As the last answer had it, by worker."""
        self._computed: dict[str, deque[int]] = {}
        """Events that a worker had told before it was sent what it has computed since."""
        self._deadline = deadline
        self._sizes: Sequence[int] = USUAL
        self._said: OrderedDict[int, _Said] = OrderedDict()
        self._words = 0
        self._flying = 0
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        fields = f"host: {parts.netloc}\r\ncontent-type: application/msgpack\r\n"
        if key:
            fields += f"authorization: Bearer {key}\r\n"
        self._head = f"POST /held HTTP/1.1\r\n{fields}content-length: ".encode()
        # Requests' own kind of connection: what is given up in the middle is closed at once.
        self._upstream = Upstream(
            parts.hostname or "",
            parts.port or (443 if secure else 80),
            tls=ssl.create_default_context() if secure else None,
            patience=Patience(deadline, deadline, deadline, KEPT_S),
        )

    def sizes(self) -> Sequence[int]:
        """Tokens a block: into these prompts should be cut; the most usual first."""
        return self._sizes

    async def ask(self, prompt: Prompt, workers: Sequence[str]) -> None:
        """Ask about a prompt, for no longer than the deadline. Raises nothing."""
        said = _Said(prompt, {}, {}, "")
        if self._flying >= (AT_ONCE if self._failures < GONE else 1):
            said.failure = SLOW
        else:
            self._flying += 1
            try:
                async with asyncio.timeout(self._deadline):
                    await self._ask(said, workers)
                self.answers += 1
            except (TimeoutError, Silent):
                said.failure = SLOW
            except Exception:  # noqa: BLE001 - whatever it was, the request must go on
                said.failure = AWAY
            finally:
                self._flying -= 1
        self._note(said.failure)
        self.slow += said.failure == SLOW
        self.failed += said.failure == AWAY
        self._keep(said)

    def _note(self, failure: str) -> None:
        """Whether it answered; the log is told when it goes, and when it comes back."""
        self.failing, self._failure = bool(failure), failure
        if not failure and self._failures >= GONE:
            log.info("controller %s: answers again", self.url)
        self._failures = self._failures + 1 if failure else 0
        if self._failures == GONE:
            log.warning("controller %s: %s: routing by what was sent", self.url, failure)

    def _keep(self, said: _Said) -> None:
        """Keep an answer until the decision is made, and no more of those before than there is room
        for."""
        prompt = said.prompt
        said.words = sum(map(len, prompt.blocks.values())) + 4 * len(said.held) + len(said.doubts)
        said.words += len(prompt.salt) // WORD_BYTES  # as long as its client likes
        before = self._said.pop(id(prompt), None)
        self._words += said.words - (before.words if before else 0)
        self._said[id(prompt)] = said
        while len(self._said) > 1 and (len(self._said) > KEPT or self._words > KEPT_WORDS):
            self._words -= self._said.popitem(last=False)[1].words

    async def _ask(self, said: _Said, workers: Sequence[str]) -> None:
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
        self._sizes = told.sizes or USUAL
        self._judge(workers, told)

    def _judge(self, workers: Sequence[str], told: _Answer) -> None:
        """What was computed before this answer must have been announced by now."""
        for worker in workers:
            self._doubts[worker] = told.doubts.get(worker, "")
            computed = self._computed.pop(worker, ())
            if worker in told.heard:
                now = self._heard[worker] = told.heard[worker]
                for before in computed:
                    self.truths.setdefault(worker, Truth()).computed(before, now)

    async def _post(self, question: bytes) -> bytes:
        head = b"%b%d\r\n\r\n" % (self._head, len(question))
        connection = await self._upstream.ask(head, question)
        said = bytearray()
        try:
            while chunk := await connection.chunk():
                said += chunk
                if len(said) > LARGEST:
                    raise ValueError("a controller's answer is too long")
            if connection.head.status != 200:
                raise ValueError(f"a controller answered {connection.head.status}")
        finally:
            self._upstream.release(connection)
        return bytes(said)

    def held(self, prompt: Prompt, workers: Sequence[str]) -> Mapping[str, Held]:
        """As `strategies.kvaware.Memory` has it."""
        said = self._of(prompt)
        told = said.held if said else {}
        return {worker: told[worker] for worker in workers if worker in told}

    def doubt(self, worker: str, prompt: Prompt | None = None) -> str:
        """As `strategies.kvaware.Memory` has it."""
        if prompt is None:
            return self._failure or self._wrong(worker, self._doubts)
        said = self._of(prompt)
        if said is None:  # nobody asks about a prompt without tokens
            return AWAY if prompt.blocks else ""
        return said.failure or self._wrong(worker, said.doubts)

    def _wrong(self, worker: str, doubts: Mapping[str, str]) -> str:
        """What the controller says against a worker, or its own answers do."""
        if doubts.get(worker):
            return doubts[worker]
        truth = self.truths.get(worker)
        if truth is None:
            return ""
        if truth.silent(self.heard(worker)):
            return "silent"
        return "disagrees" if truth.demoted else ""

    def heard(self, worker: str) -> int:
        """As `strategies.kvaware.Memory` has it."""
        return self._heard.get(worker, 0)

    def observe(self, worker: str, predicted: int | None, outcome: Outcome, heard: int) -> None:
        """As `strategies.kvaware.Memory` has it."""
        if not outcome.ok:
            return
        truth = self.truths.setdefault(worker, Truth())
        if outcome.prompt_tokens:
            truth.answered(outcome.cached_tokens is not None)
        if outcome.cached_tokens is None:
            return
        if (outcome.prompt_tokens or 0) - outcome.cached_tokens >= SURELY_NEW:
            self._computed.setdefault(worker, deque(maxlen=UNJUDGED)).append(heard)
        if predicted is not None:
            truth.observe(predicted, outcome.cached_tokens, self._sizes[0])

    def correct(
        self, worker: str, prompt: Prompt, believed: Held, found: Held, *, sure: bool
    ) -> None:
        """A controller goes by what engines tell, which heals by itself when they write again."""

    def forget(self, worker: str) -> None:
        """The controller finds out by itself; our own record of it ends."""
        for kept in (self.truths, self._doubts, self._heard, self._computed):
            kept.pop(worker, None)

    async def close(self) -> None:
        """Let go of the connections."""
        self._upstream.close()

    def _of(self, prompt: Prompt | None) -> _Said | None:
        said = self._said.get(id(prompt))
        return said if said is not None and said.prompt is prompt else None
