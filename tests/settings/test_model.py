"""What loaded settings contain, and how they are listed."""

import pytest
from pydantic import ValidationError

from router.settings.loader import loads
from router.settings.model import PoolSettings, Settings, WorkerSettings
from router.settings.schema import describe
from router.settings.types import format_duration
from tests.settings.wrong import WORKER

POOLS = """
strategy: leastload
tokenizer: org/top
pools:
  - name: llama
    models: ["meta-llama/*", exact-name]
    strategy: roundrobin
    tokenizer: bytes
    workers: [http://a:1]
  - name: rest
    workers: [{url: "https://[::1]", name: six}]
"""


def listed(text: str) -> dict[str, tuple[str, str]]:
    """Return the value and the source of every setting."""
    rows = describe(loads(text))
    found = {row.path: (row.value, row.source) for row in rows}
    assert len(found) == len(rows)
    return found


def test_top_level_workers_are_the_default_pool() -> None:
    """It serves every model, with the strategy and the tokenizer given at the top."""
    settings = loads("strategy: roundrobin\nworkers: [http://a:1/]")
    (pool,) = settings.all_pools()
    assert (pool.name, pool.models) == ("default", ("*",))
    assert (pool.strategy, pool.tokenizer) == (settings.strategy, settings.tokenizer)
    assert pool.workers == settings.workers == (WorkerSettings(url="http://a:1"),)


def test_pools_inherit_the_strategy_and_the_tokenizer() -> None:
    """A pool that names none has the one given at the top, and lists it as a default."""
    pools = loads(POOLS).all_pools()
    assert [pool.strategy.name for pool in pools] == ["roundrobin", "leastload"]
    assert [pool.tokenizer.source for pool in pools if pool.tokenizer] == ["bytes", "org/top"]
    assert [pool.models for pool in pools] == [("meta-llama/*", "exact-name"), ("*",)]
    assert [worker.name for pool in pools for worker in pool.workers] == ["a:1", "six"]
    rows = listed(POOLS)
    assert rows["pools[0].strategy"] == ("roundrobin", "set")
    assert rows["pools[1].strategy"] == ("leastload", "default")
    assert rows["pools[1].tokenizer.source"] == ("org/top", "default")
    assert rows["pools[0].models"] == ("meta-llama/*, exact-name", "set")
    assert rows["pools[1].workers[0].url"] == ("https://[::1]", "set")


def test_settings_never_change() -> None:
    """Consumers are handed the models themselves; a reload makes new ones."""
    settings = loads(WORKER)
    with pytest.raises(ValidationError, match="frozen"):
        settings.limits.attempts = 5  # type: ignore[misc]


def test_settings_can_be_made_in_code() -> None:
    """They can be made of models as well as of plain data, with the same checks."""
    worker = WorkerSettings(url="http://a:1", name="x")
    pool = PoolSettings(name="p", workers=(worker,), models=("m",))
    assert Settings(pools=(pool,)).all_pools()[0].workers == (worker,)
    assert Settings.model_validate(Settings(workers=(worker,))).workers == (worker,)
    with pytest.raises(ValidationError, match=r"is already the name of workers\[0\]"):
        Settings(workers=(worker, WorkerSettings(url="http://b:1", name="x")))


@pytest.mark.parametrize("url", ["redis://store", "rediss://[::1]:65535/2"])
def test_a_url_of_redis_stays_as_it_is_written(url: str) -> None:
    """Whatever its port and database."""
    redis = loads(f"{WORKER}session: {{redis: {{url: '{url}'}}}}").session.redis
    assert redis is not None
    assert redis.url == url


def test_the_listing_tells_every_value_and_where_it_is_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values are listed as the file would state them, secrets as asterisks."""
    monkeypatch.setenv("SOME_KEY", "sk-sekret")
    rows = listed(
        "workers: [{url: http://a:1, api_key: '${SOME_KEY}'}, http://b:1]\ntimeouts: {idle: 90s}\n"
    )
    expected = {
        "listen": ("127.0.0.1:8080", "default"),
        "strategy.memory": ("64MiB", "default"),
        "workers[0].url": ("http://a:1", "set"),
        "workers[0].api_key": ("***", "set"),
        "workers[1].models": ("as the worker reports", "default"),
        "workers[1].api_key": ("none", "default"),
        "session.longest": ("off", "default"),
        "session.ttl": ("20m", "default"),
        "auth": ("everyone on this machine", "default"),
        "timeouts.idle": ("90s", "set"),
        "timeouts.total": ("1h", "default"),
        "limits.retries": ("0.2", "default"),
        "logs.requests": ("false", "default"),
    }
    assert {path: rows[path] for path in expected} == expected
    assert {source for _, source in rows.values()} == {"set", "default"}


@pytest.mark.parametrize(
    ("name", "text", "ttl"),
    [("SES_TTL_MIN", "5", "5m"), ("SAGEMAKER_SESSIONS_EXPIRATION", "90", "90s")],
)
def test_the_listing_tells_how_long_sessions_last(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, ttl: str
) -> None:
    """The lifetime in use and the variable that says so, unless the file gives one."""
    monkeypatch.setenv(name, text)
    for line, row in (("", (ttl, name)), ("session: {ttl: 7m}", ("7m", "set"))):
        assert listed(WORKER + line)["session.ttl"] == row
        assert format_duration(loads(WORKER + line).session.lifetime) == row[0]
