"""Long prompts are made in threads, so that nobody else's stream waits for them.

Bounded: so many at once, so many waiting; what comes on top is keyed by its text, which costs a
hundredth. A client that leaves takes its prompt with it, unless a thread has begun.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from time import thread_time
from weakref import WeakKeyDictionary

from router.identity.exact import Exact
from router.openai import Endpoint, Request
from router.prompts import Asked, Made, Prompts

#: Prompts made at once. One thread at a time holds the interpreter, but tokenizers let go of it.
THREADS = 2
#: Prompts under way and waiting, and as many of each pool whose tokens are asked for.
MOST = 64
#: Seconds after which a prompt is not waited for any more.
PATIENCE_S = 1.0
#: Objects and lists in a request that may be read and rendered on the loop: each message and each
#: tool takes its time, however little it says; one within the other may be indented far. As much as
#: one of them take so many entries of lists.
OBJECTS, ENTRIES = 128, 12
#: Seconds of this thread that a prompt made on the loop may take: if one takes more, the model's
#: requests of half that size are made in threads from then on; all of them, if it takes far more.
HERE_S, FAR_S = 0.01, 0.1
#: After so many in a row that were quick in threads, those of twice that size are made on the loop
#: again, or those of so many bytes: one odd request does not keep a model's others away for good.
QUICK, LEAST = 32, 512
#: Why a prompt was keyed by its text: metrics' labels.
BUSY, SLOW = "too many long prompts", "tokenized too slowly"
ASKING = "too many prompts to ask for"


class Tokenizing:
    """Makes prompts. One for the whole router."""

    def __init__(
        self,
        threads: int = THREADS,
        most: int = MOST,
        patience: float = PATIENCE_S,
        clock: Callable[[], float] = thread_time,
    ) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenizing")
        self._most = most
        self._patience = patience
        self._clock = clock
        self._shorter: WeakKeyDictionary[Exact, _Shorter] = WeakKeyDictionary()
        """What is short of models whose templates are slow."""
        self.pending = 0
        """Long prompts under way and waiting; those too that nobody waits for any more."""

    def is_short(self, prompts: Prompts, request: Request, body: bytes) -> bool:
        """Whether the prompt may be made on the loop."""
        if request.model in prompts.asked:
            return False
        known = prompts.known.get(request.model or "") if prompts.keyed else None
        if known is None:
            return True
        shorter = self._shorter.get(known.exact)
        if len(body) > (known.exact.short if shorter is None else shorter.size):
            return False
        return _has_few(body)

    def made(self, prompts: Prompts, endpoint: Endpoint, request: Request, body: bytes) -> Made:
        """Turn a short request into what a strategy may know, here and now."""
        known = prompts.known.get(request.model or "")
        if known is None:  # reading this clock is a system call, and its text takes no time
            return prompts.made(endpoint, request, body)
        started = self._clock()
        made = prompts.made(endpoint, request, body)
        took = self._clock() - started
        if took > HERE_S:
            self._shorter[known.exact] = _Shorter(0 if took > FAR_S else len(body) // 2)
        return made

    def _learn(self, exact: Exact, body: bytes, took: float) -> None:
        """A thread took so long for a prompt that might have been made on the loop."""
        shorter = self._shorter.get(exact)
        if shorter is None or len(body) > exact.short or not _has_few(body):
            return
        if took > HERE_S:
            if len(body) <= shorter.next:
                shorter.quick = 0
            return
        shorter.quick += len(body) > shorter.size
        if shorter.quick >= QUICK:
            self._shorter[exact] = _Shorter(shorter.next)
            if shorter.next >= exact.short:
                del self._shorter[exact]

    async def make(
        self, prompts: Prompts, endpoint: Endpoint, request: Request, body: bytes
    ) -> Made:
        """Turn a long request, or one whose tokens are asked for, into what a strategy may know."""
        asked = prompts.asked.get(request.model or "")
        if asked is not None:
            return await self._ask(prompts, endpoint, request, body, asked)
        if self.pending >= self._most:
            return prompts.by_text(endpoint, request, BUSY)
        known = prompts.known.get(request.model or "")
        work = _Work(prompts, endpoint, request, body, self._clock)
        future = self._threads.submit(work)
        loop = asyncio.get_running_loop()
        self.pending += 1
        future.add_done_callback(lambda _: _tell(loop, self._ended))
        try:
            # Not cancelled with its client: what is queued keeps its body, and so has to count.
            async with asyncio.timeout(self._patience):
                made = await asyncio.shield(asyncio.wrap_future(future))
        except TimeoutError:  # a thread that has begun goes on to its end
            made = None
        finally:
            work.wanted = False
        if made is None:
            return prompts.by_text(endpoint, request, SLOW)
        if known is not None:
            self._learn(known.exact, body, work.took)
        prompts.count(made.reason)
        return made

    async def _ask(
        self, prompts: Prompts, endpoint: Endpoint, request: Request, body: bytes, asked: Asked
    ) -> Made:
        """Have a worker tell its tokens. One pool's slow workers are no other's business."""
        if prompts.asking >= self._most:
            return prompts.by_text(endpoint, request, ASKING)
        prompts.asking += 1
        try:
            return await prompts.ask(endpoint, request, body, asked)
        finally:
            prompts.asking -= 1

    def _ended(self) -> None:
        self.pending -= 1

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Shorter:
    """What is short of one model, and how many in a row were quick that are longer."""

    def __init__(self, size: int) -> None:
        self.size, self.quick = size, 0
        self.next = max(2 * size, LEAST)


class _Work:
    """One prompt to be made, as long as somebody waits for it."""

    def __init__(
        self,
        prompts: Prompts,
        endpoint: Endpoint,
        request: Request,
        body: bytes,
        clock: Callable[[], float],
    ) -> None:
        self._make = partial(prompts.make, endpoint, request, body)
        self._clock = clock
        self.wanted = True
        self.took = 0.0
        """Seconds of its thread."""

    def __call__(self) -> Made | None:
        """Runs in a thread."""
        if not self.wanted:
            return None
        started = self._clock()
        made = self._make()
        self.took = self._clock() - started
        return made


def _has_few(body: bytes) -> bool:
    """Whether few enough things are in it."""
    things = body.count(b"{") + body.count(b"[")
    return things + body.count(b",") / ENTRIES <= OBJECTS


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has ended before the thread
        loop.call_soon_threadsafe(what)
