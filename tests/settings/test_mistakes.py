"""Mistakes in settings: where they are, what is allowed instead, and no secret in any message."""

import pytest

from router.settings.errors import Problem, SettingsError
from router.settings.loader import loads
from tests.settings.wrong import WORKER, refuses, wrong

URL = "is not a worker's URL: write http://host:port"


def test_the_sentences_that_operators_depend_on() -> None:
    """Unknown keys, wrong values and contradictions are all reported, in the order of the file."""
    assert wrong(
        "listen: 8080\n"
        "stratgy: prefixaware\n"
        "workers:\n"
        "  - http://a:1\n"
        "  - url: http://a:1\n"
        "    api_kay: sk-sekret\n"
        "  - nonsense\n"
        "timeouts:\n"
        "  connect: 2\n"
        "  connect: 3\n"
        "limits: {queue: 1.5}\n"
        "logs:\n"
    ) == [
        "f:1: listen: 8080 is not an address: write host:port,"
        ' such as 127.0.0.1:8080 or "[::1]:8080"',
        'f:2: stratgy: unknown key; did you mean "strategy"?',
        "f:5: workers[1].url: the same address as workers[0]: a:1",
        'f:6: workers[1].api_kay: unknown key; did you mean "api_key"?',
        f'f:7: workers[2]: "nonsense" {URL}',
        "f:9: timeouts.connect: 2 is not a duration: write a whole number and a unit"
        " (ms, s, m, h, d), such as 30s",
        "f:10: timeouts.connect: duplicate key; the first is on line 9",
        "f:11: limits.queue: must be a whole number",
        "f:12: logs: has no value; give it one or remove it",
    ]


@pytest.mark.parametrize(
    ("line", "place", "words"),
    [
        ("zebra: 1", "zebra", "unknown key"),
        ("5: 1", "5", "unknown key"),
        ("timeouts: {first-byte: 1s}", "timeouts.first-byte", 'did you mean "first_byte"?'),
        ("timeouts: 5s", "timeouts", "must be a mapping"),
        ("timeouts: {connect: 0s}", "timeouts.connect", "must be longer than 0s"),
        ("timeouts: {keepalive: 5s}", "timeouts.keepalive", "must be shorter than 5s: vLLM"),
        ("timeouts: {total: never}", "timeouts.total", ", or off"),
        ("timeouts: {total: }", "timeouts.total", "has no value"),
        ("limits: {body: 0B}", "limits.body", "must be more than 0B"),
        ("limits: {in_flight: 0}", "limits.in_flight", "must be at least 1"),
        ("limits: {retries: 120%}", "limits.retries", '"120%" is not a share'),
        ("limits: {attempts: 11}", "limits.attempts", "must be at most 10"),
        ("health: {ejection: {first: 10m}}", "health.ejection", "longer than longest (5m)"),
        ("logs: {level: warn}", "logs.level", 'did you mean "warning"?'),
        ("logs: {requests: yes}", "logs.requests", "must be true or false"),
        ("session: {ttl: 10001d}", "session.ttl", "must be at most 10000d"),
        ("session: {header: cookie}", "session.header", "what nobody may see"),
        ("session: {header: a b}", "session.header", "not a header's name"),
        ("session: {field: a b}", "session.field", "not a field's name"),
        ("session: {redis: {url: 'redis://a:65536'}}", "session.redis.url", "not a Redis URL"),
        ("session: {redis: {url: 'redis://[:::]:1'}}", "session.redis.url", "not a Redis URL"),
        ("session: {redis: {url: 'redis://a:1?b=1'}}", "session.redis.url", "not a Redis URL"),
        ("controller: c:1", "controller", "is not a controller's URL"),
        ("tiers: {l2: {lmcache: {}}}", "tiers.l2.lmcache", "either redis or coordinator"),
        (
            "tiers: {l2: {lmcache: {coordinator: 'http://c', names: engine}}}",
            "tiers.l2.lmcache",
            "needs redis",
        ),
        (
            "tiers: {l2: {lmcache: {redis: 'redis://r', names: engine}}}",
            "tiers.l2.lmcache",
            "needs seed",
        ),
        (
            "tiers: {l2: {lmcache: {redis: 'redis://r', seed: '4294967296'}}}",
            "tiers.l2.lmcache.seed",
            "with which no Python starts",
        ),
        ("sagemaker: {prefix: /a/}", "sagemaker.prefix", "without a last slash"),
        ("sagemaker: {endpoints: [a_b]}", "sagemaker.endpoints[0]", "not an endpoint's name"),
        ("pools: [{name: p, workers: [http://b:1]}]", "pools", 'cannot stand beside "workers"'),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(line: str, place: str, words: str) -> None:
    """One mistake, one message."""
    refuses(WORKER + line, (f"2: {place}", words))


@pytest.mark.parametrize(
    ("worker", "place", "words"),
    [
        ("10.0.0.1:8000", "", URL),
        ("http://a:65536", "", URL),
        ("http://a:0", "", URL),
        ("http://a:1/v1", "", "requests bring their own path"),
        ("'http://a:1?x=1'", "", '"http://a:1?***" has a path or a query'),
        ("http://user:sekret@a:1", "", "no user name or password; use api_key"),
        ("5", "", "must be a URL"),
        ("~", "", "has no value"),
        ("{name: x}", ".url", "required key is missing"),
        ("{url: http://a:1, name: gpu 2}", ".name", "write 1 to 259 letters, digits"),
        ("{url: http://a:1, models: []}", ".models", "must not be empty"),
        ("{url: http://a:1, models: [a, '**']}", ".models[1]", "write it in full"),
        ("{url: http://a:1, kv_tokens: 0}", ".kv_tokens", "must be at least 1"),
        ("{url: http://a:1, kv_events: e:1}", ".kv_events", "is not a ZeroMQ address"),
        ("{url: http://a:1, kv_replay: 'tcp://e:1'}", ".kv_replay", 'no use without "kv_events"'),
        ("{url: http://a:1, api_key: sk-sekret}", ".api_key", "give ${NAME}"),
        ("{url: http://a:1, api_key: '${NO_KEY}'}", ".api_key", "NO_KEY is not set"),
        ("{url: http://a:1, api_key: file:/no/file}", ".api_key", "does not exist"),
        ("{url: http://a:1, api-key: sk-sekret}", ".api-key", 'did you mean "api_key"?'),
    ],
)
def test_a_wrong_worker_is_named_by_its_position(worker: str, place: str, words: str) -> None:
    """This holds for workers given as text and as mappings."""
    refuses(f"workers:\n  - {worker}\n", (f"2: workers[0]{place}", words))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listen: '[::1]:1'", ['f:1: no workers: give "workers" or "pools"']),
        ("workers: []", ["f:1: workers: must not be empty"]),
        ("workers: http://a:1", ["f:1: workers: must be a list"]),
        ("pools: []", ["f:1: pools: must not be empty"]),
        ("pools: [http://a:1]", ["f:1: pools[0]: must be a mapping"]),
        (
            "pools: [{nam: x, models: ['a*b'], workers: [http://a:1]}]",
            [
                "f:1: pools[0].name: required key is missing",
                'f:1: pools[0].nam: unknown key; did you mean "name"?',
                'f:1: pools[0].models[0]: "a*b" is not a model pattern: write an exact name,'
                " or how it begins with one * at the end",
            ],
        ),
    ],
)
def test_workers_or_pools_are_needed(text: str, expected: list[str]) -> None:
    """One of the two must be given, and must not be empty."""
    assert wrong(text) == expected


def test_a_lifetime_in_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container is given it there, by AWS's own variables."""
    monkeypatch.setenv("SES_TTL_MIN", "soon")
    (message,) = wrong(WORKER)
    assert "SES_TTL_MIN in the environment must be a whole number" in message


def test_a_problem_is_more_than_its_text() -> None:
    """A program can use line, column and suggestion."""
    with pytest.raises(SettingsError) as caught:
        loads(f"{WORKER}logs:\n  levl: info\n", "f")
    assert caught.value.problems == [
        Problem("f", 3, 3, "logs.levl", "unknown key", suggestion="level")
    ]


@pytest.mark.parametrize(
    "line",
    [
        "controller: {}",
        "controller: {{url: '{}'}}",
        "tiers: {{l2: {{lmcache: {{coordinator: '{}'}}}}}}",
        "tiers: {{l2: {{lmcache: {{redis: '{}'}}}}}}",
        "session: {{redis: {{url: '{}'}}}}",
        "pools: [{{name: p, workers: ['{}', {{url: '{}'}}]}}]",
        "pools: [{{name: p, workers: [{{url: http://b:1, kv_events: '{}', kv_replay: '{}'}}]}}]",
        "pools: [{{name: p, workers: [{{url: http://b:1, kv_events: '{0}'}},"
        " {{url: http://c:1, kv_events: '{0}'}}]}}]",
        "cors: ['{}']",
        "admin: {{listen: '{}'}}",
        "tokenizer: '{}'",
        "sagemaker: {{prefix: '{}'}}",
        "strategy: '{}'",
        "workers: [{{url: http://b:1, name: '{}'}}]",
        "logs: {{'{}': 1}}",
    ],
)
def test_no_message_shows_the_secret_in_a_url(line: str) -> None:
    """Wherever a URL is given, and however wrong it is, its user and its query are hidden."""
    for url in (
        "http://sekret:sekret@h:8090",
        "tcp://sekret:sekret@*:1",
        "redis://:sek?ret@h:1",
        "http://sekret:s@ret@h:1",
        "sekret:sekret@h:8090",
        "http://h:1?api_key=sekret",
        "http://h:1/#sekret",
        "h:1?api_key=sekret",
        "http://h:1?as=a@sekret",
    ):
        messages = "\n".join(wrong(line.replace("{}", "{0}").format(url)))
        assert not any(part in messages for part in ("sek", "ret"))


def test_a_traceback_does_not_hold_the_secret() -> None:
    """Pydantic's own error, which contains the values, is neither cause nor context of ours."""
    with pytest.raises(SettingsError) as caught:
        loads("workers: [{url: http://a:1, api_key: sk-sekret, key: sk-sekret}]")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "sekret" not in repr(caught.value.problems)
