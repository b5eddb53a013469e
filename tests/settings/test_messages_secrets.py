"""Messages about a settings file show no secret."""

import pytest

from router.settings.errors import SettingsError
from router.settings.loader import loads
from tests.settings.wrong import wrong


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


def test_a_traceback_does_not_hold_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pydantic's own error, which contains the values, is neither cause nor context of ours."""
    with pytest.raises(SettingsError) as caught:
        loads("workers: [{url: http://a:1, api_key: sk-sekret, key: sk-sekret}]")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "sekret" not in repr(caught.value.problems)
