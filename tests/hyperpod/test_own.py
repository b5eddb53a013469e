"""Settings of our own within a manifest, combined with what its fields become."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.hyperpod.fields import Fate, Note
from router.hyperpod.loader import Loaded, take
from router.settings.errors import SettingsError
from tests.hyperpod.manifests import manifest, variables, written

OURS = "warmroute.io/settings"
KEPT = variables(SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true", VLLM_API_KEY="sk-not-shown")
ROUTED = {"enabled": True, "routingStrategy": "prefixaware"}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The router has the workers' key as well."""
    monkeypatch.setenv("VLLM_API_KEY", "sk-of-workers")


def taken(folder: Path, own: str, workers: str | None = None, **spec: Any) -> Loaded:
    """Return what a manifest becomes."""
    data = manifest(workers, **spec)
    data["metadata"]["annotations"][OURS] = own
    return take(written(folder, json.dumps(data)))


def note(loaded: Loaded, field: str) -> Note:
    """Return the note on one field."""
    return next(one for one in loaded.notes if one.field == field)


POOLS = "pools: [{name: a, models: [a], workers: ['http://a:1', {url: 'http://b:1', name: b}]}]"


@pytest.mark.parametrize("own", ["workers: ['http://a:1', {url: 'http://b:1', name: b}]", POOLS])
def test_workers_there_are_the_manifests(tmp_path: Path, own: str) -> None:
    """What the manifest says of each worker applies to them too, and is mapped."""
    limits = {"maxConcurrentRequests": 10, "maxQueueSize": 5}
    worker = {**KEPT, "requestLimits": limits}
    found = taken(tmp_path, own, replicas=7, worker=worker)
    (pool,) = found.settings.all_pools()
    assert [(one.name, one.stateful) for one in pool.workers] == [("a:1", True), ("b", True)]
    assert [one.api_key.get_secret_value() for one in pool.workers if one.api_key] == [
        "sk-of-workers"
    ] * 2
    assert (found.settings.limits.in_flight, found.settings.limits.queue) == (10, 10)
    for number in range(2):
        assert note(found, f"spec.worker.environmentVariables[{number}]").fate is Fate.MAPPED
    said = note(found, "spec.replicas")
    assert (said.became, said.fate) == ("2 workers given, and used", Fate.LOST)
    assert note(found, "spec.worker.modelInvocationPort.containerPort").fate is Fate.ELSEWHERE


def test_what_a_worker_says_itself_holds(tmp_path: Path) -> None:
    """If all workers override a field of the manifest, its note says so."""
    own = "workers: [{url: 'http://a:1', stateful: false}, {url: 'http://b:1', stateful: false}]"
    found = taken(tmp_path, own, worker=KEPT)
    assert [one.stateful for one in found.settings.workers] == [False, False]
    assert [one.api_key is None for one in found.settings.workers] == [False, False]
    said = note(found, "spec.worker.environmentVariables[0]")
    assert (said.became, said.fate) == (f"{OURS} takes its place", Fate.ELSEWHERE)
    assert note(found, "spec.worker.environmentVariables[1]").fate is Fate.MAPPED


def test_what_is_given_twice_is_told(tmp_path: Path) -> None:
    """A field is not reported as mapped if our own settings override it."""
    limits = {"maxConcurrentRequests": 10, "maxQueueSize": 5}
    own = (
        "workers: ['http://a:1']\nlimits: {in_flight: 3, queue: 4}\nstrategy: roundrobin\n"
        "metrics: {aliases: none}"
    )
    found = taken(
        tmp_path, own, "http://b:1", worker={"requestLimits": limits}, intelligentRoutingSpec=ROUTED
    )
    assert found.settings.limits.in_flight == 3
    for field in (
        "spec.worker.requestLimits.maxConcurrentRequests",
        "spec.intelligentRoutingSpec.routingStrategy",
        "spec.metrics.enabled",
        'metadata.annotations."warmroute.io/workers"',
    ):
        said = note(found, field)
        assert (said.became, said.fate) == (f"{OURS} takes its place", Fate.ELSEWHERE), field
    said = note(found, "spec.worker.requestLimits.maxQueueSize")
    assert said.fate is Fate.MAPPED
    assert said.became.endswith(f"; but limits.queue as in {OURS}")


@pytest.mark.parametrize("enabled", [True, False])
def test_a_strategy_that_nobody_knows_is_made_good_there(tmp_path: Path, enabled: bool) -> None:
    """A manifest with a strategy that is new to us can be used; a warning says what became of it.

    Without our own settings it is a mistake, with what was probably meant.
    """
    routing = {"enabled": enabled, "routingStrategy": "kv-awar"}
    own = "workers: ['http://a:1']"
    found = taken(tmp_path, f"{own}\nstrategy: roundrobin", intelligentRoutingSpec=routing)
    assert found.settings.strategy.name == "roundrobin"
    field = "spec.intelligentRoutingSpec.routingStrategy"
    said = f"nobody knows this strategy; {OURS} says roundrobin"
    assert note(found, field) == Note(field, '"kv-awar"', said, Fate.LOST)
    with pytest.raises(SettingsError, match='did you mean "kvaware"'):
        taken(tmp_path, own, intelligentRoutingSpec=routing)


@pytest.mark.parametrize("strategy", ["kvaware", "{name: session, over: kvaware}"])
def test_another_strategy_is_reckoned_with(tmp_path: Path, strategy: str) -> None:
    """If our own settings name another strategy, the fields that it uses are mapped."""
    cache = {"enableL1Cache": False}
    found = taken(
        tmp_path,
        f"workers: ['http://a:1']\nstrategy: {strategy}",
        intelligentRoutingSpec=ROUTED,
        kvCacheSpec=cache,
        worker=variables(SESSION_KEY="user_id"),
    )
    assert not found.settings.tiers.l1.enabled
    assert found.settings.session.field == "user_id"
    assert note(found, "spec.kvCacheSpec.enableL1Cache").fate is Fate.MAPPED
    assert note(found, "spec.worker.environmentVariables[0]").fate is Fate.MAPPED
    assert "--kv-events-config" in note(found, "spec.worker.args").became
