"""The ways in: paths, load balancer, metrics, the endpoint's name."""

from collections.abc import Collection

from router.hyperpod.reading import SPEC, Reading
from router.settings.errors import KeyPath

_BALANCER: KeyPath = (*SPEC, "loadBalancer")
_HEALTH: KeyPath = (*_BALANCER, "healthCheckPath")
_IDLE: KeyPath = (*_BALANCER, "idleTimeoutSeconds")
_PATH: KeyPath = (*SPEC, "invocationEndpoint")
_NAME: KeyPath = (*SPEC, "endpointName")
_METRICS: KeyPath = (*SPEC, "metrics")
_ENABLED: KeyPath = (*_METRICS, "enabled")
_MODEL: KeyPath = (*_METRICS, "modelMetrics")


def open_door(reading: Reading, paths: Collection[str], probed: Collection[str]) -> None:
    """Set all settings about these. `paths` take requests, `probed` are health checks."""
    _balance(reading, probed)
    path = reading.text(_PATH)
    if path is not None:
        said = f"/{path.lstrip('/')}"
        if said in paths:
            reading.mapped(_PATH, "served, beside the other paths of vLLM")
        else:
            reading.lost(_PATH, "is not served; all the paths of OpenAI's API are")
    name = reading.text(_NAME)
    if name and "sagemaker" in reading.able.sections:
        reading.set(("sagemaker", "endpoints"), [name], _NAME)
        reading.mapped(_NAME, f"sagemaker.endpoints: [{name}]")
    elif name:
        reading.lost(_NAME, "the paths of SageMaker are not served")
    _tell_metrics(reading)


def _balance(reading: Reading, probed: Collection[str]) -> None:
    reading.mapping(_BALANCER)
    path = reading.text(_HEALTH)
    if path in probed:
        reading.mapped(_HEALTH, "served")
    elif path is not None:
        reading.lost(_HEALTH, "is not served; let the balancer ask for /health/ready")
    idle = reading.whole(_IDLE, 1, 4000, None)
    if idle is not None:
        reading.set(("clients", "keepalive"), f"{idle}s", _IDLE)
        reading.mapped(_IDLE, f"clients.keepalive: {idle}s")


def _tell_metrics(reading: Reading) -> None:
    """Set the metrics: HyperPod's invocation metrics come from the router, the rest is for
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
