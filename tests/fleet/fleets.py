"""A fleet as one router process has it, without sockets or settings."""

from collections.abc import Sequence

from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.settings.server import TimeoutSettings
from router.upstream.pool import Upstream
from strategies.api import Candidate, Cost, Prompt
from strategies.prefix.block_keys import TEXT_ENDS, chain
from strategies.registry import make


def fleet(strategy: str = "prefixaware", workers: int = 2, models: Sequence[str] = ("m",)) -> Fleet:
    """One pool, `p`, of workers `w0`, `w1` and so on; without `models`, they are asked."""
    found = [worker(f"w{n}", *models) for n in range(workers)]
    return Fleet([Pool("p", ["*"], found, make(strategy, {}))])


def worker(name: str, *models: str) -> Worker:
    """Build a worker that cannot be reached; without `models`, it is asked for them."""
    upstream = Upstream("127.0.0.1", 1, tls=None, timeouts=TimeoutSettings())
    return Worker(name, f"http://{name}", upstream, models=models)


def prompt(text: str, *, tokens: int | None = None, stream: bool = True) -> Prompt:
    """Build the prompt that a router makes of a text it has not tokenized."""
    data = text.encode()
    return Prompt(
        "m",
        len(data) // 4 if tokens is None else tokens,
        chain(0, data),
        TEXT_ENDS,
        0.25,
        answer_tokens=100,
        stream=stream,
    )


def choice(of: Fleet, worker: int, prefill_s: float = 1.0, held: int = 0) -> Candidate:
    """Build the choice of one worker of the fleet's only pool."""
    return Candidate(of.pools[0].workers[worker], Cost(prefill=prefill_s), held)
