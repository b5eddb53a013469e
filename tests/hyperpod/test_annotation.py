"""Settings of our own within a manifest, combined with what its fields become."""

import json
from pathlib import Path

import pytest

from router.hyperpod.fields import FieldOutcome, Note
from router.hyperpod.loader import take
from router.settings.errors import SettingsError
from tests.hyperpod.manifests import OURS, manifest, note, routed, taken, variables, written

KEPT = variables(SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true", VLLM_API_KEY="sk-not-shown")
ROUTED = routed("prefixaware")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The router has the workers' key as well."""
    monkeypatch.setenv("VLLM_API_KEY", "sk-of-workers")


POOLS = "pools: [{name: a, models: [a], workers: ['http://a:1', {url: 'http://b:1', name: b}]}]"


@pytest.mark.parametrize("own", ["workers: ['http://a:1', {url: 'http://b:1', name: b}]", POOLS])
def test_workers_there_are_the_manifests(tmp_path: Path, own: str) -> None:
    """What the manifest says of each worker applies to them too, and is mapped."""
    limits = {"maxConcurrentRequests": 10, "maxQueueSize": 5}
    worker = {**KEPT, "requestLimits": limits}
    result = taken(tmp_path, workers=None, own=own, replicas=7, worker=worker)
    (pool,) = result.settings.all_pools()
    assert [(it.name, it.stateful) for it in pool.workers] == [("a:1", True), ("b", True)]
    assert [it.api_key.get_secret_value() for it in pool.workers if it.api_key] == [
        "sk-of-workers"
    ] * 2
    assert (result.settings.limits.in_flight, result.settings.limits.queue) == (10, 10)
    for number in range(2):
        assert (
            note(result, f"spec.worker.environmentVariables[{number}]").fate is FieldOutcome.MAPPED
        )
    remark = note(result, "spec.replicas")
    assert (remark.became, remark.fate) == ("2 workers given, and used", FieldOutcome.LOST)
    assert (
        note(result, "spec.worker.modelInvocationPort.containerPort").fate is FieldOutcome.ELSEWHERE
    )


def test_what_a_worker_says_itself_holds(tmp_path: Path) -> None:
    """If all workers override a field of the manifest, its note says so."""
    own = "workers: [{url: 'http://a:1', stateful: false}, {url: 'http://b:1', stateful: false}]"
    result = taken(tmp_path, workers=None, own=own, worker=KEPT)
    assert [it.stateful for it in result.settings.workers] == [False, False]
    assert [it.api_key is None for it in result.settings.workers] == [False, False]
    remark = note(result, "spec.worker.environmentVariables[0]")
    assert (remark.became, remark.fate) == (f"{OURS} takes its place", FieldOutcome.ELSEWHERE)
    assert note(result, "spec.worker.environmentVariables[1]").fate is FieldOutcome.MAPPED


def test_what_is_given_twice_is_told(tmp_path: Path) -> None:
    """A field is not reported as mapped if our own settings override it."""
    limits = {"maxConcurrentRequests": 10, "maxQueueSize": 5}
    own = (
        "workers: ['http://a:1']\nlimits: {in_flight: 3, queue: 4}\nstrategy: roundrobin\n"
        "metrics: {aliases: none}"
    )
    result = taken(
        tmp_path,
        own=own,
        workers="http://b:1",
        worker={"requestLimits": limits},
        intelligentRoutingSpec=ROUTED,
    )
    assert result.settings.limits.in_flight == 3
    for field in (
        "spec.worker.requestLimits.maxConcurrentRequests",
        "spec.intelligentRoutingSpec.routingStrategy",
        "spec.metrics.enabled",
        'metadata.annotations."warmroute.io/workers"',
    ):
        remark = note(result, field)
        assert (remark.became, remark.fate) == (
            f"{OURS} takes its place",
            FieldOutcome.ELSEWHERE,
        ), field
    remark = note(result, "spec.worker.requestLimits.maxQueueSize")
    assert remark.fate is FieldOutcome.MAPPED
    assert remark.became.endswith(f"; but limits.queue as in {OURS}")


@pytest.mark.parametrize("enabled", [True, False])
def test_a_strategy_that_nobody_knows_is_made_good_there(tmp_path: Path, enabled: bool) -> None:
    """A manifest with a strategy that is new to us can be used; a warning says what became of it.

    Without our own settings it is a mistake, with what was probably meant.
    """
    routing = {"enabled": enabled, "routingStrategy": "kv-awar"}
    own = "workers: ['http://a:1']"
    result = taken(
        tmp_path, workers=None, own=f"{own}\nstrategy: roundrobin", intelligentRoutingSpec=routing
    )
    assert result.settings.strategy.name == "roundrobin"
    field = "spec.intelligentRoutingSpec.routingStrategy"
    remark = f"nobody knows this strategy; {OURS} says roundrobin"
    assert note(result, field) == Note(field, '"kv-awar"', remark, FieldOutcome.LOST)
    with pytest.raises(SettingsError, match='did you mean "kvaware"'):
        taken(tmp_path, workers=None, own=own, intelligentRoutingSpec=routing)


@pytest.mark.parametrize("strategy", ["kvaware", "{name: session, over: kvaware}"])
def test_another_strategy_is_reckoned_with(tmp_path: Path, strategy: str) -> None:
    """If our own settings name another strategy, the fields that it uses are mapped."""
    cache = {"enableL1Cache": False}
    result = taken(
        tmp_path,
        workers=None,
        own=f"workers: ['http://a:1']\nstrategy: {strategy}",
        intelligentRoutingSpec=ROUTED,
        kvCacheSpec=cache,
        worker=variables(SESSION_KEY="user_id"),
    )
    assert not result.settings.tiers.l1.enabled
    assert result.settings.session.field == "user_id"
    assert note(result, "spec.kvCacheSpec.enableL1Cache").fate is FieldOutcome.MAPPED
    assert note(result, "spec.worker.environmentVariables[0]").fate is FieldOutcome.MAPPED
    assert "--kv-events-config" in note(result, "spec.worker.args").became


def test_settings_of_our_own_come_last(tmp_path: Path) -> None:
    """They override what the manifest's fields became, and leave the rest."""
    own = "listen: 0.0.0.0:8080\nauth: none\nlimits: {in_flight: 3}\n"
    limits = {"maxConcurrentRequests": 10}
    settings, _ = taken(tmp_path, own=own, worker={"requestLimits": limits})
    assert (settings.limits.in_flight, settings.limits.queue) == (3, 0)
    assert str(settings.listen) == "0.0.0.0:8080"


def test_a_strategy_of_our_own_comes_whole(tmp_path: Path) -> None:
    """Options of the strategy that it replaces are dropped."""
    result = taken(
        tmp_path,
        own="strategy: {name: kvaware, index: 1GiB}",
        intelligentRoutingSpec=routed("kvaware"),
        worker=variables(SESSION_KEY="user_id"),
    )
    assert result.settings.strategy.name == "kvaware"
    assert result.settings.strategy.options == {"index": 1 << 30}


def test_workers_of_the_command_line_replace_those_of_the_annotation(tmp_path: Path) -> None:
    """Other settings stay."""
    own = "pools: [{name: a, workers: ['http://a:1']}]\nlogs: {level: debug}"
    path = written(tmp_path, json.dumps(manifest(None, own=own)))
    settings, _ = take(path, "http://b:1")
    assert [worker.url for worker in settings.workers] == ["http://b:1"]
    assert (settings.pools, settings.logs.level) == ((), "debug")
