"""Having workers compute a short prompt, twice: whether they report what of it was cached.

It is the same prompt for all, and was never seen before: what they announce of it can be compared.
"""

import asyncio
from collections.abc import Sequence
from random import SystemRandom
from typing import NamedTuple

import msgspec

from controller.memory import Memory
from router.identity.sources import is_adapter
from router.inquiry import Inquiries, NoAnswer
from router.pool import Pool
from router.usage import Usage, UsageTail
from router.worker import Worker

PATH = "/v1/completions"
#: Tokens of the prompt: two blocks of the largest usual size, and some.
LENGTH = 520
#: Seconds that an answer may take, and events of it.
PATIENCE_S, EVENTS_S = 60.0, 5.0
_TICK_S = 0.05


class Asked(NamedTuple):
    """What came of it."""

    reports: bool | None
    """Whether the answers told cached tokens; None if there were no answers."""
    said: str
    """For people."""


def prompt_of() -> list[int]:
    """A prompt that nobody has seen, of tokens that every vocabulary has."""
    random = SystemRandom()
    return [random.randrange(33, 96) for _ in range(LENGTH)]


def model_of(worker: Worker) -> str:
    """The model to ask a worker for: none that is an adapter, if it has another one. What adapters
    compute is theirs alone, and stores keep it under other names."""
    bases = [name for name in worker.models if not is_adapter(name, worker.models)]
    return min(bases or worker.models)


async def ask_all(pool: Pool, memory: Memory | None, inquiries: Inquiries) -> dict[str, Asked]:
    """Ask every ready worker of a pool, all at once; then wait for their events, if they have any.
    Returns what came of it, by the worker's name."""
    prompt = prompt_of()
    ready = [worker for worker in pool.workers if worker.ready and worker.models]
    heard = {worker.name: memory.heard(worker.name) if memory else 0 for worker in ready}
    found = await asyncio.gather(*(_ask(worker, prompt, inquiries) for worker in ready))
    asked = dict(zip((worker.name for worker in ready), found, strict=True))
    if memory is not None:
        for name, one in asked.items():
            if one.reports is not None and name in memory.truths:
                memory.truths[name].answered(one.reports)
        speaking = [name for name, one in asked.items() if one.reports is not None]
        speaking = [name for name in speaking if not memory.doubt(name)]
        for _ in range(int(EVENTS_S / _TICK_S)):
            if all(memory.heard(name) > heard[name] for name in speaking):
                break
            await asyncio.sleep(_TICK_S)
    return asked


async def computed(
    worker: Worker, prompt: Sequence[int], inquiries: Inquiries, *, patience: float = PATIENCE_S
) -> Usage:
    """Have a prompt of these tokens computed; return what the worker says of it. Raises
    NoAnswer."""
    body = msgspec.json.encode(
        {"model": model_of(worker), "prompt": prompt, "max_tokens": 1, "temperature": 0}
    )
    answer = await inquiries.ask(worker, PATH, patience=patience, body=body)
    if not answer.good:
        raise NoAnswer(f"{PATH} answered {answer.status} to a prompt of token ids")
    tail = UsageTail()
    tail.add(answer.body)
    usage = tail.read()
    if usage.prompt is None:
        raise NoAnswer(f"{PATH} told no usage")
    return usage


async def _ask(worker: Worker, prompt: Sequence[int], inquiries: Inquiries) -> Asked:
    """Ask one, twice."""
    try:
        _, again = [await computed(worker, prompt, inquiries) for _ in range(2)]
    except NoAnswer as lacking:
        return Asked(None, f"a repeated prompt: not known: {lacking}")
    if again.cached is None:
        return Asked(False, "a repeated prompt: how much of it was cached is not reported")
    hint = "" if again.cached else " (see that vLLM has --enable-prefix-caching)"
    return Asked(True, f"a repeated prompt: {again.cached} of {LENGTH} tokens were cached{hint}")
