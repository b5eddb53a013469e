"""Every mistake in a settings file, and the exact message for it."""

from pathlib import Path

import pytest

from router.settings_file import Problem, SettingsError, load, loads

WORKER = "workers: [http://a:1]\n"
DURATION = "is not a duration: write a whole number and a unit (ms, s, m, h, d), such as 30s"
URL = "is not a worker's URL: write http://host:port"
PATH = "has a path or a query: write only http://host:port, requests bring their own path"
NAME = "is not a name: write 1 to 259 letters, digits and . _ : - [ ]"
WHOLE = "is not the name of a model: write it in full, without *"
ONE_POOL = "; a worker stands in one pool, and a pool may have several models"
PATTERN = "is not a model pattern: write an exact name, or how it begins with one * at the end"
SHARE = "is not a share: write a number from 0 to 1, such as 0.2, or 20%"
TWO_FORMS = (
    "a secret is never written here: give ${NAME} for an environment variable,"
    " or file:/path for a file that holds it"
)
KEEPALIVE = (
    "must be shorter than 5s: vLLM closes idle connections after 5s,"
    " and a request sent at that moment is lost"
)


def wrong(text: str) -> list[str]:
    """Return the messages for a text, one a line."""
    with pytest.raises(SettingsError) as caught:
        loads(text, "f")
    assert str(caught.value).split("\n") == [str(one) for one in caught.value.problems]
    return str(caught.value).split("\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("listn: a:1", 'listn: unknown key; did you mean "listen"?'),
        ("LISTEN: a:1", 'LISTEN: unknown key; did you mean "listen"?'),
        ("zebra: 1", "zebra: unknown key"),
        ('"a\\nb": 1', '"a\\nb": unknown key'),
        ("5: 1", "5: unknown key"),
        (
            "timeouts: {first-byte: 1s}",
            'timeouts.first-byte: unknown key; did you mean "first_byte"?',
        ),
        ("limits: {zebras: 2}", "limits.zebras: unknown key"),
        ("limits: {inflight: 2}", 'limits.inflight: unknown key; did you mean "in_flight"?'),
        (
            "health: {ejection: {fails: 1}}",
            'health.ejection.fails: unknown key; did you mean "failures"?',
        ),
        ("health: {intervall: 1s}", 'health.intervall: unknown key; did you mean "interval"?'),
        ("logs: {Level: info}", 'logs.Level: unknown key; did you mean "level"?'),
        (
            "listen: 8080",
            "listen: 8080 is not an address: write host:port,"
            ' such as 127.0.0.1:8080 or "[::1]:8080"',
        ),
        ("timeouts: 5s", "timeouts: must be a mapping"),
        ("timeouts: [5s]", "timeouts: must be a mapping"),
        ("timeouts: {connect: 5}", f"timeouts.connect: 5 {DURATION}"),
        ("timeouts: {connect: 0s}", "timeouts.connect: must be longer than 0s"),
        ("timeouts: {first_byte: soon}", f'timeouts.first_byte: "soon" {DURATION}'),
        ("timeouts: {idle: {s: 1}}", f"timeouts.idle: a mapping {DURATION}"),
        ("timeouts: {keepalive: 5s}", f"timeouts.keepalive: {KEEPALIVE}"),
        ("timeouts: {keepalive: 1m}", f"timeouts.keepalive: {KEEPALIVE}"),
        ("limits: {body: 0B}", "limits.body: must be more than 0B"),
        (
            "limits: {body: 16}",
            "limits.body: 16 is not a size: write a whole number and a unit"
            " (B, kB, MB, GB, KiB, MiB, GiB, TiB), such as 16MiB",
        ),
        ("limits: {headers: 0B}", "limits.headers: must be more than 0B"),
        ("limits: {images: -1}", "limits.images: must be at least 0"),
        ("limits: {queue: 1.5}", "limits.queue: must be a whole number"),
        ("limits: {in_flight: 0}", "limits.in_flight: must be at least 1"),
        ("limits: {max_tokens: 0}", "limits.max_tokens: must be at least 1"),
        ("limits: {max_tokens: none}", "limits.max_tokens: must be a whole number"),
        ("limits: {retries: 20}", f"limits.retries: 20 {SHARE}"),
        ("limits: {retries: 120%}", f'limits.retries: "120%" {SHARE}'),
        ("clients: {header: 0s}", "clients.header: must be longer than 0s"),
        ("clients: {connections: 0}", "clients.connections: must be at least 1"),
        ("timeouts: {total: never}", f'timeouts.total: "never" {DURATION}, or off'),
        ("timeouts: {comment: 0s}", "timeouts.comment: must be longer than 0s, or off"),
        ("timeouts: {total: }", "timeouts.total: has no value; give it one or remove it"),
        ("timeouts: {queue: off}", f'timeouts.queue: "off" {DURATION}'),
        ("shutdown: {drain: forever}", f'shutdown.drain: "forever" {DURATION}'),
        ("health: {ejection: 5}", "health.ejection: must be a mapping"),
        ("health: {ejection: {panic: half}}", f'health.ejection.panic: "half" {SHARE}'),
        (
            "health: {ejection: {first: 10m}}",
            "health.ejection: first (10m) is longer than longest (5m)",
        ),
        (
            "health: {ejection: {longest: 2s}}",
            "health.ejection: first (5s) is longer than longest (2s)",
        ),
        ("limits: {attempts: 0}", "limits.attempts: must be at least 1"),
        ("limits: {attempts: 11}", "limits.attempts: must be at most 10"),
        ("limits: {attempts: 2.0}", "limits.attempts: must be a whole number"),
        ("limits: {attempts: '2'}", "limits.attempts: must be a whole number"),
        ("limits: {attempts: true}", "limits.attempts: must be a whole number"),
        ("health: {interval: 0ms}", "health.interval: must be longer than 0s"),
        ("health: {timeout: 1}", f"health.timeout: 1 {DURATION}"),
        ("health: {fall: 0}", "health.fall: must be at least 1"),
        ("health: {rise: x}", "health.rise: must be a whole number"),
        (
            "logs: {level: warn}",
            'logs.level: must be debug, info, warning or error; did you mean "warning"?',
        ),
        ("logs: {level: [info]}", "logs.level: must be debug, info, warning or error"),
        ("logs: {format: JSON}", 'logs.format: must be plain or json; did you mean "json"?'),
        ("logs: {requests: yes}", "logs.requests: must be true or false"),
        ("logs: {requests: 1}", "logs.requests: must be true or false"),
        ("logs:", "logs: has no value; give it one or remove it"),
        ("logs: {level: ~}", "logs.level: has no value; give it one or remove it"),
        (
            "pools: [{name: p, workers: [http://b:1]}]",
            'pools: cannot stand beside "workers": give one of the two',
        ),
    ],
)
def test_a_wrong_setting_gets_one_sentence(line: str, said: str) -> None:
    """The message says what is allowed."""
    assert wrong(WORKER + line) == [f"f:2: {said}"]


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        ("10.0.0.1:8000", f'workers[0]: "10.0.0.1:8000" {URL}'),
        ("ftp://a:1", f'workers[0]: "ftp://a:1" {URL}'),
        ("http://", f'workers[0]: "http://" {URL}'),
        ("http://a:0", f'workers[0]: "http://a:0" {URL}'),
        ("http://a:65536", f'workers[0]: "http://a:65536" {URL}'),
        ("http://a:x", f'workers[0]: "http://a:x" {URL}'),
        ("'http://[::g]:1'", f'workers[0]: "http://[::g]:1" {URL}'),
        ("http://a b", f'workers[0]: "http://a b" {URL}'),
        ("''", f'workers[0]: "" {URL}'),
        ("http://a:1/v1", f'workers[0]: "http://a:1/v1" {PATH}'),
        ("http://a:1//", f'workers[0]: "http://a:1//" {PATH}'),
        ("'http://a:1?x=1'", f'workers[0]: "http://a:1?***" {PATH}'),
        ("'http://a:1/#x'", f'workers[0]: "http://a:1/#***" {PATH}'),
        (
            "http://user:sekret@a:1",
            "workers[0]: a worker's URL holds no user name or password; use api_key",
        ),
        ("5", 'workers[0]: must be a URL such as http://10.0.0.11:8000, or a mapping with "url"'),
        ("[]", 'workers[0]: must be a URL such as http://10.0.0.11:8000, or a mapping with "url"'),
        ("~", "workers[0]: has no value; give it one or remove it"),
        ("{name: x}", "workers[0].url: required key is missing"),
        ("{url: 5}", f"workers[0].url: 5 {URL}"),
        ("{url: http://a:1/x}", f'workers[0].url: "http://a:1/x" {PATH}'),
        ("{url: http://a:1, name: gpu 2}", f'workers[0].name: "gpu 2" {NAME}'),
        ("{url: http://a:1, name: ''}", f'workers[0].name: "" {NAME}'),
        ("{url: http://a:1, name: 5}", f"workers[0].name: 5 {NAME}"),
        (f"http://{'a' * 300}:1", f'workers[0]: "{"a" * 60}…" {NAME}'),
        ("{url: http://a:1, models: x}", "workers[0].models: must be a list"),
        ("{url: http://a:1, models: []}", "workers[0].models: must not be empty"),
        ("{url: http://a:1, models: ['a*b']}", f'workers[0].models[0]: "a*b" {WHOLE}'),
        ("{url: http://a:1, models: [a, '**']}", f'workers[0].models[1]: "**" {WHOLE}'),
        ("{url: http://a:1, models: ['']}", f'workers[0].models[0]: "" {WHOLE}'),
        ("{url: http://a:1, models: [7]}", f"workers[0].models[0]: 7 {WHOLE}"),
        ('{url: http://a:1, models: ["a\\u0007"]}', f'workers[0].models[0]: "a\\u0007" {WHOLE}'),
        ("{url: http://a:1, kv_tokens: 0}", "workers[0].kv_tokens: must be at least 1"),
        ("{url: http://a:1, kv_tokens: 4k}", "workers[0].kv_tokens: must be a whole number"),
        ("{url: http://a:1, api_key: sk-sekret}", f"workers[0].api_key: {TWO_FORMS}"),
        ("{url: http://a:1, api_key: 12345}", f"workers[0].api_key: {TWO_FORMS}"),
        ("{url: http://a:1, api_key: [sk-sekret]}", f"workers[0].api_key: {TWO_FORMS}"),
        (
            "{url: http://a:1, api_key: '${NO_SUCH_KEY}'}",
            "workers[0].api_key: environment variable NO_SUCH_KEY is not set",
        ),
        (
            "{url: http://a:1, api_key: file:/no/such/file}",
            'workers[0].api_key: file "/no/such/file" does not exist or is not a plain file',
        ),
        (
            "{url: http://a:1, api_key: }",
            "workers[0].api_key: has no value; give it one or remove it",
        ),
        (
            "{url: http://a:1, api-key: sk-sekret}",
            'workers[0].api-key: unknown key; did you mean "api_key"?',
        ),
    ],
)
def test_a_wrong_worker_gets_one_sentence(worker: str, said: str) -> None:
    """This holds for workers given as text and as mappings; no message shows a secret."""
    assert wrong(f"workers:\n  - {worker}\n") == [f"f:2: {said}"]
    assert "sekret" not in said


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
        "listen: '{}'",
        "admin: {{listen: '{}'}}",
        "tokenizer: '{}'",
        "sagemaker: {{prefix: '{}'}}",
        "strategy: '{}'",
        "workers: [{{url: http://b:1, name: '{}'}}]",
        "logs: {{'{}': 1}}",
    ],
)
@pytest.mark.parametrize(
    "url",
    [
        "http://sekret:sekret@h:8090",
        "tcp://sekret:sekret@h:1",
        "tcp://sekret:sekret@*:1",
        "redis://:sek?ret@h:1",
        "http://sekret:s@ret@h:1",
        "sekret:sekret@h:8090",
        "http://h:1?api_key=sekret",
        "http://h:1/#sekret",
        "h:1?api_key=sekret",
        "redis://h:1?password=sekret",
        "http://h:1?as=a@sekret",
    ],
)
def test_no_message_shows_the_secret_in_a_url(line: str, url: str) -> None:
    """Wherever a URL is given, and however wrong it is, its user and its query are hidden."""
    said = "\n".join(wrong(line.replace("{}", "{0}").format(url)))
    assert said
    assert not any(part in said for part in ("sek", "ret"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "controller: http://user:sekret@h:8090",
            "controller: a controller's URL holds no user name or password; use key",
        ),
        (
            "controller: http://h:1/x",
            'controller: "http://h:1/x" is not a controller\'s URL: write http://host:port',
        ),
        (
            "tiers: {l2: {lmcache: {coordinator: 'http://user:sekret@h'}}}",
            "tiers.l2.lmcache.coordinator: a coordinator's URL holds no user name or password",
        ),
        (
            "tiers: {l2: {lmcache: {coordinator: 'http://h?key=sekret'}}}",
            'tiers.l2.lmcache.coordinator: "http://h?***" is not a coordinator\'s URL:'
            " write http://host:port",
        ),
        (
            "cors: ['https://user:sekret@app.example']",
            'cors[0]: "https://***@app.example" is not an origin: write it as browsers do, such as'
            ' https://app.example or http://localhost:3000, without a path; or "*" for all',
        ),
    ],
)
def test_a_wrong_url_of_others_gets_one_sentence(line: str, said: str) -> None:
    """It names the service that the URL is for, and no secret."""
    assert wrong(WORKER + line) == [f"f:2: {said}"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listen: '[::1]:1'", ['f:1: no workers: give "workers" or "pools"']),
        ("workers: []", ["f:1: workers: must not be empty"]),
        ("pools: []", ["f:1: pools: must not be empty"]),
        ("workers: http://a:1", ["f:1: workers: must be a list"]),
        ("workers:", ["f:1: workers: has no value; give it one or remove it"]),
        ("pools: [http://a:1]", ["f:1: pools[0]: must be a mapping"]),
        (
            "pools: [{nam: x}]",
            [
                "f:1: pools[0].name: required key is missing",
                "f:1: pools[0].workers: required key is missing",
                'f:1: pools[0].nam: unknown key; did you mean "name"?',
            ],
        ),
    ],
)
def test_workers_or_pools_are_needed(text: str, said: list[str]) -> None:
    """One of the two must be given, and must not be empty."""
    assert wrong(text) == said


def test_workers_are_told_apart() -> None:
    """Names are unique in the file, addresses in a pool; one message if both are repeated."""
    assert wrong(
        "workers:\n"
        "- {url: http://a:80, name: x}\n"
        "- {url: http://b:1, name: x}\n"
        "- http://A\n"
        "- http://b:1/\n"
        "- http://c:1\n"
        "- http://c:1/\n"
    ) == [
        'f:3: workers[1].name: "x" is already the name of workers[0]',
        "f:4: workers[2]: the same address as workers[0]: a:80",
        "f:5: workers[3]: the same address as workers[1]: b:1",
        "f:7: workers[5]: the same address as workers[4]: c:1",
    ]


def test_an_engine_speaks_for_one_worker() -> None:
    """Two workers cannot share an engine's address, but engines may dial in at one of ours."""
    assert wrong(
        "strategy: kvaware\n"
        "workers:\n"
        "- {url: http://a:1, kv_events: 'tcp://e:1', kv_replay: 'tcp://e:2'}\n"
        "- {url: http://b:1, kv_events: 'tcp://E:1', kv_replay: 'tcp://f:2'}\n"
        "- {url: http://c:1, kv_events: 'tcp://g:1', kv_replay: 'tcp://e:2'}\n"
        "- {url: http://d:1, kv_events: 'tcp://*:1'}\n"
        "- {url: http://e:1, kv_events: 'tcp://*:1'}\n"
    ) == [
        "f:4: workers[1].kv_events: the same address as that of workers[0]: tcp://E:1",
        "f:5: workers[2].kv_replay: the same address as that of workers[0]: tcp://e:2",
    ]


def test_addresses_of_engines_that_could_not_be_used() -> None:
    """ZeroMQ takes a port that is too large for another one, and a wildcard cannot be asked."""
    assert wrong(
        "strategy: kvaware\n"
        "workers:\n"
        "- {url: http://a:1, kv_events: 'tcp://e:65536'}\n"
        "- {url: http://b:1, kv_events: 'tcp://*:0'}\n"
        "- {url: http://c:1, kv_events: 'tcp://*:65535', kv_replay: 'tcp://*:1'}\n"
        "- {url: http://d:1, kv_events: 'ipc:///run/e:99999'}\n"
    ) == [
        'f:3: workers[0].kv_events: "tcp://e:65536": the port must be 1 to 65535',
        'f:4: workers[1].kv_events: "tcp://*:0": the port must be 1 to 65535',
        "f:5: workers[2].kv_replay: tcp://*:1: the router asks there: write the engine's host",
    ]


def test_pools_are_told_apart() -> None:
    """Names and models are unique, and a worker in two pools is refused: each saw half its load."""
    assert wrong(
        "pools:\n"
        "- {name: p, models: [x, 'y*'], workers: [http://a:1]}\n"
        "- {name: p, models: ['y*'], workers: [http://a:1]}\n"
        "- {name: q, workers: [{url: http://a:1, name: a2}]}\n"
        "- {name: r, models: ['*'], workers: [{url: http://b:1, name: a2}]}\n"
    ) == [
        'f:3: pools[1].name: "p" is already the name of pools[0]',
        'f:3: pools[1].models[0]: "y*" is already routed to pools[0]',
        f"f:3: pools[1].workers[0]: the same address as pools[0].workers[0]: a:1{ONE_POOL}",
        f"f:4: pools[2].workers[0].url: the same address as pools[0].workers[0]: a:1{ONE_POOL}",
        'f:5: pools[3].models[0]: "*" is already routed to pools[2]',
        'f:5: pools[3].workers[0].name: "a2" is already the name of pools[2].workers[0]',
    ]


def test_endpoints_are_told_apart() -> None:
    """A name that is given twice could stand for two models."""
    assert wrong(
        "workers: [http://a:1]\n"
        "sagemaker:\n"
        "  endpoints:\n"
        "  - {name: e, model: m1}\n"
        "  - {name: e, model: m2}\n"
        "  - f\n"
        "  - f\n"
    ) == [
        'f:5: sagemaker.endpoints[1].name: "e" is already the name of sagemaker.endpoints[0]',
        'f:7: sagemaker.endpoints[3]: "f" is already the name of sagemaker.endpoints[2]',
    ]


def test_everything_wrong_is_said_at_once() -> None:
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
        "logs:\n"
    ) == [
        "f:1: listen: 8080 is not an address: write host:port,"
        ' such as 127.0.0.1:8080 or "[::1]:8080"',
        'f:2: stratgy: unknown key; did you mean "strategy"?',
        "f:5: workers[1].url: the same address as workers[0]: a:1",
        'f:6: workers[1].api_kay: unknown key; did you mean "api_key"?',
        f'f:7: workers[2]: "nonsense" {URL}',
        f"f:9: timeouts.connect: 2 {DURATION}",
        "f:10: timeouts.connect: duplicate key; the first is on line 9",
        "f:11: logs: has no value; give it one or remove it",
    ]


def test_a_problem_is_more_than_its_text() -> None:
    """A program can use line, column and suggestion."""
    with pytest.raises(SettingsError) as caught:
        loads(f"{WORKER}logs:\n  levl: info\n", "f")
    assert caught.value.problems == [
        Problem("f", 3, 3, "logs.levl", "unknown key", suggestion="level")
    ]


def test_a_traceback_does_not_hold_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pydantic's own error, which contains the values, is neither cause nor context of ours."""
    with pytest.raises(SettingsError) as caught:
        loads("workers: [{url: http://a:1, api_key: sk-sekret, key: sk-sekret}]")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "sekret" not in repr(caught.value.problems)


def test_a_file_that_cannot_be_read_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing, a folder, too large, not UTF-8, empty, not a path, or not permitted."""
    (tmp_path / "large").write_bytes(b"#" * ((1 << 20) + 1))
    (tmp_path / "latin").write_bytes(b"# a\n# \xe9\n")
    (tmp_path / "empty").write_text("# only\n")
    for name, said in [
        ("missing", ": no such file"),
        (".", ": is a directory; name the file in it"),
        ("large", ": is larger than 1MiB"),
        ("latin", ":2: is not UTF-8"),
        ("empty", ": is empty; it needs at least workers"),
        ("a\0b", ": cannot be read: embedded null byte"),
    ]:
        with pytest.raises(SettingsError) as caught:
            load(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name}{said}"

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SettingsError, match=r"^some: cannot be read: Permission denied$"):
        load("some")


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbf" + WORKER.encode())
    assert load(str(tmp_path / "bom")).workers[0].url == "http://a:1"
