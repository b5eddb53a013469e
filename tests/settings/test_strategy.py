"""`strategy:` in the YAML, for built-in strategies and those of other packages."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.settings.fleet import StrategySettings
from router.settings.loader import loads
from router.settings.schema import describe, schema_text
from tests.settings.wrong import WORKER, refuses

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
    sys.modules.pop("otherstrategy", None)


def test_a_name_and_a_mapping_mean_the_same() -> None:
    """Options that are not set are left to the strategy."""
    for text, strategy in (
        ("", StrategySettings("prefixaware", {})),
        ("strategy: roundrobin", StrategySettings("roundrobin", {})),
        ("strategy: {name: roundrobin}", StrategySettings("roundrobin", {})),
        (
            "strategy: {name: prefixaware, memory: 1MiB}",
            StrategySettings("prefixaware", {"memory": 1 << 20}),
        ),
    ):
        assert loads(WORKER + text).strategy == strategy


MISSING = (".name", "required key is missing")
MEANT = 'unknown key; did you mean "name"?'


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("prefixawre", [("", 'session; did you mean "prefixaware"?')]),
        ("{name: Round-Robin, x: 1}", [(".name", 'session; did you mean "roundrobin"?')]),
        (
            "{name: [a]}",
            [(".name", "a list is not a strategy: known are chbl, kvaware, leastload")],
        ),
        ("5", [("", 'must be the name of a strategy, or a mapping with "name"')]),
        ("[a]", [("", "must be the name of a strategy")]),
        ("{name: prefixaware, memory: 1}", [(".memory", "1 is not a size")]),
        ("{name: prefixaware, memmory: 1}", [(".memmory", 'did you mean "memory"?')]),
        (
            "{name: prefixaware, memory: ten, nmae: x}",
            [(".memory", '"ten" is not a size'), (".nmae", MEANT)],
        ),
        ("{name: session, over: {name: prefixaware, memry: 1}}", [(".over.memry", "memory")]),
        ("{name: session, over: {name: prefixaware, spill: 1s}}", [(".over.spill", "unknown")]),
        ("{name: roundrobin, options: {}}", [(".options", "unknown key")]),
        ("{}", [MISSING]),
        # What may be meant for the name is pointed to; options that some strategy has are not.
        ("{memory: 1MiB}", [MISSING]),
        ("{type: kvaware}", [MISSING, (".type", "unknown key")]),
        ("{Name: kvaware, memory: 1MiB}", [MISSING, (".Name", MEANT)]),
        ("{nam: prefixaware, memry: 1}", [MISSING, (".nam", MEANT), (".memry", '"memory"?')]),
        (
            "{name: session, over: {nmae: chbl}}",
            [(f".over{MISSING[0]}", MISSING[1]), (".over.nmae", MEANT)],
        ),
    ],
)
def test_a_wrong_strategy_is_named_once(strategy: str, expected: list[tuple[str, str]]) -> None:
    """The message says what is allowed, in our words and not in pydantic's."""
    refuses(
        f"{WORKER}strategy: {strategy}",
        *((f"2: strategy{place}", words) for place, words in expected),
    )


def test_the_strategy_of_a_pool_is_checked_too() -> None:
    """Each mistake is on its own line."""
    refuses(
        "pools:\n- name: p\n  workers: [http://a:1]\n  strategy:\n    nmae: chbl\n",
        ("4: pools[0].strategy.name", "required key is missing"),
        ("5: pools[0].strategy.nmae", MEANT),
    )


@pytest.mark.usefixtures("other")
def test_a_strategy_of_another_package_has_typed_options() -> None:
    """Its annotations decide: durations and sizes with units, plain numbers for int and float."""
    text = "{name: other, window: 2m, budget: 1KiB, tries: 3, share: 1, tags: [a]}"
    settings = loads(f"{WORKER}strategy: {text}")
    options = {"window": 120.0, "budget": 1024, "tries": 3, "share": 1.0, "tags": ["a"]}
    assert settings.strategy.options == options
    assert [row for row in describe(settings) if row.path.startswith("strategy")] == [
        ("strategy", "other", "set"),
        ("strategy.window", "2m", "set"),
        ("strategy.budget", "1KiB", "set"),
        ("strategy.tries", "3", "set"),
        ("strategy.greedy", "false", "default"),
        ("strategy.share", "1.0", "set"),
        ("strategy.tags", "a", "set"),
    ]


@pytest.mark.usefixtures("other")
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (
            "{name: other, windw: 1s, tries: '3', greedy: 1, share: x, tags: 5}",
            [
                (".windw", 'unknown key; did you mean "window"?'),
                (".tries", "must be a whole number"),
                (".greedy", "must be true or false"),
                (".share", "must be a number"),
                (".tags", "must be a list"),
            ],
        ),
        ("{name: other, share: 2}", [("", "refuses its options: share is at most 1")]),
        ("{nmae: other, windw: 1s}", [MISSING, (".nmae", MEANT), (".windw", '"window"?')]),
        ("broken", [("", "cannot be loaded: ModuleNotFoundError: ")]),
    ],
)
def test_mistakes_of_another_package_are_told_as_ours(
    strategy: str, expected: list[tuple[str, str]]
) -> None:
    """Each field is checked, and then what the class refuses; a broken package does no harm."""
    refuses(
        f"{WORKER}strategy: {strategy}",
        *((f"2: strategy{place}", words) for place, words in expected),
    )
    assert loads(f"{WORKER}strategy: roundrobin").strategy.name == "roundrobin"


def test_the_schema_does_not_depend_on_other_packages(request: pytest.FixtureRequest) -> None:
    """The schema is the same text with and without them."""
    before = schema_text()
    request.getfixturevalue("other")
    assert schema_text() == before
    assert "otherstrategy" not in before
