"""All policies of the routing benchmark by name: Warmroute's, baselines, peers, bounds."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from benchmarks.routing_booked import BookedSeconds
from benchmarks.routing.bounds import Shared, Shortest
from benchmarks.routing_exact import served
from benchmarks.routing.fleet import Seat
from benchmarks.routing.drive import Hold
from benchmarks.routing.peers import (
    AtRandom,
    BoundedLoad,
    LeastRequests,
    PowerOfTwo,
    Sticky,
)
from benchmarks.routing_preble import Preble
from benchmarks.routing.exact import (
    FlowAffinity,
    FlowScorers,
    Parked,
    QueuedDynamo,
    shortest,
)
from benchmarks.routing_ray import RayPrefix
from benchmarks.routing.exact import (
    Affinity,
    Brix,
    CacheAware,
    Conductor,
    Dynamo,
    KvAware,
    PrefixStack,
    Scorers,
)
from benchmarks.routing_smg import LeastLoad, SmgEvents, SmgTrees
from strategies.base import Strategy
from strategies.latebinding import LateBinding
from strategies.registry import make

#: The strategies that the goals apply to; `kvaware` knows caches exactly, as if from KV events.
OURS = ("prefixaware", "kvaware")


#: Seconds for which placements count as held, for peers that have such an option; as in llm-d.
AHEAD_S = 2.0


class Policy(NamedTuple):
    """One row of the tables."""

    name: str
    kind: str
    """`ours`, `plain` (knows no caches), `peer` (cache-aware), `bound` (cannot be implemented)."""
    make: Callable[[Sequence[Seat], int], Strategy]
    hold: Callable[[], Hold] | None = None
    usual: bool = True
    """It is run without being named. Others come near the best peer in no column, or hardly differ
    from another policy."""


def _ours(name: str, seats: Sequence[Seat], seed: int) -> Strategy:
    """One of Warmroute's strategies with default settings; it sees seats only as workers."""
    del seats, seed
    return make(name, {})


def _served(seats: Sequence[Seat], seed: int) -> Strategy:
    del seed
    return served(seats)


POLICIES = [
    Policy("prefixaware", "ours", partial(_ours, "prefixaware"), LateBinding),
    Policy("prefixaware, bound at once", "ours", partial(_ours, "prefixaware")),
    Policy("kvaware", "ours", _served, LateBinding),
    Policy("leastload", "ours", partial(_ours, "leastload"), LateBinding),
    Policy("booked seconds", "ours", BookedSeconds, LateBinding),
    Policy("round robin", "plain", partial(_ours, "roundrobin")),
    Policy("random", "plain", AtRandom),
    Policy("least requests", "plain", LeastRequests),
    Policy("power of two", "plain", PowerOfTwo),
    Policy("session sticky", "peer", Sticky),
    Policy("CHBL, 1 block", "peer", BoundedLoad),
    Policy("CHBL, 3 blocks", "peer", partial(BoundedLoad, blocks=3), usual=False),
    Policy("SGLang cache_aware", "peer", CacheAware),
    Policy("smg least_load", "peer", LeastLoad, usual=False),
    Policy("smg cache_aware", "peer", SmgTrees),
    Policy("smg cache_aware, events", "peer", SmgEvents, usual=False),
    Policy("production-stack prefixaware", "peer", PrefixStack),
    Policy("Ray Serve prefix-aware", "peer", RayPrefix),
    Policy("Ray Serve prefix-aware, 20 apart", "peer", partial(RayPrefix, apart=20.0), usual=False),
    Policy("AIBrix prefix-cache", "peer", Brix, usual=False),
    Policy("AIBrix prefix-cache, Helm", "peer", partial(Brix, apart=16, deviations=2.0)),
    Policy(
        "AIBrix prefix-cache, by the mean", "peer", partial(Brix, apart=7, means=2.0), usual=False
    ),
    Policy("Preble E2", "peer", Preble, usual=False),
    Policy("vllm-router kv_aware", "peer", KvAware),
    Policy("Dynamo, weight 1", "peer", Dynamo),
    Policy("Dynamo, weight 8", "peer", partial(Dynamo, weight=8.0), usual=False),
    Policy("Dynamo, weight 16", "peer", partial(Dynamo, weight=16.0)),
    Policy("Dynamo, weight 32", "peer", partial(Dynamo, weight=32.0)),
    Policy("Dynamo, weight 8, predicted", "peer", partial(Dynamo, weight=8.0, predicted_s=AHEAD_S)),
    Policy("Dynamo, weight 1, queue", "peer", QueuedDynamo, Parked, usual=False),
    Policy(
        "Dynamo, weight 16, queue", "peer", partial(QueuedDynamo, weight=16.0), Parked, usual=False
    ),
    Policy(
        "Dynamo, weight 16, shortest first",
        "peer",
        partial(QueuedDynamo, weight=16.0, threshold=0.0),
        partial(Parked, shortest),
    ),
    Policy(
        "Dynamo, weight 32, shortest first",
        "peer",
        partial(QueuedDynamo, weight=32.0, threshold=0.0),
        partial(Parked, shortest),
    ),
    Policy(
        "Dynamo, weight 8, predicted, shortest first",
        "peer",
        partial(QueuedDynamo, weight=8.0, predicted_s=AHEAD_S, threshold=2.0),
        partial(Parked, shortest),
    ),
    Policy("llm-d scorers 2:1:1", "peer", Scorers),
    Policy("llm-d scorers 3:2:2", "peer", partial(Scorers, weights=(3, 2, 2)), usual=False),
    Policy(
        "llm-d scorers 3:2:2, speculative",
        "peer",
        partial(Scorers, weights=(3, 2, 2), speculative_s=AHEAD_S),
    ),
    Policy(
        "llm-d scorers 3:2:2, flow control",
        "peer",
        partial(FlowScorers, weights=(3, 2, 2)),
        Parked,
        usual=False,
    ),
    Policy(
        "llm-d scorers 3:2:2, speculative, flow control",
        "peer",
        partial(FlowScorers, weights=(3, 2, 2), speculative_s=AHEAD_S),
        Parked,
    ),
    Policy("llm-d affinity filter", "peer", Affinity, usual=False),
    Policy(
        "llm-d affinity filter, in tokens, speculative",
        "peer",
        partial(Affinity, in_tokens=True, speculative_s=AHEAD_S),
    ),
    Policy(
        "llm-d affinity filter, in tokens, speculative, flow control",
        "peer",
        partial(FlowAffinity, in_tokens=True, speculative_s=AHEAD_S),
        Parked,
        usual=False,
    ),
    Policy("Mooncake Conductor", "peer", Conductor),
    Policy("shared cache, first come", "bound", Shared),
    Policy("shared cache, shortest first", "bound", Shared, Shortest),
]


def policy_named(name: str) -> Policy:
    """The policy of that name; raises ValueError that lists the known names."""
    for policy in POLICIES:
        if policy.name == name:
            return policy
    known = ", ".join(repr(policy.name) for policy in POLICIES)
    raise ValueError(f"no policy is called {name!r}; there are: {known}")
