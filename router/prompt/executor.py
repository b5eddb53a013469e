"""Makes long prompts in threads, so that other streams do not wait for them.

Bounded in threads and in waiting prompts; beyond that, prompts are keyed by their text, which costs
a hundredth. The prompt of a client that disconnects is skipped, unless a thread has begun it.
Tenants take turns (`runtime/threads.py`). Reading a large body, and keying it by its text, has a
thread of its own.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from time import thread_time
from weakref import WeakKeyDictionary

from router.api.endpoints import Endpoint
from router.api.request import Request
from router.prompt.prompts import AskedModel, MadePrompt, Prompts
from router.rendering.tokens import MAX_PROMPT_CHARS, PromptTokenizer
from router.runtime.threads import Crowded, Lane

#: Bodies of more bytes are read, and keyed by their text, in a thread.
MAX_LOOP_BODY_BYTES = 512 << 10
#: Of requests that are only explained, those of more bytes: nobody waits for them.
MAX_LOOP_EXPLAINED_BYTES = 64 << 10
#: Prompts made at once. Only one thread at a time can hold the GIL, but tokenizers release it.
MAX_THREADS = 2
#: Most prompts in threads or waiting for one, and per pool, most whose tokens are being asked for.
MAX_PENDING = 64
#: Seconds after which a prompt is not waited for any more.
PROMPT_TIMEOUT_S = 1.0
#: Most objects and lists in a request that is tokenized on the loop: each message or tool takes
#: time, however short it is, and nested ones may be indented deeply. So many list entries count as
#: much as one object.
MAX_LOOP_OBJECTS, ENTRIES_PER_OBJECT = 128, 12
#: CPU seconds that a prompt may take on the loop. After one that takes more, the model's requests
#: of more than half its size are made in threads; after one that takes more than the second, all
#: are.
MAX_LOOP_CPU_S, MAX_LOOP_CPU_ONCE_S = 0.01, 0.1
#: After so many longer requests in a row that were fast in threads, the size up to which requests
#: are made on the loop doubles (to so many bytes at least): one odd request has no lasting effect.
FAST_IN_A_ROW, MIN_LOOP_BODY_BYTES = 32, 512
#: Metric labels: why a prompt was keyed by its text.
BUSY, SLOW = "too many long prompts", "tokenized too slowly"
ASKING = "too many prompts to ask for"


class PromptExecutor:
    """Makes prompts, on the loop or in threads. One for the whole router."""

    def __init__(
        self,
        threads: int = MAX_THREADS,
        most: int = MAX_PENDING,
        patience: float = PROMPT_TIMEOUT_S,
        clock: Callable[[], float] = thread_time,
    ) -> None:
        self._lane = Lane(threads, "tokenizing", most=most)
        self.reading = Lane(1, "reading", sliced=True)
        """For what is done with large bodies."""
        self._most = most
        self._patience = patience
        self._clock = clock
        self._shorter: WeakKeyDictionary[PromptTokenizer, _Shorter] = WeakKeyDictionary()
        """Reduced size limits, for models that were slow on the loop."""

    @property
    def pending(self) -> int:
        """Prompts in threads or waiting for one; those in threads also if nobody waits for them."""
        return self._lane.pending

    def is_short(self, prompts: Prompts, request: Request, body: bytes) -> bool:
        """Return true if the prompt may be made on the loop."""
        if request.model in prompts.asked:
            return False
        if not prompts.keyed:
            return True
        known = prompts.known.get(request.model or "")
        if known is None:
            return len(body) <= MAX_LOOP_BODY_BYTES
        shorter = self._shorter.get(known.exact)
        if len(body) > (known.exact.short if shorter is None else shorter.size):
            return False
        return _has_few(body)

    def made(
        self, prompts: Prompts, endpoint: Endpoint, request: Request, body: bytes
    ) -> MadePrompt:
        """Make the prompt of a short request on the loop."""
        known = prompts.known.get(request.model or "")
        if known is None:  # keyed by text: too fast to be worth a system call for the clock
            made = prompts.make(endpoint, request, body)
        else:
            started = self._clock()
            made = prompts.make(endpoint, request, body)
            took = self._clock() - started
            if took > MAX_LOOP_CPU_S:
                size = 0 if took > MAX_LOOP_CPU_ONCE_S else len(body) // 2
                self._shorter[known.exact] = _Shorter(size)
        prompts.count(made.reason)
        return made

    def _learn(self, exact: PromptTokenizer, body: bytes, took: float) -> None:
        """Learn from the CPU seconds of a prompt in a thread that might have run on the loop."""
        shorter = self._shorter.get(exact)
        if shorter is None or len(body) > exact.short or not _has_few(body):
            return
        if took > MAX_LOOP_CPU_S:
            if len(body) <= shorter.next:
                shorter.quick = 0
            return
        shorter.quick += len(body) > shorter.size
        if shorter.quick >= FAST_IN_A_ROW:
            self._shorter[exact] = _Shorter(shorter.next)
            if shorter.next >= exact.short:
                del self._shorter[exact]

    async def make(
        self,
        prompts: Prompts,
        endpoint: Endpoint,
        request: Request,
        body: bytes,
        tenant: str = "",
        *,
        large: bool = False,
    ) -> MadePrompt:
        """Make the prompt of a long request, or of one whose tokens are asked of a worker.

        `large`: even its text is too much for the event loop.
        """
        asked_model = prompts.asked.get(request.model or "")
        if asked_model is not None:
            made = await self._ask(
                prompts, endpoint, request, body, asked_model, tenant=tenant, large=large
            )
        elif prompts.keyed:
            made = await self._in_thread(prompts, endpoint, request, body, tenant, large=large)
        else:
            made = prompts.make(endpoint, request, body)
        prompts.count(made.reason)
        return made

    async def uncounted(
        self, prompts: Prompts, endpoint: Endpoint, request: Request, body: bytes
    ) -> MadePrompt:
        """Make any request's prompt without counting it: the request is not sent."""
        asked_model = prompts.asked.get(request.model or "")
        large = len(body) > MAX_LOOP_EXPLAINED_BYTES and prompts.keyed
        if asked_model is not None:
            make = await prompts.ask(endpoint, request, body, asked_model)
            return await self.reading.run(make, len(body)) if large else make()
        if large or not self.is_short(prompts, request, body):
            return await self._in_thread(prompts, endpoint, request, body, "", large=large)
        return prompts.make(endpoint, request, body)

    async def _in_thread(
        self,
        prompts: Prompts,
        endpoint: Endpoint,
        request: Request,
        body: bytes,
        tenant: str,
        *,
        large: bool,
    ) -> MadePrompt:
        known = prompts.known.get(request.model or "")
        make = partial(prompts.make, endpoint, request, body)
        if known is None or (len(body) > MAX_PROMPT_CHARS and not known.media):
            # By its text in any case; what has begun is finished first.
            return await self.reading.run(make, 0, tenant)
        reason = ""
        try:
            async with asyncio.timeout(self._patience):
                made, took = await self._lane.run(partial(self._timed, make), len(body), tenant)
        except TimeoutError:  # a thread that has begun runs to its end
            reason = SLOW
        except Crowded:
            reason = BUSY
        else:
            self._learn(known.exact, body, took)
            return made
        by_text = partial(prompts.by_text, endpoint, request, reason)
        return await self.reading.run(by_text, 0, tenant) if large else by_text()

    def _timed(self, make: Callable[[], MadePrompt]) -> tuple[MadePrompt, float]:
        """Make a prompt; return the CPU seconds too that it took in this thread."""
        started = self._clock()
        return make(), self._clock() - started

    async def _ask(
        self,
        prompts: Prompts,
        endpoint: Endpoint,
        request: Request,
        body: bytes,
        asked_model: AskedModel,
        *,
        tenant: str,
        large: bool,
    ) -> MadePrompt:
        """Ask a worker for the tokens. Bounded per pool: slow workers affect only their own."""
        if prompts.asking >= self._most:
            make: Callable[[], MadePrompt] = partial(prompts.by_text, endpoint, request, ASKING)
        else:
            prompts.asking += 1
            try:
                make = await prompts.ask(endpoint, request, body, asked_model)
            finally:
                prompts.asking -= 1
        return await self.reading.run(make, 0, tenant) if large else make()

    def close(self) -> None:
        """Start no more work."""
        self._lane.close()
        self.reading.close()


class _Shorter:
    """The reduced size limit of one model, and how many longer prompts in a row were fast."""

    def __init__(self, size: int) -> None:
        self.size, self.quick = size, 0
        self.next = max(2 * size, MIN_LOOP_BODY_BYTES)


def _has_few(body: bytes) -> bool:
    """Return true if a body has few enough objects, lists and list entries."""
    things = body.count(b"{") + body.count(b"[")
    return things + body.count(b",") / ENTRIES_PER_OBJECT <= MAX_LOOP_OBJECTS
