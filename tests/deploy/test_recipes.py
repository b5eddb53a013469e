"""Compose files and manifests: they parse, agree with each other, and suit the router."""

from collections.abc import Iterator
from typing import Any

import pytest

from router.hyperpod.fields import FieldOutcome
from router.hyperpod.loader import take
from router.settings.loader import load, loads
from router.settings.model import Settings
from tests.deploy.files import (
    DEPLOY,
    ROUTES,
    Engine,
    clustered,
    composed,
    documents,
    plain,
    resource,
)

KEY = "sk-0123456789abcdef"
#: The router's image in a cluster.
OURS = "warmroute:latest"
#: What names of blocks and chunks depend on in vLLM and LMCache: if one differs, none is found.
NAMING = (
    "PYTHONHASHSEED",
    "LMCACHE_CHUNK_SIZE",
    "LMCACHE_PRE_CACHING_HASH_ALGORITHM",
    "LMCACHE_REMOTE_SERDE",
)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the secret that the recipes use."""
    monkeypatch.setenv("WARMROUTE_KEY", KEY)


def urls(settings: Settings) -> list[str]:
    """Return the URLs of the router's workers."""
    return [worker.url for pool in settings.all_pools() for worker in pool.workers]


def check_events(settings: Settings, engine: Engine) -> None:
    """Check that the router connects to every worker where its engine publishes and replays."""
    assert settings.strategy.name == "kvaware"
    told = engine.option("--kv-events-config")
    for pool in settings.all_pools():
        for worker in pool.workers:
            assert worker.kv_events == told["endpoint"].replace("*", worker.address.host)
            assert worker.kv_replay == told["replay_endpoint"].replace("*", worker.address.host)


def test_every_file_parses() -> None:
    """Every YAML file parses."""
    found = sorted(DEPLOY.rglob("*.yaml"))
    assert len(found) >= 9
    for path in found:
        assert all(documents(path)), path


def images(value: Any) -> Iterator[str]:
    """Yield the images that a document names, with the defaults of variables."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "image":
                yield plain(inner)
            else:
                yield from images(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from images(inner)


@pytest.mark.parametrize("route", ROUTES)
def test_all_workers_are_started_alike(route: str) -> None:
    """Compose and the cluster use the same image, arguments and environment."""
    one, other = composed(route).values()
    assert one == other == clustered(route)


@pytest.mark.parametrize("route", ROUTES)
def test_workers_name_blocks_alike_and_tell_of_them(route: str) -> None:
    """Seed and hash are fixed, events can be replayed, and answers report cached tokens."""
    engine = clustered(route)
    assert engine.environment["PYTHONHASHSEED"].isdigit()
    assert "--prefix-caching-hash-algo=sha256_cbor" in engine.args
    assert "--enable-prompt-tokens-details" in engine.args
    events = engine.option("--kv-events-config")
    assert (events["enable_kv_cache_events"], events["publisher"]) == (True, "zmq")
    ports = {events["endpoint"], events["replay_endpoint"]}
    assert ports == {"tcp://*:5557", "tcp://*:5558"}
    service = resource(DEPLOY / "kubernetes" / f"{route}.yaml", "Service", "vllm")["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert [port["port"] for port in service["ports"]] == [8000, 5557, 5558]


def test_native_offloading() -> None:
    """Bytes of host memory, within what the pod may have; events contain tokens."""
    told = clustered("native").option("--kv-transfer-config")
    assert (told["kv_connector"], told["kv_role"]) == ("OffloadingConnector", "kv_both")
    extra = told["kv_connector_extra_config"]
    assert extra == {"cpu_bytes_to_use": 64 << 30, "self_describing_kv_events": True}
    stateful = resource(DEPLOY / "kubernetes" / "native.yaml", "StatefulSet", "vllm")
    (container,) = _containers(stateful)
    (shared,) = stateful["spec"]["template"]["spec"]["volumes"]
    (mount,) = container["volumeMounts"]
    assert (mount["name"], mount["mountPath"]) == (shared["name"], "/dev/shm")  # noqa: S108
    most = _gibibytes(container["resources"]["limits"]["memory"])
    assert 64 < _gibibytes(shared["emptyDir"]["sizeLimit"]) < most


def test_lmcache_over_redis() -> None:
    """All that its keys depend on is set; the store is the Redis that is started; L1 fits."""
    engine = clustered("lmcache")
    assert engine.option("--kv-transfer-config")["kv_connector"] == "LMCacheConnectorV1"
    assert all(engine.environment[name] for name in NAMING)
    assert engine.environment["LMCACHE_REMOTE_URL"] == "redis://redis:6379"
    assert engine.environment["LMCACHE_ENABLE_KV_EVENTS"] == "True"
    path = DEPLOY / "kubernetes" / "lmcache.yaml"
    (worker,) = _containers(resource(path, "StatefulSet", "vllm"))
    most = _gibibytes(worker["resources"]["limits"]["memory"])
    assert 0 < int(engine.environment["LMCACHE_MAX_LOCAL_CPU_SIZE"]) < most
    assert resource(path, "Service", "redis")["spec"]["ports"][0]["port"] == 6379
    (container,) = _containers(resource(path, "Deployment", "redis"))
    (compose,) = documents(DEPLOY / "compose" / "lmcache.yaml")
    assert compose["services"]["redis"]["command"] == container["args"]


def test_the_router_finds_the_workers_of_compose() -> None:
    """Workers are found by service name, and the router gets their events and a tokenizer."""
    for route in ROUTES:
        name = "warmroute-lmcache.yaml" if route == "lmcache" else "warmroute.yaml"
        settings = load(DEPLOY / "compose" / name)
        assert urls(settings) == [f"http://{name}:8000" for name in composed(route)]
        (compose,) = documents(DEPLOY / "compose" / f"{route}.yaml")
        for engine in composed(route).values():
            check_events(settings, engine)
        router = compose["services"]["warmroute"]
        assert router["environment"].keys() == {"WARMROUTE_KEY", "HF_TOKEN", "HF_HOME"}
        (mount,) = router["volumes"]
        assert mount == f"./{name}:/etc/warmroute/warmroute.yaml:ro"


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_the_router_names_chunks_as_lmcache_does(where: str) -> None:
    """Its settings match the workers' environment, and the image can read their Redis."""
    if where == "compose":
        settings = load(DEPLOY / "compose" / "warmroute-lmcache.yaml")
        engines = [*composed("lmcache").values()]
    else:
        path = DEPLOY / "kubernetes" / "lmcache.yaml"
        settings = loads(resource(path, "ConfigMap", "warmroute")["data"]["warmroute.yaml"])
        engines = [clustered("lmcache")]
    told = settings.tiers.l2.lmcache
    assert told is not None
    for engine in engines:
        said = engine.environment
        assert (told.names, str(told.redis)) == ("engine", said["LMCACHE_REMOTE_URL"])
        assert str(told.chunk) == said["LMCACHE_CHUNK_SIZE"]
        assert told.hash == said["LMCACHE_PRE_CACHING_HASH_ALGORITHM"]
        assert told.seed == said["PYTHONHASHSEED"]
        assert settings.tiers.l2.promotes == "l1", "LMCache in the engine does"
        assert engine.option("--kv-transfer-config")["kv_connector"] == "LMCacheConnectorV1"
    assert "[redis,lmcache]" in (DEPLOY.parent / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("route", ROUTES)
def test_the_router_finds_the_workers_of_a_cluster(route: str) -> None:
    """Workers are found by their StatefulSet names; the router's pod has the time to drain."""
    path = DEPLOY / "kubernetes" / f"{route}.yaml"
    text = resource(path, "ConfigMap", "warmroute")["data"]["warmroute.yaml"]
    settings = loads(text)
    workers = resource(path, "StatefulSet", "vllm")["spec"]
    hosts = [f"vllm-{number}.{workers['serviceName']}" for number in range(workers["replicas"])]
    assert urls(settings) == [f"http://{host}:8000" for host in hosts]
    check_events(settings, clustered(route))
    deployment = resource(path, "Deployment", "warmroute")
    pod = deployment["spec"]["template"]["spec"]
    least = settings.shutdown.delay + settings.shutdown.drain
    assert pod["terminationGracePeriodSeconds"] > least
    (container,) = pod["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert container["ports"][0]["containerPort"] == settings.listen.port
    assert {"HF_TOKEN", "HF_HOME"} < {one["name"] for one in container["env"]}


def test_the_manifest_of_hyperpod() -> None:
    """It becomes settings; every field of it is told of, and none about routing is lost."""
    path = DEPLOY / "hyperpod" / "endpoint.yaml"
    settings, notes = take(path)
    assert len(urls(settings)) == 4
    assert (settings.limits.in_flight, settings.limits.queue) == (64, 64)
    assert settings.strategy.written()["over"] == "kvaware"
    assert settings.session.field == "user_id"
    asked = settings.tiers.l2.lmcache
    assert asked is not None
    assert (asked.redis, asked.names) == ("redis://redis.team-a.svc:6379", "engine")
    assert (asked.model, asked.seed) == ("/opt/ml/model", "0")
    assert {note.fate for note in notes} == {FieldOutcome.MAPPED, FieldOutcome.ELSEWHERE}
    (manifest,) = documents(path)
    noted = {note.field for note in notes}
    inside = tuple(f"{field}{end}" for field in noted for end in ".[")
    fields = list(_fields(manifest["spec"], "spec"))
    assert len(fields) > 30
    assert [one for one in fields if one not in noted and not one.startswith(inside)] == []


def _fields(value: Any, path: str) -> Iterator[str]:
    """Yield the path of every value that is neither a mapping nor a list."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _fields(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _fields(inner, f"{path}[{place}]")
    else:
        yield path


def _containers(deployment: Any) -> list[Any]:
    return list(deployment["spec"]["template"]["spec"]["containers"])


def _gibibytes(size: str) -> int:
    assert size.endswith("Gi")
    return int(size.removesuffix("Gi"))
