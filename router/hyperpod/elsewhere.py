"""Fields that become no setting, with the reason; and unknown fields.

Names are those of the InferenceEndpointConfig of HyperPod's inference operator, v1 and v1alpha1.
"""

from router.hyperpod.reading import SPEC, Reading
from router.settings.errors import KeyPath, nearest

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
            known = {one[len(path) - 1] for one in _KNOWN if one[: len(path) - 1] == path[:-1]}
            meant = nearest(path[-1], map(str, known))
            hint = f'; did you mean "{meant}"?' if meant else ""
            reading.lost(path, f"nobody knows this field{hint}", "***")
