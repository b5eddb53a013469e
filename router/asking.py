"""Has workers compute a short prompt twice, to see whether they report cached tokens.

All get the same prompt, and it is a new one, so the KV events they send for it can be compared.
"""

import asyncio
from collections.abc import Sequence
from random import SystemRandom
from typing import NamedTuple

import msgspec

from controller.kv_memory import KvMemory
from router.identity.sources import is_adapter
from router.inquiry import Inquiries, NoAnswer
from router.memory_status import USAGE_FLAG
from router.pool import Pool
from router.usage import Usage, UsageTail
from router.worker import Worker

PATH = "/v1/completions"
#: Tokens of the prompt: a little more than two blocks of the largest usual size.
LENGTH = 520
#: Seconds to wait for an answer, and for the KV events that follow it.
PATIENCE_S, EVENTS_S = 60.0, 5.0
_TICK_S = 0.05


class Asked(NamedTuple):
    """What one worker answered."""

    reports: bool | None
    """Whether the answers report cached tokens; None if there were no answers."""
    said: str
    """A sentence for people."""


def prompt_of() -> list[int]:
    """Make a random prompt, which no worker has cached, of token ids in every vocabulary."""
    random = SystemRandom()
    return [random.randrange(33, 96) for _ in range(LENGTH)]


def model_of(worker: Worker) -> str:
    """Return the model to ask a worker for: a base model, if it has one, rather than an adapter.

    An adapter's blocks are its own, and stores keep them under other names.
    """
    bases = [name for name in worker.models if not is_adapter(name, worker.models)]
    return min(bases or worker.models)


async def ask_all(pool: Pool, memory: KvMemory | None, inquiries: Inquiries) -> dict[str, Asked]:
    """Ask all ready workers of a pool at once; with a `memory`, wait for their KV events too.

    Returns the result by the worker's name.
    """
    prompt = prompt_of()
    ready = [worker for worker in pool.workers if worker.ready and worker.models]
    heard = {worker.name: memory.heard(worker.name) if memory else 0 for worker in ready}
    found = await asyncio.gather(*(_ask(worker, prompt, inquiries) for worker in ready))
    asked = dict(zip((worker.name for worker in ready), found, strict=True))
    if memory is not None:
        for name, one in asked.items():
            if one.reports is not None and name in memory.track_records:
                memory.track_records[name].answered(one.reports)
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
    """Have a prompt of these tokens computed; return the usage that the worker reports.

    Raises NoAnswer.
    """
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
    """Ask one worker twice."""
    try:
        _, again = [await computed(worker, prompt, inquiries) for _ in range(2)]
    except NoAnswer as lacking:
        return Asked(None, f"a repeated prompt: not known: {lacking}")
    if again.cached is None:
        unsaid = f"how much of it was cached is not reported (start vLLM with {USAGE_FLAG})"
        return Asked(False, f"a repeated prompt: {unsaid}")
    hint = "" if again.cached else " (see that vLLM has --enable-prefix-caching)"
    return Asked(True, f"a repeated prompt: {again.cached} of {LENGTH} tokens were cached{hint}")
