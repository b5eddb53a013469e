"""Strategies of other packages: one method is enough, and what is no strategy is refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from strategies import registry
from strategies.api import Candidate, Capabilities, Cost, Other, Outcome, Prompt
from tests.strategies.workers import fleet

PACKAGE = """
from dataclasses import dataclass
from strategies.api import FREE, Candidate, Decision, Strategy, option


@dataclass(frozen=True)
class Options:
    reverse: bool = option(False, "The other way round.")


class ByName(Strategy):
    Options = Options

    def __init__(self, options):
        self.reverse = options.reverse

    def rank(self, prompt, workers, now):
        order = sorted(workers, key=lambda worker: worker.name, reverse=self.reverse)
        return Decision([Candidate(worker, FREE) for worker in order], "name")


class Stranger:
    Options = Options

    def __init__(self, options):
        pass
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with one strategy, and a class that is none."""
    (tmp_path / "somebodys.py").write_text(PACKAGE)
    info = tmp_path / "somebodys-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[warmroute.strategies]\nbyname = somebodys:ByName\nstranger = somebodys:Stranger\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    import sys  # noqa: PLC0415

    sys.modules.pop("somebodys", None)


@pytest.mark.parametrize("name", ["byname", "session"])
def test_one_method_is_enough(name: str) -> None:
    """All that a strategy may be told besides has a default; also below `session`."""
    options: dict[str, object] = {"reverse": True}
    if name == "session":
        options = {"over": Other("byname", options)}
    strategy, workers = registry.make(name, options), fleet(3)
    prompt = Prompt("m", 10)
    decision = strategy.rank(prompt, workers, 0.0)
    assert [candidate.worker.name for candidate in decision.candidates] == ["w2", "w1", "w0"]
    assert strategy.capabilities == Capabilities(keeps_sessions=name == "session")
    assert strategy.kv is None
    strategy.waits(prompt)()
    strategy.placed(prompt, workers[0], 0.0)
    strategy.settled(prompt, Candidate(workers[0], Cost()), Outcome(ok=True), 1.0)
    strategy.forget("w0")
    assert strategy.restore_state(strategy.dump_state())
    assert (dict(strategy.gauges()), list(strategy.known_workers())) == ({}, [])


def test_a_class_that_is_no_strategy_is_refused() -> None:
    """When it is made, and by name."""
    with pytest.raises(TypeError, match=r"Stranger does not derive from strategies\.api\.Strategy"):
        registry.make("stranger", {})
