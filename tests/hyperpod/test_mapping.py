"""What each field of an InferenceEndpointConfig becomes."""

from typing import Any

import pytest

from router.hyperpod.fields import Fate
from tests.hyperpod.manifests import NOBODY, manifest, mapped, note, variables, wrong

ON = {"enabled": True}


@pytest.mark.parametrize("name", ["prefixaware", "kvaware", "session", "roundrobin"])
def test_every_strategy_of_hyperpod_is_ours(name: str) -> None:
    """They have the same names."""
    found = mapped(intelligentRoutingSpec={**ON, "routingStrategy": name})
    assert found.data["strategy"] == name


def test_enabled_without_a_strategy_is_prefixaware() -> None:
    """HyperPod's default, marked as such in the note."""
    found = mapped(intelligentRoutingSpec=ON)
    assert found.data["strategy"] == "prefixaware"
    said = note(found, "spec.intelligentRoutingSpec.routingStrategy")
    assert (said.value, said.fate) == ("prefixaware (default)", Fate.MAPPED)


def test_a_strategy_that_is_not_there_is_told() -> None:
    """It is replaced by prefixaware, and the note says so."""
    routing = {**ON, "routingStrategy": "kvaware"}
    found = mapped(able=NOBODY, intelligentRoutingSpec=routing)
    assert found.data["strategy"] == "prefixaware"
    assert note(found, "spec.intelligentRoutingSpec.routingStrategy").fate is Fate.LOST


@pytest.mark.parametrize(
    ("spec", "ours"),
    [
        ({}, None),
        ({"intelligentRoutingSpec": {"routingStrategy": "kvaware"}}, None),
        ({"intelligentRoutingSpec": {"enabled": False}}, "leastload"),
        ({"loadBalancer": {"routingAlgorithm": "round_robin"}}, "roundrobin"),
        ({"loadBalancer": {"routingAlgorithm": "least_outstanding_requests"}}, "leastload"),
        (
            {"intelligentRoutingSpec": ON, "loadBalancer": {"routingAlgorithm": "round_robin"}},
            "prefixaware",
        ),
    ],
)
def test_without_routing_the_load_balancer_says_how(spec: dict[str, Any], ours: str | None) -> None:
    """If that says nothing either, our own default applies."""
    assert mapped(**spec).data.get("strategy") == ours


def test_request_limits() -> None:
    """Limits are per worker; the queue is the sum of all workers', and refusals look like
    HyperPod's."""
    limits = {"maxConcurrentRequests": 10, "maxQueueSize": 5, "overflowStatusCode": 503}
    found = mapped(replicas=3, worker={"requestLimits": limits})
    assert found.data["limits"] == {
        "in_flight": 10,
        "queue": 15,
        "overflow": {"body": "hyperpod", "status": 503},
    }
    assert found.data["timeouts"] == {"queue": "60s"}


def test_request_limits_have_hyperpods_defaults() -> None:
    """No queue, and status 429, our default as well. Without maxConcurrentRequests, or with 0,
    there are no limits."""
    found = mapped(worker={"requestLimits": {"maxConcurrentRequests": 10}})
    assert found.data["limits"] == {"in_flight": 10, "queue": 0, "overflow": {"body": "hyperpod"}}
    assert note(found, "spec.worker.requestLimits.maxQueueSize").value == "0 (default)"
    for without in ({}, {"maxConcurrentRequests": 0, "maxQueueSize": 7}):
        assert "limits" not in mapped(worker={"requestLimits": without}).data


def test_session_key() -> None:
    """A field of the body or a header, depending on how it is written."""
    routing = {**ON, "routingStrategy": "session"}
    for key, setting in (("user_id", "field"), ("x-user-id", "header")):
        worker = variables(SESSION_KEY=key)
        found = mapped(intelligentRoutingSpec=routing, worker=worker)
        assert found.data["session"] == {setting: key}
    assert "session" not in mapped(able=NOBODY, worker=worker).data


def test_a_session_key_without_sessions_is_told() -> None:
    """`prefixaware` ignores sessions."""
    found = mapped(intelligentRoutingSpec=ON, worker=variables(SESSION_KEY="user_id"))
    assert "session" not in found.data
    assert note(found, "spec.worker.environmentVariables[0]").fate is Fate.LOST


def test_what_the_environment_says_of_workers() -> None:
    """Whether they keep sessions, how long these last, and that they need a key, which is not
    shown."""
    worker = variables(
        SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true",
        SAGEMAKER_SESSIONS_EXPIRATION="600",
        VLLM_API_KEY="sk-very-secret",
        PYTHONHASHSEED="123456",
    )
    found = mapped(replicas=2, worker=worker)
    assert found.data["session"] == {"ttl": "600s"}
    assert found.data["workers"] == [
        {"url": f"http://llama-{n}.llama:8000", "stateful": True, "api_key": "${VLLM_API_KEY}"}
        for n in range(2)
    ]
    assert not any("secret" in text or "123456" in text for one in found.notes for text in one[:3])


@pytest.mark.parametrize("text", ["0", "²", "-1", "1.5", "9" * 5000])
def test_a_lifetime_that_is_no_number(text: str) -> None:
    """The note says so without showing the value."""
    found = mapped(worker=variables(SES_TTL_MIN=text))
    assert "session" not in found.data
    said = note(found, "spec.worker.environmentVariables[0]")
    assert (said.value, said.fate) == ("SES_TTL_MIN=***", Fate.LOST)


def test_a_key_that_the_router_lacks_is_told() -> None:
    """Otherwise workers would refuse every request for no apparent reason."""
    found = mapped(able=NOBODY, worker=variables(VLLM_API_KEY="sk-very-secret"))
    assert found.data["workers"] == ["http://llama-0.llama:8000"]
    assert note(found, "spec.worker.environmentVariables[0]").fate is Fate.LOST


def test_arguments_are_counted_not_shown() -> None:
    """They may contain a key. Arguments that change tokens have to be repeated for the router."""
    found = mapped(worker={"args": ["--api-key", "sk-very-secret"]})
    assert (note(found, "spec.worker.args").value, note(found, "spec.worker.args").fate) == (
        "2 items",
        Fate.LOST,
    )
    found = mapped(worker={"args": ["--chat-template=/t.jinja"]})
    assert "--chat-template" in note(found, "spec.worker.args").became
    assert note(mapped(worker={"args": ["m"]}), "spec.worker.args").fate is Fate.ELSEWHERE


def test_metrics_have_hyperpods_names() -> None:
    """Unless metrics are disabled in the manifest."""
    assert mapped().data["metrics"] == {"aliases": "hyperpod"}
    assert "metrics" not in mapped(metrics={"enabled": False}).data


def test_the_door() -> None:
    """Endpoint names, paths, and the timeout of idle connections."""
    found = mapped(
        endpointName="llama-8b",
        invocationEndpoint="invocations",
        loadBalancer={"healthCheckPath": "/health", "idleTimeoutSeconds": 120},
    )
    assert found.data["sagemaker"] == {"endpoints": ["llama-8b"]}
    assert found.data["clients"] == {"keepalive": "120s"}
    assert note(found, "spec.invocationEndpoint").fate is Fate.MAPPED
    assert note(found, "spec.loadBalancer.healthCheckPath").fate is Fate.MAPPED
    found = mapped(loadBalancer={"healthCheckPath": "/up"}, invocationEndpoint="predict")
    assert note(found, "spec.invocationEndpoint").fate is Fate.LOST
    assert note(found, "spec.loadBalancer.healthCheckPath").fate is Fate.LOST


def test_a_cache_file_overrides_the_rest() -> None:
    """The other fields are then not even checked."""
    cache = {"cacheConfigFile": "/c.yaml", "enableL2Cache": True, "l2CacheSpec": {"x": 1}}
    found = mapped(kvCacheSpec=cache)
    assert note(found, "spec.kvCacheSpec.l2CacheSpec").became == "cacheConfigFile takes its place"


@pytest.mark.parametrize("backend", ["redis", "Redis", "TieredStorage"])
def test_backends_in_any_case(backend: str) -> None:
    """The case of backends does not matter; a password in the URL is not shown."""
    url = "redis://:very-secret@redis:6379"
    store = {"l2CacheBackend": backend, "l2CacheLocalUrl": url}
    found = mapped(kvCacheSpec={"enableL2Cache": True, "l2CacheSpec": store})
    said = note(found, "spec.kvCacheSpec.l2CacheSpec.l2CacheLocalUrl").value
    assert said == '"redis://***@redis:6379"'


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"intelligentRoutingSpec": {**ON, "routingStrategy": "kv-aware"}},
            'spec.intelligentRoutingSpec.routingStrategy: "kv-aware" is not one of prefixaware,'
            " kvaware, session, roundrobin; or give strategy in warmroute.io/settings",
        ),
        (
            {"intelligentRoutingSpec": {"enabled": "yes"}},
            "spec.intelligentRoutingSpec.enabled: must be true or false",
        ),
        ({"intelligentRoutingSpec": True}, "spec.intelligentRoutingSpec: must be a mapping"),
        (
            {"worker": {"requestLimits": {"overflowStatusCode": 200}}},
            "spec.worker.requestLimits.overflowStatusCode: must be a whole number from 400 to 599",
        ),
        (
            {"worker": {"requestLimits": {"maxConcurrentRequests": "10"}}},
            "spec.worker.requestLimits.maxConcurrentRequests: must be a whole number from 0 to"
            " 2147483647",
        ),
        (
            {"worker": {"environmentVariables": ["A=b"]}},
            "spec.worker.environmentVariables[0]: must be a mapping with a name",
        ),
        ({"worker": {"args": "--a"}}, "spec.worker.args: must be a list"),
        ({"metrics": []}, "spec.metrics: must be a mapping"),
        ({"invocationEndpoint": 1}, "spec.invocationEndpoint: must be text; put it in quotes"),
        (
            {"kvCacheSpec": {"enableL2Cache": True}},
            "spec.kvCacheSpec.enableL2Cache: needs l2CacheSpec, with l2CacheBackend redis or"
            " tieredstorage",
        ),
        (
            {"kvCacheSpec": {"l2CacheSpec": {"l2CacheBackend": "myredis"}}},
            'spec.kvCacheSpec.l2CacheSpec.l2CacheBackend: "myredis" is not one of redis,'
            " tieredstorage",
        ),
        (
            {"kvCacheSpec": {"l2CacheSpec": {"l2CacheLocalUrl": "redis://a"}}},
            "spec.kvCacheSpec.l2CacheSpec.l2CacheBackend: is needed: redis or tieredstorage",
        ),
        (
            {"kvCacheSpec": {"l2CacheSpec": {"l2CacheBackend": "redis"}}},
            "spec.kvCacheSpec.l2CacheSpec.l2CacheLocalUrl: is needed with redis: redis://host:port",
        ),
        (
            {
                "kvCacheSpec": {
                    "l2CacheSpec": {"l2CacheBackend": "redis", "l2CacheLocalUrl": "redis:6379"}
                }
            },
            "spec.kvCacheSpec.l2CacheSpec.l2CacheLocalUrl: is not the URL of a Redis: write"
            " redis://host:port",
        ),
    ],
)
def test_mistakes_name_their_field(spec: dict[str, Any], said: str) -> None:
    """The message says what would be right."""
    assert wrong(**spec) == [said]


def test_every_field_has_one_note() -> None:
    """Unknown fields too, with a suggestion; their values are not shown."""
    found = mapped(
        autoScalingSpec={"maxReplicaCount": 3},
        kvCacheSpec={"enableL1cache": "very-secret"},
        worker={"probes": {"livenessProbe": {}}, "requestLimit": 4},
        loadBalancer={},
        tags=[],
    )
    fields = [one.field for one in found.notes]
    assert len(fields) == len(set(fields))
    assert note(found, "spec.autoScalingSpec").fate is Fate.LOST
    assert note(found, "spec.worker.probes").fate is Fate.ELSEWHERE
    said = note(found, "spec.kvCacheSpec.enableL1cache")
    assert (said.value, said.fate) == ("***", Fate.LOST)
    assert 'did you mean "enableL1Cache"?' in said.became
    assert 'did you mean "requestLimits"?' in note(found, "spec.worker.requestLimit").became
    spec = manifest()["spec"]
    noted = {field.split(".")[1] for field in fields if field.startswith("spec.")}
    assert noted >= spec.keys()
