"""Blocks in host memory and in a shared store: announced, tracked, and reported as cached."""

import pytest

from tests.kvaware.conftest import MakeFleet, MakeKvAware
from tests.kvaware.test_kvaware_live import ask, cached, credited, predicted
from tests.support import Router, until

EXACT = {"name": "kvaware", "unconfirmed": "0s"}


def blocks(router: Router) -> dict[tuple[str, str], int]:
    """Return the number of blocks held, by worker and tier."""
    ((_, memory),) = router.door.memories.pools()
    return {(p.worker, p.tier.name): p.blocks for p in memory.index.caches()}


def level(router: Router, simulated: object) -> bool:
    """Return whether everything published has been applied."""
    ((_, memory),) = router.door.memories.pools()
    published = [
        worker.publisher._next - 1
        for worker in simulated.workers  # type: ignore[attr-defined]
    ]
    return sorted(published) == sorted(one.stream.applied for one in memory.all_sources())


@pytest.mark.parametrize("bare", [False, True])
def test_what_the_gpu_lost_is_found_in_the_hosts_memory(
    fleet: MakeFleet, kvaware: MakeKvAware, bare: bool
) -> None:
    """Predictions match reports, whether events contain tokens or only names."""
    simulated = fleet(workers=1, kv_tokens=512, host_tokens=8192, bare_events=bare)
    router = kvaware(*simulated.urls, strategy=EXACT)
    hits = 0
    for number in range(16):
        answer = ask(router, f"{number % 4} " * 100)
        assert predicted(answer) == cached(answer)
        hits += cached(answer) > 0
        until(lambda: level(router, simulated))
    assert hits == 12
    worker = router.worker().name
    assert blocks(router)[worker, "L1"] > blocks(router)[worker, "GPU"] > 0


def test_a_shared_store_serves_all_and_attracts_nobody(
    fleet: MakeFleet, kvaware: MakeKvAware
) -> None:
    """Every worker is credited with the store, even when the index has forgotten the writer, and
    the next prompt goes to one that was idle."""
    simulated = fleet(workers=3, store_tokens=100_000)
    router = kvaware(*simulated.urls, strategy=EXACT)
    text = "for everyone " * 60
    writer = ask(router, text).headers["x-warmroute-worker"]
    until(lambda: level(router, simulated))
    assert blocks(router)["", "L2"] > 30
    ((_, memory),) = router.door.memories.pools()
    memory.index.forget(writer)
    found = credited(router, text)
    answer = ask(router, text)
    assert list(found.values()) == [cached(answer)] * 3
    assert predicted(answer) == cached(answer) > 500
    # One answer makes no worker seem faster than the others, and only the writer was busy lately.
    other = answer.headers["x-warmroute-worker"]
    assert other != writer
    until(lambda: level(router, simulated))
    assert blocks(router)[other, "GPU"] > 30
