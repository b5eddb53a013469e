"""Every mistake in a setting or a worker, and the exact message for it."""

import pytest

from router.settings.errors import Problem, SettingsError
from router.settings.loader import loads
from tests.settings.wrong import WORKER, wrong

DURATION = "is not a duration: write a whole number and a unit (ms, s, m, h, d), such as 30s"
URL = "is not a worker's URL: write http://host:port"
PATH = "has a path or a query: write only http://host:port, requests bring their own path"
NAME = "is not a name: write 1 to 259 letters, digits and . _ : - [ ]"
WHOLE = "is not the name of a model: write it in full, without *"
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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("listn: a:1", 'listn: unknown key; did you mean "listen"?'),
        ("zebra: 1", "zebra: unknown key"),
        ("5: 1", "5: unknown key"),
        (
            "timeouts: {first-byte: 1s}",
            'timeouts.first-byte: unknown key; did you mean "first_byte"?',
        ),
        (
            "listen: 8080",
            "listen: 8080 is not an address: write host:port,"
            ' such as 127.0.0.1:8080 or "[::1]:8080"',
        ),
        ("timeouts: 5s", "timeouts: must be a mapping"),
        ("timeouts: {connect: 5}", f"timeouts.connect: 5 {DURATION}"),
        ("timeouts: {connect: 0s}", "timeouts.connect: must be longer than 0s"),
        ("timeouts: {keepalive: 5s}", f"timeouts.keepalive: {KEEPALIVE}"),
        (
            "limits: {body: 16}",
            "limits.body: 16 is not a size: write a whole number and a unit"
            " (B, kB, MB, GB, KiB, MiB, GiB, TiB), such as 16MiB",
        ),
        ("limits: {queue: 1.5}", "limits.queue: must be a whole number"),
        ("limits: {in_flight: 0}", "limits.in_flight: must be at least 1"),
        ("limits: {retries: 120%}", f'limits.retries: "120%" {SHARE}'),
        ("timeouts: {total: never}", f'timeouts.total: "never" {DURATION}, or off'),
        ("timeouts: {total: }", "timeouts.total: has no value; give it one or remove it"),
        (
            "health: {ejection: {first: 10m}}",
            "health.ejection: first (10m) is longer than longest (5m)",
        ),
        ("limits: {attempts: 11}", "limits.attempts: must be at most 10"),
        (
            "logs: {level: warn}",
            'logs.level: must be debug, info, warning or error; did you mean "warning"?',
        ),
        ("logs: {requests: yes}", "logs.requests: must be true or false"),
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
        ("http://a:65536", f'workers[0]: "http://a:65536" {URL}'),
        ("http://a:1/v1", f'workers[0]: "http://a:1/v1" {PATH}'),
        ("'http://a:1?x=1'", f'workers[0]: "http://a:1?***" {PATH}'),
        (
            "http://user:sekret@a:1",
            "workers[0]: a worker's URL holds no user name or password; use api_key",
        ),
        ("5", 'workers[0]: must be a URL such as http://10.0.0.11:8000, or a mapping with "url"'),
        ("~", "workers[0]: has no value; give it one or remove it"),
        ("{name: x}", "workers[0].url: required key is missing"),
        ("{url: http://a:1, name: gpu 2}", f'workers[0].name: "gpu 2" {NAME}'),
        ("{url: http://a:1, models: []}", "workers[0].models: must not be empty"),
        ("{url: http://a:1, models: [a, '**']}", f'workers[0].models[1]: "**" {WHOLE}'),
        ("{url: http://a:1, kv_tokens: 0}", "workers[0].kv_tokens: must be at least 1"),
        ("{url: http://a:1, api_key: sk-sekret}", f"workers[0].api_key: {TWO_FORMS}"),
        (
            "{url: http://a:1, api_key: '${NO_SUCH_KEY}'}",
            "workers[0].api_key: environment variable NO_SUCH_KEY is not set",
        ),
        (
            "{url: http://a:1, api_key: file:/no/such/file}",
            'workers[0].api_key: file "/no/such/file" does not exist or is not a plain file',
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
