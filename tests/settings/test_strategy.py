"""`strategy:` in the YAML, for built-in strategies and those of other packages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from router.settings.errors import SettingsError
from router.settings.fleet import StrategySettings
from router.settings.loader import loads
from router.settings.model import Settings
from router.settings.schema import describe, schema_text

OTHER = """
from dataclasses import dataclass, field
from strategies.api import Bytes, Seconds

@dataclass(frozen=True)
class Options:
    window: Seconds = field(default=Seconds(90.0), metadata={"doc": "How far back."})
    budget: Bytes = Bytes(1024)
    tries: int = 2
    greedy: bool = False
    share: float = 0.5
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.share > 1:
            raise ValueError("share is at most 1")

class Other:
    Options = Options
"""


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with one strategy that works and one that cannot be imported."""
    (tmp_path / "otherstrategy.py").write_text(OTHER)
    info = tmp_path / "otherstrategy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: otherstrategy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[warmroute.strategies]\nother = otherstrategy:Other\nbroken = nosuchmodule:Broken\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    import sys  # noqa: PLC0415

    sys.modules.pop("otherstrategy", None)


def read(strategy: str) -> Settings:
    """Load settings with that strategy, given on line 2."""
    return loads(f"workers: [http://a:1]\nstrategy: {strategy}\n", "f")


def wrong(strategy: str) -> list[str]:
    """Return the messages for that strategy."""
    with pytest.raises(SettingsError) as caught:
        read(strategy)
    return str(caught.value).split("\n")


def test_a_name_and_a_mapping_mean_the_same() -> None:
    """Options that are not set are left to the strategy."""
    assert read("roundrobin").strategy == StrategySettings("roundrobin", {})
    assert read("{name: roundrobin}").strategy == StrategySettings("roundrobin", {})
    assert read("{name: prefixaware, memory: 1MiB}").strategy == StrategySettings(
        "prefixaware", {"memory": 1 << 20}
    )
    assert loads("workers: [http://a:1]").strategy == StrategySettings("prefixaware", {})


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (
            "prefixawre",
            'f:2: strategy: "prefixawre" is not a strategy: known are chbl, kvaware, leastload,'
            ' poweroftwo, prefixaware, roundrobin, session; did you mean "prefixaware"?',
        ),
        (
            "{name: Round-Robin, x: 1}",
            'f:2: strategy.name: "Round-Robin" is not a strategy: known are chbl, kvaware,'
            ' leastload, poweroftwo, prefixaware, roundrobin, session; did you mean "roundrobin"?',
        ),
        (
            "{name: [a]}",
            "f:2: strategy.name: a list is not a strategy: known are chbl, kvaware, leastload,"
            " poweroftwo, prefixaware, roundrobin, session",
        ),
        ("{memory: 1MiB}", "f:2: strategy.name: required key is missing"),
        ("{}", "f:2: strategy.name: required key is missing"),
        ("5", 'f:2: strategy: must be the name of a strategy, or a mapping with "name"'),
        ("[a]", 'f:2: strategy: must be the name of a strategy, or a mapping with "name"'),
        (
            "{name: prefixaware, memmory: 1}",
            'f:2: strategy.memmory: unknown key; did you mean "memory"?',
        ),
        (
            "{name: session, over: {name: prefixaware, memry: 1MiB}}",
            'f:2: strategy.over.memry: unknown key; did you mean "memory"?',
        ),
        (
            "{name: session, over: {name: prefixaware, spill: 1s}}",
            "f:2: strategy.over.spill: unknown key",
        ),
        ("{name: roundrobin, memory: 1MiB}", "f:2: strategy.memory: unknown key"),
        ("{name: roundrobin, options: {}}", "f:2: strategy.options: unknown key"),
        (
            "{name: prefixaware, memory: 1}",
            "f:2: strategy.memory: 1 is not a size: write a whole number and a unit"
            " (B, kB, MB, GB, KiB, MiB, GiB, TiB), such as 16MiB",
        ),
    ],
)
def test_a_wrong_strategy_is_said_once(strategy: str, said: str) -> None:
    """The message says what is allowed, in our words and not in pydantic's."""
    assert wrong(strategy) == [said]


def test_all_wrong_options_are_said_at_once() -> None:
    """Each wrong option has its own message and line."""
    assert wrong("\n  name: prefixaware\n  memory: ten\n  nmae: x") == [
        'f:4: strategy.memory: "ten" is not a size: write a whole number and a unit'
        " (B, kB, MB, GB, KiB, MiB, GiB, TiB), such as 16MiB",
        'f:5: strategy.nmae: unknown key; did you mean "name"?',
    ]


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("{nmae: kvaware}", ['nmae: unknown key; did you mean "name"?']),
        ("{Name: kvaware, memory: 1MiB}", ['Name: unknown key; did you mean "name"?']),
        ("{type: kvaware}", ["type: unknown key"]),
        (
            "{nam: prefixaware, memry: 1MiB}",
            [
                'nam: unknown key; did you mean "name"?',
                'memry: unknown key; did you mean "memory"?',
            ],
        ),
    ],
)
def test_what_may_be_meant_for_the_name_is_pointed_to(strategy: str, said: list[str]) -> None:
    """Without a name, keys that no strategy has are named; options that some have are not."""
    missing = "f:2: strategy.name: required key is missing"
    assert wrong(strategy) == [missing, *(f"f:2: strategy.{one}" for one in said)]


def test_a_misspelt_name_is_found_on_its_line_wherever_a_strategy_stands() -> None:
    """In a pool, and below the strategy `session`, as at the top."""
    assert wrong("\n  name: session\n  over:\n    nmae: chbl") == [
        "f:4: strategy.over.name: required key is missing",
        'f:5: strategy.over.nmae: unknown key; did you mean "name"?',
    ]
    with pytest.raises(SettingsError) as caught:
        loads("pools:\n- name: p\n  workers: [http://a:1]\n  strategy:\n    nmae: chbl\n", "f")
    assert str(caught.value).split("\n") == [
        "f:4: pools[0].strategy.name: required key is missing",
        'f:5: pools[0].strategy.nmae: unknown key; did you mean "name"?',
    ]


@pytest.mark.usefixtures("other")
def test_without_a_name_it_may_be_the_strategy_of_another_package() -> None:
    """Options of other packages are known too; one that cannot be imported does no harm."""
    assert wrong("{nmae: other, windw: 1s, budget: 1KiB}") == [
        "f:2: strategy.name: required key is missing",
        'f:2: strategy.nmae: unknown key; did you mean "name"?',
        'f:2: strategy.windw: unknown key; did you mean "window"?',
    ]


@pytest.mark.usefixtures("other")
def test_a_strategy_of_another_package_has_typed_options() -> None:
    """Its annotations decide: durations and sizes with units, plain numbers for int and float."""
    settings = read("{name: other, window: 2m, budget: 1KiB, tries: 3, share: 1, tags: [a]}")
    assert settings.strategy.options == {
        "window": 120.0,
        "budget": 1024,
        "tries": 3,
        "share": 1.0,
        "tags": ["a"],
    }
    rows = [row for row in describe(settings) if row.path.startswith("strategy")]
    assert rows == [
        ("strategy", "other", "set"),
        ("strategy.window", "2m", "set"),
        ("strategy.budget", "1KiB", "set"),
        ("strategy.tries", "3", "set"),
        ("strategy.greedy", "false", "default"),
        ("strategy.share", "1.0", "set"),
        ("strategy.tags", "a", "set"),
    ]


@pytest.mark.usefixtures("other")
def test_wrong_options_of_another_package_are_said_as_ours() -> None:
    """Each field is checked, and then what the class itself refuses."""
    assert wrong("{name: other, windw: 1s, tries: '3', greedy: 1, share: x, tags: 5}") == [
        'f:2: strategy.windw: unknown key; did you mean "window"?',
        "f:2: strategy.tries: must be a whole number",
        "f:2: strategy.greedy: must be true or false",
        "f:2: strategy.share: must be a number",
        "f:2: strategy.tags: must be a list",
    ]
    assert wrong("{name: other, share: 2}") == [
        'f:2: strategy: strategy "other" refuses its options: share is at most 1'
    ]


@pytest.mark.usefixtures("other")
def test_a_package_that_cannot_be_imported_is_named() -> None:
    """The message has the reason; the package does no harm unless it is chosen."""
    assert wrong("broken") == [
        'f:2: strategy: strategy "broken" cannot be loaded:'
        " ModuleNotFoundError: No module named 'nosuchmodule'"
    ]
    assert read("roundrobin").strategy.name == "roundrobin"


def test_the_schema_does_not_depend_on_other_packages(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The schema is the same text with and without them."""
    before = schema_text()
    request.getfixturevalue("other")
    assert schema_text() == before
    assert "otherstrategy" not in before
