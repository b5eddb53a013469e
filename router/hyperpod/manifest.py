"""Turns a manifest into settings as in a settings file, with a note on every field.

Covers paths, load balancer, metrics and the endpoint's name; `worker.requestLimits`, which
HyperPod's proxy beside each model enforces there, and the router here; and `kvCacheSpec`, the tiers
beyond the GPU. Fields that become no setting are noted with the reason, and so are unknown ones.
Names are those of HyperPod's inference operator, v1 and v1alpha1.
"""

import re
from typing import NamedTuple

from router.api.endpoints import ENDPOINTS, INVOCATIONS, OPEN_PATHS
from router.hyperpod import annotation
from router.hyperpod.environment import place_workers, read_environment
from router.hyperpod.fields import SPEC, FieldOutcome, Note, Reading, find
from router.hyperpod.lmcache import LMCACHE, Naming
from router.hyperpod.routing import choose_strategy
from router.runtime.quote import shown
from router.settings.errors import KeyPath, Problem, nearest
from router.settings.sessions import REDIS_PATTERN
from router.settings.yaml import Document

_BALANCER: KeyPath = (*SPEC, "loadBalancer")
_HEALTH: KeyPath = (*_BALANCER, "healthCheckPath")
_IDLE: KeyPath = (*_BALANCER, "idleTimeoutSeconds")
_PATH: KeyPath = (*SPEC, "invocationEndpoint")
_NAME: KeyPath = (*SPEC, "endpointName")
_METRICS: KeyPath = (*SPEC, "metrics")
_ENABLED: KeyPath = (*_METRICS, "enabled")
_MODEL: KeyPath = (*_METRICS, "modelMetrics")


def read_paths(reading: Reading) -> None:
    """Read the load balancer, the path of requests, the endpoint's name, and the metrics."""
    _read_balancer(reading)
    path = reading.text(_PATH)
    if path is not None:
        if f"/{path.lstrip('/')}" in {*ENDPOINTS, INVOCATIONS}:
            reading.mapped(_PATH, "served, beside the other paths of vLLM")
        else:
            reading.lost(_PATH, "is not served; all the paths of OpenAI's API are")
    if name := reading.text(_NAME):
        reading.set(("sagemaker", "endpoints"), [name], _NAME)
        reading.mapped(_NAME, f"sagemaker.endpoints: [{name}]")
    _read_metrics(reading)


def _read_balancer(reading: Reading) -> None:
    reading.mapping(_BALANCER)
    path = reading.text(_HEALTH)
    if path in OPEN_PATHS:
        reading.mapped(_HEALTH, "served")
    elif path is not None:
        reading.lost(_HEALTH, "is not served; let the balancer ask for /health/ready")
    idle = reading.whole(_IDLE, 1, 4000, None)
    if idle is not None:
        reading.set(("clients", "keepalive"), f"{idle}s", _IDLE)
        reading.mapped(_IDLE, f"clients.keepalive: {idle}s")


def _read_metrics(reading: Reading) -> None:
    """Read the metrics: HyperPod's invocation metrics come from the router, the rest is for
    Prometheus."""
    reading.mapping(_METRICS)
    given = reading.get(_ENABLED) is not None
    if reading.truth(_ENABLED, default=True):
        reading.set(("metrics", "aliases"), "hyperpod", _ENABLED)
        reading.mapped(_ENABLED, "metrics.aliases: hyperpod", None if given else "true (default)")
    else:
        reading.mapped(_ENABLED, "metrics.aliases: none; /metrics is there all the same")
    reading.whole((*_METRICS, "metricsScrapeIntervalSeconds"), 5, 300, None)
    reading.elsewhere((*_METRICS, "metricsScrapeIntervalSeconds"), "for Prometheus to be told")
    reading.mapping(_MODEL)
    reading.elsewhere((*_MODEL, "path"), "workers are asked for /metrics, or nothing")
    reading.elsewhere((*_MODEL, "port"), "workers are asked where they take requests")


_ENGINE = "for the engine alone"
_KUBERNETES = "for whoever starts the workers"
_AWS = "for AWS alone"
_FIELDS = {
    "modelName": "workers tell which models they serve",
    "modelVersion": _AWS,
    "modelSourceConfig": _KUBERNETES,
    "instanceType": _KUBERNETES,
    "instanceTypes": _KUBERNETES,
    "nodeAffinity": _KUBERNETES,
    "kubernetes": _KUBERNETES,
    "tags": _AWS,
    "maxDeployTimeInSeconds": _KUBERNETES,
    "InitialReplicaCount": _KUBERNETES,
    "worker.image": _ENGINE,
    "worker.args": _ENGINE,
    "worker.command": _ENGINE,
    "worker.workingDir": _ENGINE,
    "worker.environmentVariables": _ENGINE,
    "worker.resources": _KUBERNETES,
    "worker.modelVolumeMount": _KUBERNETES,
    "worker.probes": _KUBERNETES,
}
_LOST = {
    "autoScalingSpec": "workers are not scaled from here; the list of them may change at any time",
    "intelligentRoutingSpec.autoScalingSpec": "routers are scaled by whoever starts them",
    "pdSpec": "prefill and decoding are not split",
    "tlsConfig": "certificates are files here: give `tls`",
    "dataCapture": "requests are not kept",
}
#: Fields read by other files of this folder.
_READ = (
    "endpointName",
    "invocationEndpoint",
    "replicas",
    "intelligentRoutingSpec.enabled",
    "intelligentRoutingSpec.routingStrategy",
    "kvCacheSpec.enableL1Cache",
    "kvCacheSpec.enableL2Cache",
    "kvCacheSpec.cacheConfigFile",
    "kvCacheSpec.l2CacheSpec.l2CacheBackend",
    "kvCacheSpec.l2CacheSpec.l2CacheLocalUrl",
    "loadBalancer.healthCheckPath",
    "loadBalancer.idleTimeoutSeconds",
    "loadBalancer.routingAlgorithm",
    "metrics.enabled",
    "metrics.metricsScrapeIntervalSeconds",
    "metrics.modelMetrics.path",
    "metrics.modelMetrics.port",
    "worker.modelInvocationPort.containerPort",
    "worker.modelInvocationPort.name",
    "worker.requestLimits.maxConcurrentRequests",
    "worker.requestLimits.maxQueueSize",
    "worker.requestLimits.overflowStatusCode",
)


def _path(field: str) -> KeyPath:
    return (*SPEC, *field.split("."))


_KNOWN = [_path(field) for field in (*_FIELDS, *_LOST, *_READ)]
_PARENTS = {path[:depth] for path in _KNOWN for depth in range(1, len(path))}


def note_the_rest(reading: Reading) -> None:
    """Note every field of the specification that has no note yet."""
    fates = {_path(field): why for field, why in _FIELDS.items()}
    lost = {_path(field): why for field, why in _LOST.items()}
    for path in reading.unnoted(SPEC, _PARENTS):
        if path in fates:
            reading.elsewhere(path, fates[path])
        elif path in lost:
            reading.lost(path, lost[path])
        else:
            depth = len(path) - 1
            known = {field[depth] for field in _KNOWN if field[:depth] == path[:-1]}
            meant = nearest(path[-1], map(str, known))
            hint = f'; did you mean "{meant}"?' if meant else ""
            reading.lost(path, f"nobody knows this field{hint}", "***")


#: How long a request waits at most in HyperPod's proxy (its page on request limits).
QUEUE_TIMEOUT = "60s"
_LIMITS: KeyPath = (*SPEC, "worker", "requestLimits")
_CONCURRENT: KeyPath = (*_LIMITS, "maxConcurrentRequests")
_QUEUE: KeyPath = (*_LIMITS, "maxQueueSize")
_STATUS: KeyPath = (*_LIMITS, "overflowStatusCode")
MAX_LIMIT = (1 << 31) - 1


def read_limits(reading: Reading, workers: int) -> None:
    """Read the request limits. Each proxy has its own queue; the router's is as long as all of them
    together."""
    reading.mapping(_LIMITS)
    in_flight = reading.whole(_CONCURRENT, 0, MAX_LIMIT, None)
    queue = reading.whole(_QUEUE, 0, MAX_LIMIT, 0) or 0
    status = reading.whole(_STATUS, 400, 599, None)
    if not in_flight:  # absent or 0: no limit, as its page says
        for path in (_CONCURRENT, _QUEUE, _STATUS):
            reading.elsewhere(path, "without maxConcurrentRequests there is no limit")
        return
    reading.set(("limits", "in_flight"), in_flight, _CONCURRENT)
    reading.set(("limits", "queue"), queue * workers, _QUEUE)
    reading.set(("limits", "overflow", "body"), "hyperpod", _LIMITS)
    reading.set(("timeouts", "queue"), QUEUE_TIMEOUT, _QUEUE)
    reading.mapped(_CONCURRENT, f"limits.in_flight: {in_flight} on each worker")
    became = f"limits.queue: {queue * workers}, timeouts.queue: {QUEUE_TIMEOUT}"
    reading.mapped(_QUEUE, became, None if reading.get(_QUEUE) is not None else "0 (default)")
    if status is not None:
        reading.set(("limits", "overflow", "status"), status, _STATUS)
        reading.mapped(_STATUS, f"limits.overflow.status: {status}, body: hyperpod")


BACKENDS = ("redis", "tieredstorage")
_CACHE: KeyPath = (*SPEC, "kvCacheSpec")
_FILE: KeyPath = (*_CACHE, "cacheConfigFile")
_L1: KeyPath = (*_CACHE, "enableL1Cache")
_L2: KeyPath = (*_CACHE, "enableL2Cache")
_STORE: KeyPath = (*_CACHE, "l2CacheSpec")
_BACKEND: KeyPath = (*_STORE, "l2CacheBackend")
_URL: KeyPath = (*_STORE, "l2CacheLocalUrl")
_CACHE_ENGINE = "the engine's to do; the router does not count this tier"
_TOLD = "the engine's to do; kvaware counts what workers' events tell of it"
_ASKED = "the engine's to do; kvaware asks that Redis what lies there"
_KEPT = _ASKED + "; tiers.l2.promotes: l1"
_UNTOLD = "the engine's to do; tiers.l2.lmcache in the annotation says how LMCache names its chunks"


def check_cache(reading: Reading, strategy: str, ours: str | None) -> None:
    """Check the tiers, and note that engines have to be configured separately.

    LMCache includes the host's memory in its engine's KV events, but no store. So a Redis is asked,
    if the manifest says how its chunks are named. `ours`: the place in our own settings that says
    so instead.
    """
    reading.mapping(_CACHE)
    if reading.text(_FILE):
        reading.lost(_FILE, "LMCache's own file, which the router does not read")
        for path in (_L1, _L2, _STORE):
            reading.elsewhere(path, "cacheConfigFile takes its place")
        return
    first = reading.truth(_L1, default=True)
    second = reading.truth(_L2, default=False)
    listens = strategy == "kvaware"
    if listens and reading.get(_CACHE) is not None:
        reading.set(("tiers", "l1", "enabled"), first, _L1)
        reading.set(("tiers", "l2", "enabled"), second, _L2)
    if first and listens:
        reading.mapped(_L1, _TOLD)
    else:
        _tell(reading, _L1, _CACHE_ENGINE, on=first)
    if reading.mapping(_STORE):
        url = _check_store(reading)
        if ours and second and listens:
            for path in (_L2, _BACKEND, _URL):
                reading.elsewhere(path, f"{ours} says what is asked")
        elif url and second and listens:
            _ask(reading, url, keeps=first)
    elif second:
        reading.refuse(_L2, "needs l2CacheSpec, with l2CacheBackend redis or tieredstorage")
    away = _UNTOLD if listens else _CACHE_ENGINE
    _tell(reading, _L2, away, on=second)
    (reading.lost if second else reading.elsewhere)(
        _BACKEND, away if second else "enableL2Cache is not on"
    )
    reading.elsewhere(_URL, "for the engine alone")


def _ask(reading: Reading, url: str, *, keeps: bool) -> None:
    """Have the router ask that Redis, if it is known how its keys are made.

    `keeps`: there is an L1, in which LMCache in the engine keeps what it loads from L2.
    """
    naming = Naming(reading)
    if not re.fullmatch(REDIS_PATTERN, url):
        naming.lacking.append("a URL of host and port alone, tiers.l2.lmcache.password if need be")
    if naming.lacking:
        lacks = "; ".join(naming.lacking)
        reading.lost(_URL, f"the router cannot ask it without {lacks}")
        return
    reading.set(LMCACHE, {"redis": url, **naming.settings}, _URL)
    if keeps:
        reading.set(("tiers", "l2", "promotes"), "l1", _L2)
    naming.note()
    reading.mapped(_URL, "tiers.l2.lmcache.redis, names as in the engine")
    reading.mapped(_L2, _KEPT if keeps else _ASKED)
    reading.mapped(_BACKEND, "tiers.l2.lmcache")


def _tell(reading: Reading, path: KeyPath, why: str, *, on: bool) -> None:
    if on:
        reading.lost(path, why)
    else:
        tier = "l1" if path == _L1 else "l2"
        reading.mapped(path, f"tiers.{tier}.enabled: false, and nothing counts it")


def _check_store(reading: Reading) -> str | None:
    """Check `l2CacheSpec`, report mistakes, and return the URL if it is a Redis."""
    backend, url = reading.text(_BACKEND), reading.text(_URL)
    if backend is None:
        reading.refuse(_BACKEND, f"is needed: {' or '.join(BACKENDS)}")
        return None
    word = backend.lower()  # HyperPod ignores case
    if word not in BACKENDS:
        message = f"{shown(backend)} is not one of {', '.join(BACKENDS)}"
        reading.refuse(_BACKEND, message, nearest(word, BACKENDS))
    if word != "redis":
        return None
    if url is None:
        reading.refuse(_URL, "is needed with redis: redis://host:port")
    elif not re.match(r"rediss?://[^/\s]+", url):
        reading.refuse(_URL, "is not the URL of a Redis: write redis://host:port")
    return url


class Mapped(NamedTuple):
    """The result of translating a manifest."""

    document: Document
    """The settings as a document, each at the line of the field it comes from."""
    problems: list[Problem]
    """All mistakes in the manifest itself."""
    notes: list[Note]


def translate(text: str, file: str, workers: str | None) -> Mapped:
    """Translate the one endpoint in a file.

    `workers`: where they are, instead of its annotation. Raises SettingsError if there is no
    endpoint to translate.
    """
    manifest, others = find(text, file)
    reading = Reading(manifest)
    ours = annotation.parse_own(reading, manifest)
    count = place_workers(reading, workers, annotation.count_workers(reading, ours))
    instead = annotation.name_strategy(ours)
    chosen = choose_strategy(reading, instead)
    strategy = instead or chosen
    check_cache(reading, strategy, annotation.asks(ours))  # notes the variables that it uses
    read_environment(reading, strategy)
    read_limits(reading, count)
    read_paths(reading)
    note_the_rest(reading)
    if ours is not None:
        annotation.overlay(reading, ours, workers)
    annotation.spread(reading)
    notes = [*reading.notes, *(_passed_over(kind) for kind in others)]
    if manifest.data.get("status") is not None:
        notes.append(Note("status", "***", "written by Kubernetes", FieldOutcome.ELSEWHERE))
    places = {(): reading.place(("spec",)), **reading.places}
    empty = ours.empty if ours else set()
    document = Document(file, reading.data, places, [], empty)
    return Mapped(document, reading.problems, notes)


def _passed_over(kind: str) -> Note:
    return Note("kind", kind, "another resource, passed over", FieldOutcome.ELSEWHERE)
