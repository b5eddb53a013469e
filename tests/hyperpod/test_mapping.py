"""What each field of an InferenceEndpointConfig becomes."""

from pathlib import Path
from typing import Any

import pytest

from router.hyperpod.fields import FieldOutcome
from router.settings.errors import SettingsError
from tests.hyperpod.manifests import data, manifest, mapped, note, routed, taken, variables, wrong

ON = {"enabled": True}
ROUTING = "spec.intelligentRoutingSpec.routingStrategy"
VARIABLE = "spec.worker.environmentVariables[0]"


@pytest.mark.parametrize(
    ("spec", "strategy"),
    [
        *(
            ({"intelligentRoutingSpec": routed(name)}, name)
            for name in ("prefixaware", "kvaware", "session", "roundrobin")
        ),
        ({}, None),
        ({"intelligentRoutingSpec": ON}, "prefixaware"),
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
def test_strategies(tmp_path: Path, spec: dict[str, Any], strategy: str | None) -> None:
    """HyperPod's have our names; without routing the load balancer says how, or our default."""
    assert data(**spec).get("strategy") == strategy
    name = taken(tmp_path, **spec).settings.strategy.name
    assert name == (strategy or "prefixaware")


def test_a_default_of_hyperpod_is_marked_in_its_note() -> None:
    """What is used is told even if the manifest does not say it."""
    remark = note(mapped(intelligentRoutingSpec=ON), ROUTING)
    assert (remark.value, remark.fate) == ("prefixaware (default)", FieldOutcome.MAPPED)


def test_request_limits() -> None:
    """Per worker; the queue is the sum of all workers', and refusals look like HyperPod's.

    By default there is no queue. Without maxConcurrentRequests, or with 0, there are no limits.
    """
    limits = {"maxConcurrentRequests": 10, "maxQueueSize": 5, "overflowStatusCode": 503}
    settings = data(replicas=3, worker={"requestLimits": limits})
    assert settings["limits"] == {
        "in_flight": 10,
        "queue": 15,
        "overflow": {"body": "hyperpod", "status": 503},
    }
    assert settings["timeouts"] == {"queue": "60s"}
    result = mapped(worker={"requestLimits": {"maxConcurrentRequests": 10}})
    assert note(result, "spec.worker.requestLimits.maxQueueSize").value == "0 (default)"
    for without in ({}, {"maxConcurrentRequests": 0, "maxQueueSize": 7}):
        assert "limits" not in data(worker={"requestLimits": without})


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
    result = taken(tmp_path, intelligentRoutingSpec=routed("session"), worker=worker)
    session = result.settings.session
    assert (session.field, session.header, session.lifetime) == (field, header, 600)
    assert all(worker.stateful for worker in result.settings.workers)
    for number in range(3):
        assert (
            note(result, f"spec.worker.environmentVariables[{number}]").fate is FieldOutcome.MAPPED
        )


@pytest.mark.parametrize("stateful", [(), ("before",), ("after",)])
def test_a_session_key_beside_kvaware(tmp_path: Path, stateful: tuple[str, ...]) -> None:
    """HyperPod asks the caches first and the session second; `session` with almost no `spill` does
    so too. In any order of variables, sessions that the container keeps cannot move."""
    values = {"SESSION_KEY": "user_id"}
    if stateful:
        values["SAGEMAKER_ENABLE_STATEFUL_SESSIONS"] = "true"
    if stateful == ("before",):
        values = dict(reversed(values.items()))
    worker = variables(**values)
    result = taken(tmp_path, intelligentRoutingSpec=routed("kvaware"), worker=worker)
    strategy = result.settings.strategy
    assert (strategy.written()["name"], strategy.written()["over"]) == ("session", "kvaware")
    assert strategy.options.get("spill") == (None if stateful else 0.001)
    assert all(worker.stateful == bool(stateful) for worker in result.settings.workers)
    assert result.settings.session.field == "user_id"


def test_a_session_key_without_sessions_is_told() -> None:
    """`prefixaware` ignores sessions."""
    result = mapped(intelligentRoutingSpec=ON, worker=variables(SESSION_KEY="user_id"))
    assert "session" not in data(intelligentRoutingSpec=ON, worker=variables(SESSION_KEY="user_id"))
    assert note(result, VARIABLE).fate is FieldOutcome.LOST


def test_a_key_that_names_no_field(tmp_path: Path) -> None:
    """The error is located at the variable's setting."""
    worker = variables(SESSION_KEY="user id")
    with pytest.raises(SettingsError, match="is not a field's name") as caught:
        taken(tmp_path, intelligentRoutingSpec=routed("session"), worker=worker)
    assert [problem.field for problem in caught.value.problems] == ["session.field"]


def test_what_the_environment_says_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they keep sessions, how long these last, and that they need a key, which is not
    shown; if the router lacks it, the note says so."""
    monkeypatch.setenv("VLLM_API_KEY", "sk-very-secret")
    worker = variables(
        VLLM_API_KEY="sk-very-secret",
        SAGEMAKER_ENABLE_STATEFUL_SESSIONS="true",
        SAGEMAKER_SESSIONS_EXPIRATION="600",
        PYTHONHASHSEED="123456",
    )
    result = mapped(replicas=2, worker=worker)
    settings = data(replicas=2, worker=worker)
    assert settings["session"] == {"ttl": "600s"}
    assert settings["workers"] == [
        {"url": f"http://llama-{n}.llama:8000", "stateful": True, "api_key": "${VLLM_API_KEY}"}
        for n in range(2)
    ]
    assert not any("secret" in text or "123456" in text for it in result.notes for text in it[:3])
    monkeypatch.delenv("VLLM_API_KEY")
    assert "api_key" not in data(replicas=2, worker=worker)["workers"][0]
    assert note(mapped(replicas=2, worker=worker), VARIABLE).fate is FieldOutcome.LOST


@pytest.mark.parametrize("text", ["0", "²", "-1", "1.5", "9" * 5000])
def test_a_lifetime_that_is_no_number(text: str) -> None:
    """The note says so without showing the value."""
    remark = note(mapped(worker=variables(SES_TTL_MIN=text)), VARIABLE)
    assert (remark.value, remark.fate) == ("SES_TTL_MIN=***", FieldOutcome.LOST)
    assert "session" not in data(worker=variables(SES_TTL_MIN=text))


EVENTS = '--kv-events-config={"enable_kv_cache_events":true,"publisher":"zmq"}'


@pytest.mark.parametrize(
    ("strategy", "args", "fate", "words"),
    [
        ("prefixaware", ["--api-key", "sk-very-secret"], FieldOutcome.LOST, "what --api-key says"),
        (
            "prefixaware",
            ["--chat-template=/t.jinja"],
            FieldOutcome.LOST,
            "say --chat-template here too",
        ),
        ("prefixaware", ["m"], FieldOutcome.ELSEWHERE, "for the engine alone"),
        ("kvaware", [EVENTS], FieldOutcome.ELSEWHERE, "for the engine alone"),
        ("kvaware", ["--x"], FieldOutcome.LOST, "without --kv-events-config"),
        ("kvaware", None, FieldOutcome.LOST, "without --kv-events-config"),
    ],
)
def test_arguments_that_have_to_be_repeated_for_the_router(
    strategy: str, args: list[str] | None, fate: FieldOutcome, words: str
) -> None:
    """They are counted and not shown, since they may contain a key."""
    worker = {} if args is None else {"args": args}
    result = mapped(worker=worker, intelligentRoutingSpec=routed(strategy))
    remark = note(result, "spec.worker.args")
    assert remark.fate is fate
    assert words in remark.became
    assert "secret" not in str(result.notes)


def test_metrics_have_hyperpods_names() -> None:
    """Unless metrics are disabled in the manifest."""
    assert data()["metrics"] == {"aliases": "hyperpod"}
    assert "metrics" not in data(metrics={"enabled": False})


def test_paths_and_the_load_balancer(tmp_path: Path) -> None:
    """Endpoint names, paths, and the timeout of idle connections."""
    fields = ("invocationEndpoint", "loadBalancer.healthCheckPath")
    result = taken(
        tmp_path,
        endpointName="llama-8b",
        invocationEndpoint="invocations",
        loadBalancer={"healthCheckPath": "/ping", "idleTimeoutSeconds": 120},
    )
    assert [it.name for it in result.settings.sagemaker.endpoints] == ["llama-8b"]
    assert result.settings.clients.keepalive == 120
    for field in ("endpointName", *fields):
        assert note(result, f"spec.{field}").fate is FieldOutcome.MAPPED, field
    lost = mapped(loadBalancer={"healthCheckPath": "/up"}, invocationEndpoint="predict")
    for field in fields:
        assert note(lost, f"spec.{field}").fate is FieldOutcome.LOST, field


def test_tiers_count_as_far_as_something_tells_of_them(tmp_path: Path) -> None:
    """Events cover L1, and nothing covers an L2 that cannot be asked."""
    l1, l2 = "spec.kvCacheSpec.enableL1Cache", "spec.kvCacheSpec.enableL2Cache"
    cache: dict[str, Any] = {
        "enableL1Cache": True,
        "enableL2Cache": True,
        "l2CacheSpec": {"l2CacheBackend": "redis", "l2CacheLocalUrl": "redis://redis:6379"},
    }
    result = taken(tmp_path, intelligentRoutingSpec=routed("kvaware"), kvCacheSpec=cache)
    assert (note(result, l1).fate, note(result, l2).fate) == (
        FieldOutcome.MAPPED,
        FieldOutcome.LOST,
    )
    tiers = result.settings.tiers
    assert (tiers.l1.enabled, tiers.l2.enabled) == (True, True)
    off = {"enableL1Cache": False, "enableL2Cache": False}
    tiers = taken(
        tmp_path, intelligentRoutingSpec=routed("kvaware"), kvCacheSpec=off
    ).settings.tiers
    assert (tiers.l1.enabled, tiers.l2.enabled) == (False, False)
    deaf = mapped(intelligentRoutingSpec=routed("prefixaware"), kvCacheSpec=cache)
    assert note(deaf, l1).fate is FieldOutcome.LOST
    file = mapped(kvCacheSpec={**cache, "cacheConfigFile": "/c.yaml"})
    assert note(file, "spec.kvCacheSpec.l2CacheSpec").became == "cacheConfigFile takes its place"


@pytest.mark.parametrize("backend", ["redis", "Redis", "TieredStorage"])
def test_backends_in_any_case(backend: str) -> None:
    """The case of backends does not matter; a password in the URL is not shown."""
    store = {"l2CacheBackend": backend, "l2CacheLocalUrl": "redis://:very-secret@redis:6379"}
    result = mapped(kvCacheSpec={"enableL2Cache": True, "l2CacheSpec": store})
    value = note(result, "spec.kvCacheSpec.l2CacheSpec.l2CacheLocalUrl").value
    assert value == '"redis://***@redis:6379"'


LIMITS, CACHE = "spec.worker.requestLimits", "spec.kvCacheSpec"


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ({"intelligentRoutingSpec": routed("kv-aware")}, ROUTING, '"kv-aware" is not one of'),
        (
            {"intelligentRoutingSpec": {"enabled": "yes"}},
            "spec.intelligentRoutingSpec.enabled",
            "must be true or false",
        ),
        ({"intelligentRoutingSpec": True}, "spec.intelligentRoutingSpec", "must be a mapping"),
        (
            {"worker": {"requestLimits": {"overflowStatusCode": 200}}},
            f"{LIMITS}.overflowStatusCode",
            "must be a whole number from 400 to 599",
        ),
        (
            {"worker": {"requestLimits": {"maxConcurrentRequests": "10"}}},
            f"{LIMITS}.maxConcurrentRequests",
            "must be a whole number",
        ),
        ({"worker": {"environmentVariables": ["A=b"]}}, VARIABLE, "must be a mapping with a name"),
        ({"worker": {"args": "--a"}}, "spec.worker.args", "must be a list"),
        ({"metrics": []}, "spec.metrics", "must be a mapping"),
        ({"invocationEndpoint": 1}, "spec.invocationEndpoint", "must be text"),
        ({"kvCacheSpec": {"enableL2Cache": True}}, f"{CACHE}.enableL2Cache", "needs l2CacheSpec"),
        (
            {"kvCacheSpec": {"l2CacheSpec": {"l2CacheBackend": "myredis"}}},
            f"{CACHE}.l2CacheSpec.l2CacheBackend",
            '"myredis" is not one of redis, tieredstorage',
        ),
        (
            {"kvCacheSpec": {"l2CacheSpec": {"l2CacheLocalUrl": "redis://a"}}},
            f"{CACHE}.l2CacheSpec.l2CacheBackend",
            "is needed",
        ),
        (
            {"kvCacheSpec": {"l2CacheSpec": {"l2CacheBackend": "redis"}}},
            f"{CACHE}.l2CacheSpec.l2CacheLocalUrl",
            "is needed with redis",
        ),
        (
            {"kvCacheSpec": {"l2CacheSpec": {"l2CacheBackend": "redis", "l2CacheLocalUrl": "r:1"}}},
            f"{CACHE}.l2CacheSpec.l2CacheLocalUrl",
            "is not the URL of a Redis",
        ),
    ],
)
def test_mistakes_name_their_field(spec: dict[str, Any], field: str, words: str) -> None:
    """The message says what would be right."""
    (message,) = wrong(**spec)
    assert message.startswith(f"{field}: ")
    assert words in message


def test_every_field_has_one_note() -> None:
    """Unknown fields too, with a suggestion; their values are not shown."""
    result = mapped(
        autoScalingSpec={"maxReplicaCount": 3},
        kvCacheSpec={"enableL1cache": "very-secret"},
        worker={"probes": {"livenessProbe": {}}, "requestLimit": 4},
        loadBalancer={},
        tags=[],
    )
    fields = [it.field for it in result.notes]
    assert len(fields) == len(set(fields))
    assert note(result, "spec.autoScalingSpec").fate is FieldOutcome.LOST
    assert note(result, "spec.worker.probes").fate is FieldOutcome.ELSEWHERE
    unknown = note(result, "spec.kvCacheSpec.enableL1cache")
    assert (unknown.value, unknown.fate) == ("***", FieldOutcome.LOST)
    assert 'did you mean "enableL1Cache"?' in unknown.became
    assert 'did you mean "requestLimits"?' in note(result, "spec.worker.requestLimit").became
    noted = {field.split(".")[1] for field in fields if field.startswith("spec.")}
    assert noted >= manifest()["spec"].keys()
