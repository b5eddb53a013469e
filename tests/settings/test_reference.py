"""docs/configuration.md has every setting, with its own docstring and its real default."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import pytest
from pydantic import BaseModel, Field, TypeAdapter
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML

from router.settings.fleet import StrategySettings, options_model
from router.settings.loader import loads
from router.settings.model import Settings
from router.settings.schema import BUILT_IN
from tests.pems import PEMS

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w.\[\]]+)` \|", re.MULTILINE)
INHERITED = "pools[].strategy"
"""Inherited: its default is another setting."""
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


class Setting(NamedTuple):
    """One field of the settings."""

    path: str
    """A path such as `workers[].tls.ca`."""
    field: FieldInfo
    part: type[BaseModel] | None
    """The model of its value, if it has keys of its own."""

    @property
    def words(self) -> tuple[str, str]:
        """Return what its docstring says of it, and of its default."""
        text = " ".join((self.field.description or "").split())
        meaning, default, said = text.partition(" Default: ")
        if default:
            return meaning, said.removesuffix(".")
        return text.removesuffix(" Required."), "required" if text.endswith(" Required.") else ""

    @property
    def has_value(self) -> bool:
        """Whether its default can be written as a value, and is not the absence of one."""
        if self.field.is_required() or self.field.default_factory or self.path == INHERITED:
            return False
        return self.field.default not in (None, ()) or self.words[1] == "off"


def part_of(annotation: object) -> type[BaseModel] | None:
    """Return the model within a type, such as X in `tuple[X, ...]` or `X | None`."""
    for inner in (annotation, *get_args(annotation)):
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            return inner
    return None


def walk(model: type[BaseModel], above: str, seen: set[object]) -> Iterator[Setting]:
    """Yield every field, followed by the fields of its model; a model used twice only once."""
    for name, field in model.model_fields.items():
        part = part_of(field.annotation)
        yield Setting(f"{above}{name}", field, part)
        if part and part not in seen:
            seen.add(part)
            listed = "" if is_section(field) or "tuple" not in str(field.annotation) else "[]"
            yield from walk(part, f"{above}{name}{listed}.", seen)


def is_section(field: FieldInfo) -> bool:
    """Whether it is only a group of other settings, all of which have defaults."""
    return field.annotation is part_of(field.annotation)


def option(strategy: str, name: str, field: FieldInfo) -> str:
    """Return the table row of a strategy's own option."""
    default = StrategySettings(strategy).written()[name]
    return f"| `strategy.{name}` | `{default}` | {field.description} |"


SETTINGS = list(walk(Settings, "", set()))
SECTIONS = [one for one in SETTINGS if is_section(one.field)]
PLAIN = [one for one in SETTINGS if not is_section(one.field)]
OPTIONS = [
    option(strategy, name, field)
    for strategy, made in BUILT_IN.items()
    for name, field in options_model(made.Options).model_fields.items()
]


def row(setting: Setting) -> str:
    """Return the table row that the page must have."""
    meaning, default = setting.words
    default = f"`{default.strip('`')}`" if setting.has_value else default
    return f"| `{setting.path}` | {default} | {meaning} |"


def test_every_setting_has_its_row_and_no_other_has_one() -> None:
    """A new setting fails here and shows the missing line."""
    rows = [*map(row, PLAIN), *OPTIONS]
    assert [line for line in rows if f"{line}\n" not in TEXT] == []
    assert sorted(ROW.findall(TEXT)) == sorted(line.split("`")[1] for line in rows)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda one: one.path)
def test_every_section_is_headed_by_its_words(section: Setting) -> None:
    """The heading of a section is followed by the section's docstring."""
    assert f"\n### `{section.path}`\n\n{section.words[0]}\n" in TEXT


@pytest.mark.parametrize("setting", PLAIN, ids=lambda one: one.path)
def test_a_docstring_tells_what_is_true(setting: Setting) -> None:
    """The default it states is the real one; if there is none, it says in words what happens."""
    meaning, default = setting.words
    assert meaning.endswith(".")
    assert default, "neither a default nor `Required.`"
    assert (default == "required") == setting.field.is_required()
    if setting.has_value:
        written: Any = YAML(typ="safe", pure=True).load(default.strip("`"))
        kind: Any = Annotated[setting.field.annotation, Field(), *setting.field.metadata]
        assert TypeAdapter(kind).validate_python(written) == setting.field.default


def test_the_examples_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example loads, given the files and environment variables that it names."""
    secret = tmp_path / "secret"
    secret.write_text("sk-0123456789abcdef")
    (tmp_path / "door.pem").write_text(PEMS["one.pem"])
    (tmp_path / "door.key").write_text(PEMS["one.key"])
    for place, name in enumerate(("CHAT_APP_KEY", "VLLM_API_KEY")):
        monkeypatch.setenv(name, f"sk-0123456789ab-{place}")
    assert EXAMPLES
    for example in EXAMPLES:
        text = re.sub(r"file:/[^\"]+", f"file:{secret}", example)
        assert loads(text, folder=tmp_path).workers
