"""Long prompts are made in threads, so that nobody else's stream waits for them.

Bounded: so many at once, so many waiting; what comes on top is keyed by its text, which costs a
hundredth. A client that leaves takes its prompt with it, unless a thread has begun.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from router.openai import Endpoint, Request
from router.prompts import Made, Prompts

#: Bytes of a request whose prompt is made at once: a millisecond's work when all of it is new.
SHORT = 32 << 10
#: Prompts made at once. One thread at a time holds the interpreter, but tokenizers let go of it.
THREADS = 2
#: Prompts under way and waiting.
MOST = 64
#: Why a prompt was keyed by its text: a metric's label.
BUSY = "too many long prompts"


class Tokenizing:
    """Makes prompts. One for the whole router."""

    def __init__(self, threads: int = THREADS, most: int = MOST) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenizing")
        self._most = most
        self.pending = 0
        """Long prompts under way and waiting."""

    def is_short(self, prompts: Prompts, body: bytes) -> bool:
        """Whether the prompt may be made on the loop."""
        if prompts.asked:
            return False
        return len(body) <= SHORT or not prompts.known or not prompts.keyed

    async def make(
        self, prompts: Prompts, endpoint: Endpoint, request: Request, body: bytes
    ) -> Made:
        """Turn a long request into what a strategy may know of it, or one whose tokens are asked
        for."""
        asked = prompts.asked.get(request.model or "")
        if asked is None and len(body) <= SHORT:
            return prompts.made(endpoint, request, body)
        if self.pending >= self._most:
            return prompts.by_text(endpoint, request, BUSY)
        loop = asyncio.get_running_loop()
        self.pending += 1
        try:
            if asked is not None:
                return await prompts.ask(endpoint, request, body, asked)
            made = await loop.run_in_executor(self._threads, prompts.make, endpoint, request, body)
        finally:
            self.pending -= 1
        prompts.count(made.reason)
        return made

    def close(self) -> None:
        """Begin nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
