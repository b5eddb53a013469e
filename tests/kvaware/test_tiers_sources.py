"""Workers that report the tier of cached tokens: their report counts, and corrects ours."""

from functools import partial
from typing import Any

import httpx
import pytest

from simulator.fleet import FleetThread
from simulator.kv.tiers import Tiers
from tests.kvaware.conftest import MakeFleet, MakeKvAware
from tests.kvaware.test_kvaware_live import ask, cached, predicted
from tests.kvaware.test_tiers_live import EXACT, blocks, level
from tests.kvaware.test_tiers_rows import L1, L2, TEXT, forget_gpu
from tests.support import Router, until

#: What makes a worker report it: a field of the request.
LMCACHE: dict[str, Any] = {"kv_transfer_params": {"cached_token_stats": True}}
SGLANG: dict[str, Any] = {"return_cached_tokens_details": True}


def hits(router: Router) -> dict[str, float]:
    """Return the hit tokens by tier, from the metrics."""
    lines = router.http.get("/metrics").text.splitlines()
    mark = "warmroute_kv_hit_tokens_total{"
    return {
        line.split('tier="')[1].split('"')[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(mark)
    }


def reason(answer: httpx.Response) -> str:
    """Return the reason of the decision."""
    return answer.headers["x-warmroute-decision"].partition(";")[0]


def behind(simulated: FleetThread) -> list[Tiers[bytes]]:
    """Return the workers' tiers behind their GPUs."""
    return [worker.engine.tiers.tiers for worker in simulated.workers if worker.engine.tiers]


@pytest.mark.parametrize("asked", [LMCACHE, SGLANG])
def test_hits_are_counted_where_the_worker_found_them(
    fleet: MakeFleet, kvaware: MakeKvAware, asked: dict[str, Any]
) -> None:
    """If L1 was emptied without an event, hits there are not counted just because they were
    predicted."""
    simulated = fleet(workers=1, **L1, **L2)
    trusted = ({"url": url, "engine_fields": True} for url in simulated.urls)
    router = kvaware(*trusted, strategy=EXACT)
    ask(router, TEXT)
    until(lambda: level(router, simulated))
    forget_gpu(router, simulated)
    (tiers,) = behind(simulated)
    simulated.call(tiers.clear)
    answer = ask(router, TEXT, **asked)
    until(lambda: level(router, simulated))
    assert reason(answer) == "l1"
    assert predicted(answer) == cached(answer) > 300
    found = hits(router)
    if asked is SGLANG:
        assert found == {"l2": cached(answer)}
    else:  # it reports only how much came from the GPU, and that the rest did not
        assert found == {"l1": cached(answer)}
    forget_gpu(router, simulated)
    answer = ask(router, TEXT, **asked)
    assert reason(answer) == "l1", "it came there again when it was loaded, and that was told"
    assert predicted(answer) == cached(answer)
    assert sum(hits(router).values()) == 2 * cached(answer)


def test_what_a_store_lost_in_silence_is_found_out(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """If a store lost blocks without an event, one answer is enough to stop expecting them."""
    simulated = fleet(workers=2, **L2)
    router = kvaware(*simulated.urls, strategy=EXACT)
    ask(router, TEXT)
    until(lambda: level(router, simulated))
    on_l2 = blocks(router)["", "L2"]
    assert on_l2 > 20
    forget_gpu(router, simulated)
    store = behind(simulated)[0].store
    for tiers in behind(simulated):
        simulated.call(partial(setattr, tiers, "store", None))
    answer = ask(router, TEXT, **SGLANG)
    assert (reason(answer), cached(answer)) == ("l2", 0)
    assert predicted(answer) > 300
    assert blocks(router)["", "L2"] == on_l2 - 1, "none of it is reached without its first"
    missed = router.http.get("/metrics").text.split("warmroute_kv_blocks_missed_total{")
    assert 'tier="l2"} 1.0' in "".join(missed)
    for tiers in behind(simulated):
        simulated.call(partial(setattr, tiers, "store", store))


def test_tiers_that_are_off_have_no_hits(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """Whatever a worker reports for them: row K5 of docs/hyperpod.md."""
    simulated = fleet(workers=1, **L1)
    router = kvaware(*simulated.urls, strategy=EXACT, tiers={"l1": {"enabled": False}})
    ask(router, TEXT)
    until(lambda: level(router, simulated))
    forget_gpu(router, simulated)
    answer = ask(router, TEXT, **SGLANG)
    assert (predicted(answer), reason(answer)) == (0, "cold")
    assert cached(answer) > 300
    assert hits(router) == {}


@pytest.mark.parametrize(("promotes", "expected"), [("gpu", "l2"), ("l1", "l1")])
def test_what_stays_on_l1_in_silence(
    fleet: MakeFleet, kvaware: MakeKvAware, promotes: str, expected: str
) -> None:
    """If the settings say that L1 keeps what comes from L2, it is expected there without an
    event."""
    simulated = fleet(workers=1, **L2)
    router = kvaware(*simulated.urls, strategy=EXACT, tiers={"l2": {"promotes": promotes}})
    for number in range(3):
        answer = ask(router, TEXT)
        until(lambda: level(router, simulated))
        forget_gpu(router, simulated)
        assert reason(answer) == ("cold", "l2", expected)[number]
    assert predicted(answer) == cached(answer) > 300


def test_a_promotion_that_was_none_is_taken_back(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """The worker reports that it still loads from L2, so that is expected from then on."""
    simulated = fleet(workers=1, **L2)
    router = kvaware(*simulated.urls, strategy=EXACT, tiers={"l2": {"promotes": "l1"}})
    reasons = []
    for _ in range(4):
        reasons.append(reason(ask(router, TEXT, **SGLANG)))
        until(lambda: level(router, simulated))
        forget_gpu(router, simulated)
    assert reasons[:3] == ["cold", "l2", "l1"]
    assert hits(router)["l2"] == sum(hits(router).values())
