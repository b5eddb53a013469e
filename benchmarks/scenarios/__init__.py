"""Situations that a fleet must survive well: `python -m benchmarks.scenarios`.

A scenario is one that users of other routers have complained about, or that operators meet sooner
or later. It runs on the virtual clock of `benchmarks.routing` and returns checks: numbers, each
with a bound. `fleet` has those of workers that come, leave, are slow or restart; `crowd` those of
hot prefixes, bursts and large fleets; `cache` those of caches that are small or misreported;
`checks` what they measure by. Comparisons of strategies over whole workloads are in
`benchmarks.routing`.
"""

from collections.abc import Sequence

from benchmarks.scenarios import cache, crowd, fleet
from benchmarks.scenarios.checks import Check, Scenario

SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        *(fleet.scale_out, fleet.slow_worker),
        *(fleet.slow_in_bursts, fleet.restart),
        *(crowd.hot_prefix, crowd.large_prefix, crowd.new_prefix),
        *(crowd.cold_siblings, crowd.all_at_once, crowd.fleets),
        *(cache.tight, cache.wrong_capacity, cache.lies),
        *(cache.churn, cache.long_documents),
    )
}


def checks_of(run: tuple[str, float]) -> Sequence[Check]:
    """Run the scenario of a name at a size; return its checks."""
    name, size = run
    return SCENARIOS[name](size)
