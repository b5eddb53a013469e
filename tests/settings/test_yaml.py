"""YAML itself: line numbers, and what is refused because it is not plain data."""

import pytest

from router.settings.loader import loads
from tests.settings.wrong import WORKER, refuses, wrong

TAG = "a tag (!) is not allowed"
UNFITTING = "this does not fit the lines above; check indentation and quotes"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a: 'b", "2", "a quoted text is never closed"),
        ("timeouts: {connect: 2s\nlogs: {}", "2", "in brackets is not closed, or a comma"),
        ("a: [b", "2", "in brackets is not closed, or a comma"),
        ('a: "\\UFFFFFFFF"', "", "is not valid YAML"),
        ("timeouts:\n\tconnect: 2s", "3", "a tab cannot indent or start a value"),
        ("a: %b", "2", "put the value in quotes"),
        ("a: *b", "2", "refers to an anchor (&) that does not exist above"),
        ("---\na: 1", "2", "a second document starts here"),
        ("a: b: c", "2", 'a ":" is not expected here'),
        (" a: b", "2", UNFITTING),
        ("listen: [::1]:80", "2", UNFITTING),
        ("b\n", "2", 'a ":" is missing after this key'),
        ("a: \x01", "2", "the character U+0001 is not allowed"),
        ("logs: !x {}", "2: logs", TAG),
        ("logs: {level: !!python/name:os.system x}", "2: logs.level", TAG),
        ("logs: {level: !!binary aGk=}", "2: logs.level", TAG),
        ("logs: !!omap [a: 1]", "2: logs", TAG),
        ("logs: {requests: !!bool maybe}", "2: logs.requests", "cannot be read as a number"),
        ("? [a]\n: b", "2", "a key must be plain text"),
        ("!x a: b", "2", "a key must be plain text"),
        ('"\\ud800": b', "2", "a key must be plain text"),
        ('logs: {level: "\\ud800"}', "2: logs.level", "half a character (a lone surrogate)"),
        ("<<: 5", "2", "<< merges only mappings"),
        ("<<: [5]", "2", "<< merges only mappings"),
        ("logs: &a {level: *a}", "2", "an alias leads back to this"),
        ("logs: &a {<<: *a}", "2", "an alias leads back to this"),
        ("limits:\n  attempts: 2\n  attempts: 3", "4: limits.attempts", "the first is on line 3"),
    ],
)
def test_what_is_no_plain_yaml_is_told_plainly(text: str, place: str, words: str) -> None:
    """The message has the line, and does not quote the file, which may contain secrets."""
    (message,) = wrong(WORKER + text)
    assert message.startswith(f"f:{place}: " if place else "f: ")
    assert words in message


def test_an_old_or_future_version_is_refused() -> None:
    """A %YAML directive of version 2 is refused."""
    assert wrong(f"%YAML 2.0\n---\n{WORKER}") == ["f:1: only YAML 1.2 is read"]


def test_a_secret_that_is_given_twice_does_not_show() -> None:
    """YAML parsers tend to print both values."""
    text = "workers:\n- url: http://a:1\n  api_key: sk-sekret1\n  api_key: sk-sekret2\n"
    refuses(
        text,
        ("3: workers[0].api_key", "a secret is never written here"),
        ("4: workers[0].api_key", "duplicate key; the first is on line 3"),
    )


@pytest.mark.parametrize("text", ["", "\n# only\n", "---\n", "~"])
def test_a_file_with_nothing_in_it_is_told_to_be_empty(text: str) -> None:
    """A file with only comments is empty."""
    assert wrong(text) == ["f: is empty; it needs at least workers"]


@pytest.mark.parametrize("text", ["[a]", "a", "5", "!x {}"])
def test_a_file_is_a_mapping(text: str) -> None:
    """Anything but a mapping contains no settings."""
    assert "f:1: must be a mapping of settings, such as workers: [...]" in wrong(text)


def test_lines_are_right_in_lists_flow_mappings_and_aliases() -> None:
    """The line is that where the value is written, not where an alias uses it."""
    refuses(
        "# a comment\n"
        "workers:\n"
        "  - http://a:1\n"
        "\n"
        "  - {url: http://b:1,\n"
        "     kay: 1, models: [x,\n"
        "       'y*z']}\n"
        "  - &shared\n"
        "    url: http://c:1\n"
        "    kv_tokens:\n"
        "      many\n"
        "  - <<: *shared\n"
        "    url: http://d:1\n"
        "  - name: x\n"
        "strategy:\n"
        "  memory: 1MiB\n",
        ("6: workers[1].kay", "unknown key"),
        ("7: workers[1].models[1]", '"y*z" is not the name of a model'),
        ("10: workers[2].kv_tokens", "must be a whole number"),
        ("10: workers[3].kv_tokens", "must be a whole number"),
        ("14: workers[4].url", "required key is missing"),
        ("15: strategy.name", "required key is missing"),
    )


def test_aliases_and_merged_keys_are_read() -> None:
    """A value written in place wins over a merged one; of several merged ones, the first."""
    settings = loads(
        "workers:\n"
        "  - &a {url: http://a:1, kv_tokens: 5}\n"
        "  - &b {url: http://b:1, models: &m [x], kv_tokens: 7}\n"
        "  - {<<: [*a, *b], url: http://c:1}\n"
        "  - {url: http://d:1, models: *m}\n"
        "limits: &n {attempts: 0x2}\n"
        "health: &n {fall: 1_0}\n"
    )
    third = settings.workers[2]
    assert (third.url, third.kv_tokens, third.models) == ("http://c:1", 5, ("x",))
    assert settings.workers[3].models == ("x",)
    assert (settings.limits.attempts, settings.health.fall) == (2, 10)


def test_text_that_looks_like_something_else_stays_text() -> None:
    """In YAML 1.2 `yes` and dates are text; `!!str` forces text."""
    models = "[yes, 2001-01-01, =, !!str 5, '5']"
    settings = loads(f"workers: [{{url: http://a:1, models: {models}}}]")
    assert settings.workers[0].models == ("yes", "2001-01-01", "=", "5", "5")


@pytest.mark.parametrize("text", ["[" * 1000, "- " * 1000, "{a: " * 1000])
def test_deep_nesting_is_refused(text: str) -> None:
    """Deep nesting is refused before it can overflow the stack."""
    assert wrong(text) == ["f: is nested too deeply"]


@pytest.mark.parametrize(
    ("first", "level"), [("[x]", "[{aliases}]"), ("{}", "{{<<: [{aliases}]}}")]
)
def test_a_few_aliases_cannot_stand_for_billions(first: str, level: str) -> None:
    """Values are counted after aliases are expanded."""
    text = f"a0: &a0 {first}\n"
    for number in range(1, 12):
        aliases = ", ".join([f"*a{number - 1}"] * 10)
        text += f"a{number}: &a{number} {level.format(aliases=aliases)}\n"
    assert wrong(text) == ["f: holds more than 100000 values"]
