"""Built-in strategies are found by their names, and leave no worker out."""

from importlib.metadata import EntryPoints, entry_points

import pytest

from strategies import registry
from strategies.api import Candidate, Cost, Outcome
from strategies.registry import find, names
from tests.strategies.placing import LONG, Run, fleet, prompt


def test_the_built_in_strategies_are_found_by_name() -> None:
    """Strategies are found by their entry points; the error for an unknown name lists them."""
    assert {"roundrobin", "leastload", "prefixaware"} <= set(names())
    with pytest.raises(KeyError, match=r"leastload, .*prefixaware, roundrobin"):
        find("nearest")


def test_packages_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes milliseconds, and a reload asks dozens of times; new ones in `sys.path` count."""
    looked = list[str]()

    def look(*, group: str) -> EntryPoints:
        looked.append(group)
        return entry_points(group=group)

    monkeypatch.setattr(registry, "entry_points", look)
    monkeypatch.syspath_prepend("/nowhere")
    for name in names():
        find(name)
    assert looked == [registry.GROUP]
    monkeypatch.syspath_prepend("/nowhere/else")
    find("roundrobin")
    assert looked == [registry.GROUP] * 2


@pytest.mark.parametrize("name", ["roundrobin", "leastload", "prefixaware"])
def test_every_worker_is_a_candidate(name: str) -> None:
    """Failover takes the next candidate, so every worker must be listed exactly once."""
    run = Run(name, fleet(5))
    run.place(prompt(LONG))
    decision = run.strategy.rank(prompt(LONG), run.workers, 0.0)
    assert sorted(c.worker.name for c in decision.candidates) == [w.name for w in run.workers]
    candidate = Candidate(run.workers[0], Cost())
    run.strategy.settled(prompt(LONG), candidate, Outcome(ok=True), 1.0)
