"""YAML itself: line numbers, and what is refused because it is not plain data."""

import pytest

from router.settings.errors import SettingsError
from router.settings.loader import loads

WORKER = "workers: [http://a:1]\n"
TAG = "a tag (!) is not allowed; only plain text, numbers, lists and mappings"


def wrong(text: str) -> list[str]:
    """Return the messages for a text, one a line."""
    with pytest.raises(SettingsError) as caught:
        loads(text, "f")
    return str(caught.value).split("\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 'b", "f:2: a quoted text is never closed"),
        (
            "timeouts: {connect: 2s\nlogs: {}",
            "f:2: a list or mapping in brackets is not closed, or a comma is missing",
        ),
        ('a: "\\UFFFFFFFF"', "f: is not valid YAML"),
        ("timeouts:\n\tconnect: 2s", "f:3: a tab cannot indent or start a value; use spaces"),
        ("a: %b", "f:2: this character cannot start a value; put the value in quotes"),
        ("a: *b", "f:2: an alias (*) refers to an anchor (&) that does not exist above"),
        ("---\na: 1", "f:2: a second document starts here (---); give only one"),
        (
            "a: b: c",
            'f:2: a ":" is not expected here; check the indentation, or put the value in quotes',
        ),
        (" a: b", "f:2: this does not fit the lines above; check indentation and quotes"),
        (
            "listen: [::1]:80",
            "f:2: this does not fit the lines above; check indentation and quotes",
        ),
        ("b\n", 'f:2: a ":" is missing after this key'),
        ("a: [b", "f:2: a list or mapping in brackets is not closed, or a comma is missing"),
        ("a: \x01", "f:2: the character U+0001 is not allowed"),
        ("logs: !x {}", f"f:2: logs: {TAG}"),
        ("logs: {level: !!python/name:os.system x}", f"f:2: logs.level: {TAG}"),
        ("logs: {level: !!binary aGk=}", f"f:2: logs.level: {TAG}"),
        ("logs: !!omap [a: 1]", f"f:2: logs: {TAG}"),
        (
            "logs: {requests: !!bool maybe}",
            "f:2: logs.requests: cannot be read as a number or as true or false",
        ),
        ("? [a]\n: b", "f:2: a key must be plain text"),
        ("!x a: b", "f:2: a key must be plain text"),
        ('"\\ud800": b', "f:2: a key must be plain text"),
        (
            'logs: {level: "\\ud800"}',
            "f:2: logs.level: holds half a character (a lone surrogate)",
        ),
        ("<<: 5", "f:2: << merges only mappings"),
        ("<<: [5]", "f:2: << merges only mappings"),
        ("logs: &a {level: *a}", "f:2: an alias leads back to this, which contains it"),
        ("logs: &a {<<: *a}", "f:2: an alias leads back to this, which contains it"),
        (
            "limits:\n  attempts: 2\n  attempts: 3",
            "f:4: limits.attempts: duplicate key; the first is on line 3",
        ),
    ],
)
def test_what_is_no_plain_yaml_is_said_plainly(text: str, said: str) -> None:
    """The message has the line, and does not quote the file, which may contain secrets."""
    assert wrong(WORKER + text) == [said]


def test_an_old_or_future_version_is_refused() -> None:
    """A %YAML directive of version 2 is refused."""
    assert wrong(f"%YAML 2.0\n---\n{WORKER}") == ["f:1: only YAML 1.2 is read"]


def test_a_secret_that_is_given_twice_does_not_show() -> None:
    """YAML parsers tend to print both values."""
    text = "workers:\n- url: http://a:1\n  api_key: sk-sekret1\n  api_key: sk-sekret2\n"
    said = wrong(text)
    assert said[1] == "f:4: workers[0].api_key: duplicate key; the first is on line 3"
    assert "sekret" not in "".join(said)


@pytest.mark.parametrize("text", ["", "\n# only\n", "---\n", "~"])
def test_a_file_with_nothing_in_it_is_said_to_be_empty(text: str) -> None:
    """A file with only comments is empty."""
    assert wrong(text)[0].endswith("is empty; it needs at least workers")


@pytest.mark.parametrize("text", ["[a]", "a", "5", "!x {}"])
def test_a_file_is_a_mapping(text: str) -> None:
    """Anything but a mapping contains no settings."""
    assert "f:1: must be a mapping of settings, such as workers: [...]" in wrong(text)


def test_lines_are_right_in_lists_and_flow_mappings() -> None:
    """Lines are right for each item, and for each key of a mapping that spans lines."""
    assert wrong(
        "# a comment\n"
        "workers:\n"
        "  - http://a:1\n"
        "\n"
        "  - {url: http://b:1,\n"
        "     kay: 1, models: [x,\n"
        "       'y*z']}\n"
        "  -\n"
        "    url: http://c:1\n"
        "    kv_tokens:\n"
        "      many\n"
    ) == [
        "f:6: workers[1].kay: unknown key",
        'f:7: workers[1].models[1]: "y*z" is not the name of a model: write it in full, without *',
        "f:10: workers[2].kv_tokens: must be a whole number",
    ]


def test_lines_are_right_where_an_anchor_is_used() -> None:
    """The line is that where the value is written, not where the alias uses it."""
    assert wrong(
        "pools:\n"
        "  - name: p\n"
        "    models: [x]\n"
        "    workers:\n"
        "      - &one\n"
        "        url: http://a:1\n"
        "        kv_tokens: 0\n"
        "      - <<: *one\n"
        "        url: http://b:1\n"
        "        kay: 1\n"
    ) == [
        "f:7: pools[0].workers[0].kv_tokens: must be at least 1",
        "f:7: pools[0].workers[1].kv_tokens: must be at least 1",
        "f:10: pools[0].workers[1].kay: unknown key",
    ]


def test_a_missing_key_is_where_its_mapping_is() -> None:
    """The line is that of the list item, or of the key that has the mapping."""
    assert wrong("workers:\n  - http://a:1\n  - name: x\nstrategy:\n  memory: 1MiB\n") == [
        "f:3: workers[1].url: required key is missing",
        "f:4: strategy.name: required key is missing",
    ]


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


@pytest.mark.parametrize("text", ["[" * 1500, "- " * 1500, "{a: " * 1500])
def test_deep_nesting_is_refused(text: str) -> None:
    """Deep nesting is refused before it can overflow the stack."""
    assert wrong(text) == ["f: is nested too deeply"]


def test_a_few_aliases_cannot_stand_for_billions() -> None:
    """Values are counted after aliases are expanded."""
    text = "a0: &a0 [x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
    )
    assert wrong(text) == ["f: holds more than 100000 values"]
    text = "a0: &a0 {}\n" + "".join(
        f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
    )
    assert wrong(text) == ["f: holds more than 100000 values"]
