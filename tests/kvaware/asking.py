"""Chats through a `kvaware` router, and what it and its simulated workers know of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic

import httpx

from simulator.fleet import FleetThread
from tests.support import Router, until

CHAT = "/v1/chat/completions"
#: Placements of the last second do not count, so that predictions are those of events alone.
EXACT = {"name": "kvaware", "unconfirmed": "0s"}
#: A little over 400 tokens with the model's tokenizer.
TEXT = "for everyone " * 60


def chat(text: str) -> dict[str, object]:
    """Return a chat with one message and the shortest answer."""
    return {"model": "toy", "messages": [{"role": "user", "content": text}], "max_tokens": 1}


def ask(router: Router, text: str, **more: object) -> httpx.Response:
    """Send a chat, and wait until the router is idle again."""
    answer = router.http.post(CHAT, json={**chat(text), **more})
    assert answer.status_code == 200, answer.text
    until(router.idle)
    return answer


def credited(router: Router, text: str) -> dict[str, int]:
    """Return the cached tokens that a decision would predict on each worker, the best first."""
    found = router.http.post("/explain", json=chat(text)).json()
    return {one["worker"]: one["held_tokens"] for one in found["workers"]}


def cached(answer: httpx.Response) -> int:
    """Return the cached tokens that the worker reported."""
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def predicted(answer: httpx.Response) -> int:
    """Return the cached tokens that the decision predicted."""
    return int(answer.headers["x-warmroute-decision"].split("held=")[1].split(";")[0])


def reason(answer: httpx.Response) -> str:
    """Return the reason of the decision."""
    return answer.headers["x-warmroute-decision"].partition(";")[0]


def settle(router: Router, fleet: FleetThread) -> None:
    """Wait until the index contains everything that was published."""

    def is_level() -> bool:
        for pool, memory in router.door.memories.pools():
            for worker in pool.workers:
                held = {p.worker: p.blocks for p in memory.index.caches()}.get(worker.name, 0)
                (engine,) = [w.engine for w in fleet.workers if w.url == worker.url]
                if held != engine.cache.cached:
                    return False
        return True

    until(is_level)


def holders(router: Router) -> dict[str, int]:
    """Return the number of blocks by worker."""
    ((_, memory),) = router.door.memories.pools()
    return {place.worker: place.blocks for place in memory.index.caches() if place.blocks}


def blocks(router: Router) -> dict[tuple[str, str], int]:
    """Return the number of blocks held, by worker and tier."""
    ((_, memory),) = router.door.memories.pools()
    return {(p.worker, p.tier.name): p.blocks for p in memory.index.caches()}


def level(router: Router, simulated: FleetThread) -> bool:
    """Return whether everything published has been applied."""
    ((_, memory),) = router.door.memories.pools()
    published = [
        worker.publisher._next - 1 for worker in simulated.workers if worker.publisher is not None
    ]
    return sorted(published) == sorted(one.stream.applied for one in memory.all_sources())


@contextmanager
def busy(router: Router, name: str) -> Iterator[None]:
    """Book 100 seconds of prefill on a worker."""
    ((pool, _memory),) = router.door.memories.pools()
    (worker,) = [one for one in pool.workers if one.name == name]
    booking = worker.load.book(monotonic(), 100.0, 100, stream=True)
    try:
        yield
    finally:
        worker.load.release(booking, monotonic())


def forget_gpu(router: Router, simulated: FleetThread) -> None:
    """Drop what the GPUs hold, and nothing else, and wait until the router knows."""
    for worker in simulated.workers:
        assert worker.publisher is not None
        assert simulated.call(worker.engine.reset_prefix_cache)
        # An idle engine would publish it only with its next step.
        changes = simulated.call(worker.engine.step).changes
        simulated.call(partial(worker.publisher.publish, changes))
    until(lambda: level(router, simulated))
