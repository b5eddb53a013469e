"""config/schema.json, the examples beside it, and the page that lists every setting."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from ruamel.yaml import YAML

from router.reload import idle
from router.settings.errors import SettingsError
from router.settings.fleet import StrategySettings
from router.settings.loader import load, loads
from router.settings.model import Settings
from router.settings.schema import BUILT_IN, describe, schema, schema_text
from router.settings.types import DURATION_PATTERN, parse_duration
from tests.pems import PEMS

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"
EXAMPLES = sorted(CONFIG.glob("*.yaml"))
PAGE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
SCHEMA = schema()
KEYS = ("WARMROUTE_KEY", "WARMROUTE_ADMIN_KEY", "VLLM_API_KEY", "REDIS_PASSWORD", "CHAT_APP_KEY")


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set every environment variable that an example names."""
    for place, name in enumerate(KEYS):
        monkeypatch.setenv(name, f"sk-0123456789ab-{place}")


def fits(text: str) -> bool:
    """Return whether an editor with the schema would accept the text."""
    data: Any = YAML(typ="safe", pure=True).load(text)
    return bool(jsonschema.Draft202012Validator(SCHEMA).is_valid(data))


def test_the_schema_file_is_up_to_date_and_valid() -> None:
    """`warmroute schema` prints exactly what config/schema.json holds."""
    assert (CONFIG / "schema.json").read_text(encoding="utf-8") == schema_text()
    assert json.loads(schema_text()) == SCHEMA
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_there_is_an_example_for_each_strategy() -> None:
    """There is one example for each strategy, and one with pools."""
    assert [path.stem for path in EXAMPLES] == sorted([*BUILT_IN, "pools"])


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_loads_and_fits_the_schema(path: Path) -> None:
    """It uses the strategy it is named after, listens on localhost, and sets nothing in vain."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=schema.json\n")
    assert fits(text)
    settings = load(path)
    assert str(settings.listen) == "127.0.0.1:8080"
    assert list(idle(settings)) == []
    if path.stem != "pools":
        assert settings.strategy.name == path.stem


def test_one_example_tells_the_defaults() -> None:
    """Below its workers, the `prefixaware` example states every default but three optional keys."""
    sections = {"clients", "timeouts", "limits", "health", "shutdown", "metrics", "logs"}
    settings = load(CONFIG / "prefixaware.yaml")
    for section in sections:
        assert getattr(settings, section) == getattr(Settings(workers=settings.workers), section)
    rows = [row for row in describe(settings) if row.path.split(".")[0] in sections]
    left_out = [row.path for row in rows if row.source == "default"]
    assert left_out == ["limits.max_tokens", "limits.overflow.message", "shutdown.state"]


@pytest.mark.parametrize(
    "line",
    [
        "strategy: roundrobin",
        "strategy: someone-elses",
        "strategy: {name: prefixaware, memory: 1GiB}",
        "listen: '[::1]:0'",
        "limits: {body: 64kB, attempts: 10, images: 0, queue: 0, max_tokens: 5, retries: 12.5%}",
        "timeouts: {connect: 250ms, total: off, comment: 15s}",
        "health: {fall: 1, ejection: {share: 1, panic: 100%}}",
        "auth: none",
        "auth: {keys: [{name: a, key: 'file:/run/a'}, 'file:/run/b', '${WARMROUTE_KEY}']}",
        "admin: {listen: '127.0.0.1:9', keys: ['${WARMROUTE_KEY}']}",
        "tls: {certificate: a.pem, key: a.key}",
        "cors: [https://app.example, 'http://[::1]:3']",
        "tokenizer: org/name",
        "controller: http://c:1",
    ],
)
def test_the_schema_accepts_what_loading_accepts(line: str) -> None:
    """Short forms, units and files are no mistakes in an editor."""
    assert fits(f"workers: [http://a:1]\n{line}")


@pytest.mark.parametrize(
    "text",
    [
        "listen: a:1",
        "workers: []",
        "workers: [http://a:1]\npools: [{name: a, workers: [http://b:1]}]",
        *(
            f"workers: [{worker}]"
            for worker in (
                "a:1",
                "http://a:1/v1",
                "http://u@a:1",
                "{name: x}",
                "{url: http://a:1, name: a b}",
                "{url: http://a:1, kay: 1}",
                "{url: http://a:1, api_key: sk-literal}",
                "{url: http://a:1, api_key: ~}",
                "{url: http://a:1, kv_tokens: 0}",
                "{url: http://a:1, models: ['a*b']}",
                "{url: https://a:1, tls: {cert: a.pem}}",
            )
        ),
        *(
            f"workers: [http://a:1]\n{line}"
            for line in (
                "strategy: {name: prefixaware, memmory: 1}",
                "strategy: {name: prefixaware, memory: 1}",
                "strategy: {memory: 1MiB}",
                "timeouts: {connect: 2}",
                "timeouts: {total: none}",
                "timeouts: {queue: off}",
                "limits: {attempts: 11}",
                "limits: {queue: -1}",
                "limits: {overflow: {status: 200}}",
                "limits: {retries: 101%}",
                "limits: {retries: '0.2'}",
                "metrics: {aliases: true}",
                "health: {ejection: {share: 1.5}}",
                "auth: off",
                "auth: {}",
                "auth: {keys: []}",
                "auth: {keys: [sk-literal]}",
                "auth: {keys: [{name: a}]}",
                "admin: {listen: 9090}",
                "cors: [https://app.example/]",
                "tls: {certificate: a.pem}",
                "zebra: 1",
            )
        ),
    ],
)
def test_the_schema_refuses_what_loading_refuses(text: str) -> None:
    """An editor reports everything that loading would refuse."""
    assert not fits(text)
    with pytest.raises(SettingsError):
        loads(text)


def properties(node: Any, above: str, seen: set[str]) -> Iterator[tuple[str, Any, bool]]:
    """Yield the path, the schema and the need of every setting; a model used twice only once."""
    for name, field in node["properties"].items():
        path, required = f"{above}{name}", name in node.get("required", ())
        reference = field.get("items", field).get("$ref")
        model = SCHEMA["$defs"][reference.rpartition("/")[2]] if reference else {}
        model = model.get("anyOf", [model])[-1]
        if required or "Default: " in field.get("description", "") or not reference:
            yield path, field, required
        if reference and reference not in seen:
            seen.add(reference)
            yield from properties(model, f"{path}{'[]' if 'items' in field else ''}.", seen)


SETTINGS = list(properties(SCHEMA, "", set()))


@pytest.mark.parametrize(("path", "field", "required"), SETTINGS, ids=lambda it: str(it)[:40])
def test_a_description_and_the_page_tell_the_real_default(
    path: str, field: Any, required: bool
) -> None:
    """If there is none, they say in words what happens."""
    meaning, _, words = field["description"].replace("\n", " ").partition(" Default: ")
    default = "required" if required else words.removesuffix(".").replace("`", "")
    assert required == meaning.endswith(" Required.")
    assert default, "neither a default nor `Required.`"
    value = field.get("default")
    if field.get("pattern") == DURATION_PATTERN and value is not None:
        assert parse_duration(default) == parse_duration(value)
    elif isinstance(value, str | int | float):
        assert default == (value if isinstance(value, str) else json.dumps(value))
    (cell,) = re.findall(rf"^\| `{re.escape(path)}` \| ([^|]*) \|", PAGE, re.MULTILINE)
    assert cell.replace("`", "") == default


def test_the_page_has_every_option_of_strategies_and_no_other_setting() -> None:
    """With its default."""
    options = {
        f"strategy.{name}": str(value)
        for strategy in BUILT_IN
        for name, value in StrategySettings(strategy).written().items()
        if name != "name"
    }
    rows = re.findall(r"^\| `([\w.\[\]]+)` \| ([^|]*) \|", PAGE, re.MULTILINE)
    assert {path: cell.strip("`") for path, cell in rows if path in options} == options
    assert {path for path, _ in rows} == {path for path, _, _ in SETTINGS} | options.keys()


@pytest.mark.usefixtures("keys")
def test_the_examples_on_the_page_load(tmp_path: Path) -> None:
    """Given the files and environment variables that they name."""
    (tmp_path / "secret").write_text("sk-0123456789abcdef")
    (tmp_path / "door.pem").write_text(PEMS["one.pem"])
    (tmp_path / "door.key").write_text(PEMS["one.key"])
    examples = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        text = re.sub(r"file:/[^\"]+", f"file:{tmp_path}/secret", example)
        assert loads(text, folder=tmp_path).workers
