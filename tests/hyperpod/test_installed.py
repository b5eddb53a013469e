"""Manifests with the settings, strategies and paths that really exist."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.hyperpod.fields import Fate, Note
from router.hyperpod.loader import Loaded, take
from router.settings.errors import SettingsError
from tests.hyperpod.manifests import manifest, variables, written

EVENTS = '--kv-events-config={"enable_kv_cache_events":true,"publisher":"zmq"}'


def taken(folder: Path, own: str | None = None, **spec: Any) -> Loaded:
    """Return what a manifest becomes, with settings of our own within it."""
    data = manifest(**spec)
    if own is not None:
        data["metadata"]["annotations"]["warmroute.io/settings"] = own
    return take(written(folder, json.dumps(data)))


def routed(strategy: str) -> dict[str, Any]:
    """Return a routing section with this strategy."""
    return {"enabled": True, "routingStrategy": strategy}


def note(loaded: Loaded, field: str) -> Note:
    """Return the note on one field."""
    return next(one for one in loaded.notes if one.field == field)


@pytest.mark.parametrize("name", ["prefixaware", "kvaware", "session", "roundrobin"])
def test_every_strategy_is_there(tmp_path: Path, name: str) -> None:
    """No strategy is replaced by another one."""
    found = taken(tmp_path, intelligentRoutingSpec=routed(name))
    assert found.settings.strategy.name == name
    said = note(found, "spec.intelligentRoutingSpec.routingStrategy")
    assert (said.became, said.fate) == (f"strategy: {name}", Fate.MAPPED)


@pytest.mark.parametrize(
    ("key", "field", "header"),
    [("user_id", "user_id", "x-session-id"), ("X-User-Id", None, "x-user-id")],
)
def test_session_key_and_lifetime(tmp_path: Path, key: str, field: str | None, header: str) -> None:
    """The workers' environment decides how sessions are named, how long they last, and who keeps
    them."""
    worker = variables(
        SESSION_KEY=key,
        SAGEMAKER_SESSIONS_EXPIRATION="600",
        SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true",
    )
    found = taken(tmp_path, intelligentRoutingSpec=routed("session"), worker=worker)
    session = found.settings.session
    assert (session.field, session.header, session.lifetime) == (field, header, 600)
    assert all(one.stateful for one in found.settings.workers)
    for number in range(3):
        assert note(found, f"spec.worker.environmentVariables[{number}]").fate is Fate.MAPPED


def test_a_session_key_beside_kvaware(tmp_path: Path) -> None:
    """HyperPod asks the caches first and the session second; `session` with almost no `spill` does
    so too."""
    worker = variables(SESSION_KEY="user_id")
    found = taken(tmp_path, intelligentRoutingSpec=routed("kvaware"), worker=worker)
    strategy = found.settings.strategy.written()
    assert (strategy["name"], strategy["over"]) == ("session", "kvaware")
    assert found.settings.strategy.options["spill"] == 0.001
    assert found.settings.session.field == "user_id"
    assert note(found, "spec.worker.environmentVariables[0]").fate is Fate.MAPPED


@pytest.mark.parametrize("first", [True, False])
def test_a_session_key_beside_kvaware_and_containers_with_sessions(
    tmp_path: Path, first: bool
) -> None:
    """In any order of variables: sessions that the container keeps cannot move."""
    said = {"SESSION_KEY": "user_id", "SAGEMAKER_ENABLE_STATEFUL_SESSIONS": "true"}
    told = said if first else dict(reversed(said.items()))
    worker = variables(**told)
    found = taken(tmp_path, intelligentRoutingSpec=routed("kvaware"), worker=worker)
    strategy = found.settings.strategy.written()
    assert (strategy["name"], strategy["over"]) == ("session", "kvaware")
    assert "spill" not in found.settings.strategy.options
    assert all(one.stateful for one in found.settings.workers)


def test_a_strategy_of_our_own_comes_whole(tmp_path: Path) -> None:
    """Options of the strategy that it replaces are dropped."""
    found = taken(
        tmp_path,
        own="strategy: {name: kvaware, index: 1GiB}",
        intelligentRoutingSpec=routed("kvaware"),
        worker=variables(SESSION_KEY="user_id"),
    )
    assert found.settings.strategy.name == "kvaware"
    assert found.settings.strategy.options == {"index": 1 << 30}


def test_a_key_that_names_no_field(tmp_path: Path) -> None:
    """The error is located at the variable's setting."""
    with pytest.raises(SettingsError) as caught:
        taken(
            tmp_path,
            intelligentRoutingSpec=routed("session"),
            worker=variables(SESSION_KEY="user id"),
        )
    (problem,) = caught.value.problems
    assert problem.field == "session.field"
    assert '"user id" is not a field\'s name' in problem.message


def test_sagemakers_paths(tmp_path: Path) -> None:
    """HyperPod's default paths, and the endpoint's name."""
    found = taken(
        tmp_path,
        endpointName="llama-8b",
        invocationEndpoint="invocations",
        loadBalancer={"healthCheckPath": "/ping"},
    )
    assert [one.name for one in found.settings.sagemaker.endpoints] == ["llama-8b"]
    for field in ("endpointName", "invocationEndpoint", "loadBalancer.healthCheckPath"):
        assert note(found, f"spec.{field}").fate is Fate.MAPPED, field


def test_kvaware_needs_what_engines_publish(tmp_path: Path) -> None:
    """Without events, the note says which flag to set; events cover L1, and nothing covers an L2
    that cannot be asked."""
    cache = {
        "enableL1Cache": True,
        "enableL2Cache": True,
        "l2CacheSpec": {"l2CacheBackend": "redis", "l2CacheLocalUrl": "redis://redis:6379"},
    }
    for args, fate in (([EVENTS], Fate.ELSEWHERE), (["--x"], Fate.LOST), (None, Fate.LOST)):
        worker = {} if args is None else {"args": args}
        found = taken(
            tmp_path, worker=worker, intelligentRoutingSpec=routed("kvaware"), kvCacheSpec=cache
        )
        said = note(found, "spec.worker.args")
        assert said.fate is fate
        assert ("--kv-events-config" in said.became) is (fate is Fate.LOST)
    assert note(found, "spec.kvCacheSpec.enableL1Cache").fate is Fate.MAPPED
    assert (found.settings.tiers.l1.enabled, found.settings.tiers.l2.enabled) == (True, True)
    cache = {"enableL1Cache": False, "enableL2Cache": False}
    off = taken(tmp_path, intelligentRoutingSpec=routed("kvaware"), kvCacheSpec=cache)
    assert (off.settings.tiers.l1.enabled, off.settings.tiers.l2.enabled) == (False, False)
    assert note(found, "spec.kvCacheSpec.enableL2Cache").fate is Fate.LOST
    cache = {"enableL1Cache": True}
    found = taken(tmp_path, intelligentRoutingSpec=routed("prefixaware"), kvCacheSpec=cache)
    assert note(found, "spec.kvCacheSpec.enableL1Cache").fate is Fate.LOST
