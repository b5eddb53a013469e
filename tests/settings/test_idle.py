"""Settings that are valid and have no effect: each is told of, with what is missing."""

from pathlib import Path

import pytest

from router.reload import idle
from router.settings.loader import load, loads

CONFIG = Path(__file__).parents[2] / "config"
CONTROLLER = "controller: http://c:1"
SESSION = "session: {sliding: true}"
EVENTS = "workers: [{url: http://a:1, kv_events: tcp://a:5557}]"
STORE = "tiers: {l2: {lmcache: {coordinator: http://c:1}}}"
STATEFUL = "workers: [{url: http://a:1, stateful: true}]"
WORKERS = "workers: [http://a:1]"
ASKED = "no pool has a strategy that asks it, as kvaware does"
#: Strategies that do not use the settings, those that do, and the beginning of the warning.
CASES = [
    (CONTROLLER, ["prefixaware", "session"], ["kvaware"], f"controller: {ASKED}"),
    (STORE, ["prefixaware", "session"], ["kvaware"], f"tiers.l2.lmcache.coordinator: {ASKED}"),
    (EVENTS, ["prefixaware", "session"], ["kvaware"], "pool default: `kv_events` is heard by"),
    (SESSION, ["prefixaware", "kvaware"], ["session"], "session: no pool has a strategy"),
    (STATEFUL, ["prefixaware", "kvaware"], ["session"], "pool default: `stateful` opens no"),
]


def told(strategy: str, *lines: str) -> list[str]:
    """Return the warnings of settings with these lines."""
    return list(idle(loads("\n".join((f"strategy: {strategy}", *lines)))))


@pytest.mark.parametrize(("line", "without", "by", "said"), CASES)
def test_a_setting_that_no_strategy_uses(
    line: str, without: list[str], by: list[str], said: str
) -> None:
    """One warning, unless a pool has a strategy for it."""
    lines = [line] if line.startswith("workers") else [line, WORKERS]
    for strategy in without:
        (words,) = told(strategy, *lines)
        assert words.startswith(said)
    for strategy in by:
        assert told(strategy, *lines) == []


@pytest.mark.parametrize("line", [CONTROLLER, STORE, EVENTS])
def test_the_strategy_below_sessions_counts(line: str) -> None:
    """Sessions over kvaware ask what workers hold."""
    lines = [line] if line.startswith("workers") else [line, WORKERS]
    assert told("{name: session, over: kvaware}", *lines) == []


@pytest.mark.parametrize("line", [CONTROLLER, STORE, SESSION])
def test_one_pool_that_uses_it_is_enough(line: str) -> None:
    """The others need not."""
    pools = "pools: [{{name: a, models: [a], workers: [http://a:1]}}, {{name: b, workers:"
    pools += " [http://b:1], strategy: {}}}]"
    strategy = "session" if line == SESSION else "kvaware"
    assert told("prefixaware", pools.format(strategy), line) == []
    assert len(told("prefixaware", pools.format("roundrobin"), line)) == 1


def test_workers_are_told_of_by_pool() -> None:
    """Each pool has a strategy of its own."""
    heard = "workers: [{url: http://a:1, kv_events: tcp://a:1}], strategy: kvaware"
    unheard = "workers: [{url: http://b:1, kv_events: tcp://b:1}, http://c:1]"
    pools = f"pools: [{{name: a, models: [a], {heard}}}, {{name: b, {unheard}}}]"
    (words,) = told("roundrobin", pools)
    assert words.startswith("pool b: `kv_events`")
    assert "roundrobin" in words


@pytest.mark.parametrize(
    "line",
    [
        "session: {}",
        "session: {redis: {url: redis://r:1}}",
        "tiers: {l2: {enabled: false, lmcache: {coordinator: http://c:1}}}",
    ],
)
def test_what_is_not_asked_for_is_not_told_of(line: str) -> None:
    """Such as an empty section, or a store that is off."""
    assert told("prefixaware", line, WORKERS) == []


@pytest.mark.parametrize("path", sorted(CONFIG.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_hold_nothing_idle(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they set is used."""
    for name in ("WARMROUTE_KEY", "WARMROUTE_ADMIN_KEY", "VLLM_API_KEY", "REDIS_PASSWORD"):
        monkeypatch.setenv(name, "sk-0123456789abcdef")
    assert list(idle(load(path))) == []
