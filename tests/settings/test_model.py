"""What loaded settings contain, and how they are listed."""

import pytest
from pydantic import ValidationError

from router.settings.fleet import StrategySettings
from router.settings.loader import loads
from router.settings.model import PoolSettings, Settings, WorkerSettings
from router.settings.schema import describe
from router.settings.tokenizer import TokenizerSettings
from router.settings.types import Address, format_duration

POOLS = """
strategy: leastload
pools:
  - name: llama
    models: ["meta-llama/*", exact-name]
    strategy: roundrobin
    workers: [http://a:1]
  - name: rest
    workers: [{url: "https://[::1]", name: six}]
"""

SECTIONS: dict[str, dict[str, object]] = {
    "admin": {"listen": None, "keys": ()},
    "clients": {"header": 10, "body": 30, "write": 60, "keepalive": 75, "connections": 10_000},
    "timeouts": {
        "connect": 2,
        "first_byte": 600,
        "idle": 120,
        "total": 3600,
        "queue": 30,
        "keepalive": 3,
        "comment": None,
    },
    "limits": {
        "body": 16 << 20,
        "audio": 26 << 20,
        "headers": 32 << 10,
        "header_count": 100,
        "url": 8 << 10,
        "messages": 4096,
        "prompts": 32768,
        "images": 256,
        "n": 128,
        "best_of": 128,
        "max_tokens": None,
        "in_flight": 1024,
        "queue": 1000,
        "overflow": {"status": 429, "message": None, "body": "openai"},
        "attempts": 3,
        "preemptions": 10,
        "retries": 0.2,
    },
    "health": {
        "interval": 2,
        "timeout": 1,
        "fall": 2,
        "rise": 1,
        "ejection": {"failures": 5, "first": 5, "longest": 300, "share": 0.5, "panic": 0.5},
    },
    "shutdown": {"delay": 5, "drain": 600, "state": None},
    "metrics": {"aliases": "none"},
    "logs": {"level": "info", "format": "plain", "requests": False},
}
"""The defaults of all sections, in seconds, bytes and numbers."""


def test_everything_but_the_workers_has_a_default() -> None:
    """The defaults are the documented ones."""
    settings = loads("workers: [http://10.0.0.11:8000/]")
    assert settings.listen == Address("127.0.0.1", 8080)
    assert settings.tokenizer == TokenizerSettings()
    assert settings.tokenizer.source == "auto"
    assert settings.strategy == StrategySettings("prefixaware")
    assert settings.workers == (WorkerSettings(url="http://10.0.0.11:8000"),)
    worker = settings.workers[0]
    assert (worker.url, worker.name) == ("http://10.0.0.11:8000", "10.0.0.11:8000")
    assert (worker.models, worker.api_key, worker.kv_tokens) == ((), None, None)
    assert (settings.auth, settings.tls, settings.cors) == (None, None, ())
    assert (settings.door_keys, settings.admin_keys) == ((), ())
    assert {name: getattr(settings, name).model_dump() for name in SECTIONS} == SECTIONS


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://a:1", Address("a", 1)),
        ("http://a", Address("a", 80)),
        ("https://a/", Address("a", 443)),
        ("http://[::1]:8000", Address("::1", 8000)),
        ("https://[::1]", Address("::1", 443)),
    ],
)
def test_a_worker_knows_its_address(url: str, address: Address) -> None:
    """Without a port, the default one of the scheme is taken; the name is the address."""
    worker = WorkerSettings(url=url)
    assert worker.address == address
    assert worker.name == str(address)


def redis(url: str) -> Settings:
    """Return settings that keep sessions in this Redis."""
    session = {"redis": {"url": url}}
    return Settings.model_validate({"workers": ["http://a"], "session": session})


@pytest.mark.parametrize("url", ["redis://store", "rediss://[::1]:65535/2"])
def test_a_url_of_redis(url: str) -> None:
    """It stays as it is written."""
    told = redis(url).session.redis
    assert told is not None and told.url == url  # noqa: PT018


@pytest.mark.parametrize(
    "url", ["redis://store:65536", "redis://[:::]:6379", "redis://[127.0.0.1]", "redis://a:1?b=1"]
)
def test_a_url_that_no_redis_can_have(url: str) -> None:
    """It is refused at once: when a reload is half done, it is too late."""
    with pytest.raises(ValidationError, match="is not a Redis URL: write redis://host:port"):
        redis(url)


def test_top_level_workers_are_the_default_pool() -> None:
    """It serves every model, with the strategy given at the top."""
    settings = loads("strategy: roundrobin\nworkers: [http://a:1]")
    (pool,) = settings.all_pools()
    assert (pool.name, pool.models) == ("default", ("*",))
    assert pool.strategy is settings.strategy
    assert pool.workers == settings.workers


def test_pools_inherit_the_strategy() -> None:
    """A pool that names no strategy has the one given at the top."""
    pools = loads(POOLS).all_pools()
    assert [pool.strategy.name for pool in pools] == ["roundrobin", "leastload"]
    assert [pool.models for pool in pools] == [("meta-llama/*", "exact-name"), ("*",)]
    assert [worker.name for pool in pools for worker in pool.workers] == ["a:1", "six"]


def test_settings_never_change() -> None:
    """Settings are immutable; a reload makes new ones."""
    settings = loads("workers: [http://a:1]")
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


def test_the_listing_tells_every_value_and_where_it_is_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values are listed as the file would state them, secrets as asterisks."""
    monkeypatch.setenv("SOME_KEY", "sk-sekret")
    rows = describe(
        loads(
            "workers: [{url: http://a:1, api_key: '${SOME_KEY}'}, http://b:1]\n"
            "timeouts: {idle: 90s}\n"
        )
    )
    listed = {path: (value, source) for path, value, source in rows}
    assert len(listed) == len(rows)
    expected = {
        "listen": ("127.0.0.1:8080", "default"),
        "strategy.memory": ("64MiB", "default"),
        "workers[0].url": ("http://a:1", "set"),
        "workers[0].api_key": ("***", "set"),
        "workers[1].models": ("as the worker reports", "default"),
        "workers[1].api_key": ("none", "default"),
        "session.longest": ("off", "default"),
        "auth": ("everyone on this machine", "default"),
        "timeouts.idle": ("90s", "set"),
        "timeouts.total": ("1h", "default"),
        "limits.retries": ("0.2", "default"),
        "logs.requests": ("false", "default"),
    }
    assert {path: listed[path] for path in expected} == expected
    assert {source for _, source in listed.values()} == {"set", "default"}


@pytest.mark.parametrize(
    ("name", "text", "ttl"),
    [("SES_TTL_MIN", "5", "5m"), ("SAGEMAKER_SESSIONS_EXPIRATION", "90", "90s")],
)
def test_the_listing_tells_how_long_sessions_last(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, ttl: str
) -> None:
    """The lifetime in use and the variable that says so, unless the file gives one."""
    monkeypatch.setenv(name, text)
    for given, row in (("", (ttl, name)), ("session: {ttl: 7m}", ("7m", "set"))):
        settings = loads(f"workers: [http://a:1]\n{given}")
        found = next(one for one in describe(settings) if one.path == "session.ttl")
        assert found == ("session.ttl", *row)
        assert format_duration(settings.session.lifetime) == row[0]


def test_the_listing_tells_what_pools_inherit() -> None:
    """A pool without a strategy lists the one at the top, as a default."""
    rows = {row.path: (row.value, row.source) for row in describe(loads(POOLS))}
    assert rows["pools[0].strategy"] == ("roundrobin", "set")
    assert rows["pools[1].strategy"] == ("leastload", "default")
    assert rows["pools[0].models"] == ("meta-llama/*, exact-name", "set")
    assert rows["pools[1].workers[0].url"] == ("https://[::1]", "set")
