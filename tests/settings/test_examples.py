"""The files in config/: schema.json is up to date, and every example loads and fits it."""

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from ruamel.yaml import YAML

from router.settings.errors import SettingsError
from router.settings.loader import load, loads
from router.settings.model import Settings
from router.settings.schema import describe, schema, schema_text

CONFIG = Path(__file__).parents[2] / "config"
EXAMPLES = sorted(CONFIG.glob("*.yaml"))


def fits(text: str) -> bool:
    """Return whether an editor with the schema would accept the text."""
    data: Any = YAML(typ="safe", pure=True).load(text)
    return bool(jsonschema.Draft202012Validator(schema()).is_valid(data))


def test_the_schema_file_is_up_to_date() -> None:
    """`warmroute schema` prints exactly what config/schema.json holds."""
    assert (CONFIG / "schema.json").read_text(encoding="utf-8") == schema_text()
    assert json.loads(schema_text()) == schema()


def test_the_schema_is_a_schema() -> None:
    """The schema is valid JSON Schema, draft 2020-12."""
    jsonschema.Draft202012Validator.check_schema(schema())


def test_every_key_is_described() -> None:
    """Every key has a description, which editors show."""
    for definition in [schema(), *schema()["$defs"].values()]:
        shape = definition["anyOf"][1] if "anyOf" in definition else definition
        for name, field in shape["properties"].items():
            assert "description" in field or "$ref" in field, name


def test_there_is_an_example_for_each_strategy() -> None:
    """There is one example for each strategy, and one with pools."""
    ours = ["chbl", "kvaware", "leastload", "poweroftwo", "prefixaware", "roundrobin", "session"]
    assert [path.stem for path in EXAMPLES] == sorted([*ours, "pools"])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_and_fits_the_schema(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses the strategy it is named after, and listens and has its workers on localhost."""
    monkeypatch.setenv("VLLM_API_KEY", "sk-test")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    assert fits(text)
    settings = load(path)
    assert str(settings.listen) == "127.0.0.1:8080"
    workers = [worker for pool in settings.all_pools() for worker in pool.workers]
    assert [worker.url for worker in workers] == [
        f"http://127.0.0.1:{9001 + number}" for number in range(len(workers))
    ]
    if path.stem != "pools":
        assert settings.strategy.name == path.stem


def test_the_pools_example_needs_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the environment variable that is not set."""
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with pytest.raises(SettingsError, match="environment variable VLLM_API_KEY is not set"):
        load(CONFIG / "pools.yaml")


def test_one_example_tells_the_defaults() -> None:
    """Below its workers, the `prefixaware` example states every default but three optional keys."""
    sections = {"clients", "timeouts", "limits", "health", "shutdown", "metrics", "logs"}
    settings = load(CONFIG / "prefixaware.yaml")
    for section in sections:
        assert getattr(settings, section) == getattr(Settings(workers=settings.workers), section)
    left_out = [
        row.path
        for row in describe(settings)
        if row.path.split(".")[0] in sections and row.source == "default"
    ]
    assert left_out == ["limits.max_tokens", "limits.overflow.message", "shutdown.state"]


@pytest.mark.parametrize(
    "line",
    [
        "strategy: roundrobin",
        "strategy: someone-elses",
        "strategy: {name: prefixaware, memory: 1GiB}",
        "listen: '[::1]:0'",
        "timeouts: {connect: 250ms}",
        "limits: {body: 64kB, attempts: 10}",
        "limits: {images: 0, queue: 0, max_tokens: 5, retries: 0}",
        "limits: {retries: 12.5%}",
        "timeouts: {total: off, comment: 15s}",
        "health: {fall: 1}",
        "health: {ejection: {share: 1, panic: 100%}}",
        "shutdown: {delay: 0s}",
        "auth: none",
        "auth: {keys: ['${WARMROUTE_KEY}']}",
        "auth: {keys: [{name: a, key: 'file:/run/a'}, 'file:/run/b']}",
        "admin: {listen: '127.0.0.1:9', keys: ['${WARMROUTE_KEY}']}",
        "cors: ['*']",
        "cors: [https://app.example, 'http://localhost:3000']",
        "tls: {certificate: a.pem, key: /a.key, client_ca: b.pem}",
        "limits: {overflow: {status: 503, message: Come back later., body: hyperpod}}",
        "metrics: {aliases: hyperpod}",
        "logs: {level: debug, format: json, requests: true}",
    ],
)
def test_the_schema_allows_what_is_right(line: str) -> None:
    """Both forms of a strategy, also one of another package; every form of the other settings."""
    assert fits(f"workers: [http://a:1, {{url: http://b, models: [x]}}]\n{line}")


@pytest.mark.parametrize(
    "text",
    [
        "listen: a:1",
        "workers: []",
        "workers: [http://a:1]\npools: [{name: a, workers: [http://b:1]}]",
        "workers: [a:1]",
        "workers: [http://a:1/v1]",
        "workers: [http://u@a:1]",
        "workers: [{name: x}]",
        "workers: [{url: http://a:1, name: a b}]",
        "workers: [{url: http://a:1, kay: 1}]",
        "workers: [{url: http://a:1, api_key: sk-literal}]",
        "workers: [{url: http://a:1, api_key: ~}]",
        "workers: [{url: http://a:1, kv_tokens: 0}]",
        "workers: [{url: http://a:1, models: ['a*b']}]",
        "workers: [http://a:1]\nstrategy: {name: prefixaware, memmory: 1}",
        "workers: [http://a:1]\nstrategy: {name: prefixaware, memory: 1}",
        "workers: [http://a:1]\nstrategy: {memory: 1MiB}",
        "workers: [http://a:1]\ntimeouts: {connect: 2}",
        "workers: [http://a:1]\nlimits: {attempts: 11}",
        "workers: [http://a:1]\nlimits: {queue: -1}",
        "workers: [http://a:1]\nlimits: {overflow: {status: 200}}",
        "workers: [http://a:1]\nlimits: {overflow: {body: text}}",
        "workers: [http://a:1]\nmetrics: {aliases: true}",
        "workers: [http://a:1]\nlimits: {retries: 101%}",
        "workers: [http://a:1]\nlimits: {retries: '0.2'}",
        "workers: [http://a:1]\nlimits: {max_tokens: off}",
        "workers: [http://a:1]\ntimeouts: {total: none}",
        "workers: [http://a:1]\ntimeouts: {queue: off}",
        "workers: [http://a:1]\nhealth: {ejection: {share: 1.5}}",
        "workers: [http://a:1]\nauth: off",
        "workers: [http://a:1]\nauth: {}",
        "workers: [http://a:1]\nauth: {keys: []}",
        "workers: [http://a:1]\nauth: {keys: [sk-literal]}",
        "workers: [http://a:1]\nauth: {keys: [{name: a}]}",
        "workers: [http://a:1]\nadmin: {listen: 9090}",
        "workers: [http://a:1]\ncors: [https://app.example/]",
        "workers: [http://a:1]\ntls: {certificate: a.pem}",
        "workers: [{url: https://a:1, tls: {cert: a.pem}}]",
        "workers: [http://a:1]\nzebra: 1",
    ],
)
def test_the_schema_refuses_what_loading_refuses(text: str) -> None:
    """An editor reports everything that loading would refuse."""
    assert not fits(text)
    with pytest.raises(SettingsError):
        loads(text)
