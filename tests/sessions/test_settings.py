"""Settings of sessions that contradict each other."""

from typing import Any

import pytest

from router.settings.model import Settings


def told(*workers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return settings with these workers."""
    listed = [{"url": f"http://w{n}:1", **worker} for n, worker in enumerate(workers)]
    return {"workers": listed, **more}


SPILLS = {"name": "session", "spill": "1s"}


STATEFUL = {"stateful": True}


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        (told(STATEFUL, {}, strategy="session"), "workers.1"),
        (told(STATEFUL, strategy=SPILLS), "strategy.spill"),
        (told({}, strategy=SPILLS, session={"on_worker_lost": "error"}), "strategy.spill"),
        (told({}, strategy={**SPILLS, "over": "roundrobin"}), "strategy.spill"),
        (told({}, strategy={**SPILLS, "over": {"name": "chbl"}}), "strategy.spill"),
        (
            {"strategy": SPILLS, "pools": [{"name": "p", "workers": told(STATEFUL)["workers"]}]},
            "strategy.spill",
        ),
        (told({}, strategy="session", session={"ttl": "10001d"}), "session.ttl"),
        (told({}, session={"header": "X-API-Key"}), "ids of sessions are listed and stored"),
        (told({}, session={"header": "authorization"}), "ids of sessions are listed and stored"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], where: str) -> None:
    """Mixed pools, spilling that cannot happen, and headers or lifetimes that are not allowed."""
    with pytest.raises(ValueError, match=where):
        Settings.model_validate(settings)


@pytest.mark.parametrize("text", ["1.5", "20m", "0", "-1", "\u00b2", "99999999", "9" * 5000])
def test_an_environment_that_says_no_lifetime(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """An invalid lifetime in the environment is an error, unless the settings give one."""
    monkeypatch.setenv("SES_TTL_MIN", text)
    with pytest.raises(ValueError, match="SES_TTL_MIN in the environment must be"):
        Settings.model_validate(told({}))
    assert Settings.model_validate(told({}, session={"ttl": "20m"})).session.lifetime == 1200
