"""All policies of the routing benchmark by name: Warmroute's, peers, bounds, and ideals."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from benchmarks.routing.bounds import IDEALS, idealised
from benchmarks.routing.cache_aware import (
    AHEAD_S,
    Affinity,
    Conductor,
    Dynamo,
    Parked,
    Scorers,
    VllmKvAware,
    shortest,
)
from benchmarks.routing.drive import EngineFleet, Hold, Seat, VirtualDrive, own_hold
from benchmarks.routing.peers import (
    AtRandom,
    BoundedLoad,
    Brix,
    LeastRequests,
    RayPrefix,
    SmgTrees,
    Sticky,
    TwoChoices,
)
from simulator.kv.stores import MemoryBlockStore
from strategies.api import Outcome, Prompt, Strategy
from strategies.cost.prefill import Held
from strategies.policies import kv_aware as kvaware
from strategies.registry import make

#: The strategies that the goals apply to; `kvaware` knows caches exactly, as if from KV events.
OURS = ("prefixaware", "kvaware")

#: Creates a policy for the seats of a fleet, with a random seed.
Maker = Callable[[Sequence[Seat], int], Strategy]


class Policy(NamedTuple):
    """One row of the tables."""

    name: str
    kind: str
    """`ours`, `plain` (knows no caches), `peer` (cache-aware), `bound` (no router), `ideal`."""
    make: Maker | None = None
    """None for a bound, which has one queue for all workers."""
    hold: Callable[[], Hold] | None = None
    everywhere: bool = False
    """Whether it also runs on the other engines; peers that come first nowhere do not."""
    shortest: bool = False
    """Of a bound: whether the shortest goes first."""
    infinite: bool = False
    """Of a bound: whether its cache is."""


class Exact:
    """A `strategies.api.KvMemoryView` that reads the simulated caches directly.

    It knows what workers hold on every tier, without the delay of events.
    """

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._seats = {seat.name: seat for seat in seats}

    def held(self, prompt: Prompt, workers: Sequence[str]) -> Mapping[str, Held]:
        """Look the prompt up in the caches."""
        found = {name: _held(self._seats[name], prompt) for name in workers}
        return {name: held for name, held in found.items() if held.total}

    def doubt(self, worker: str, prompt: Prompt | None = None) -> str:
        """No doubt: the caches are exact."""
        del worker, prompt
        return ""

    def heard(self, worker: str) -> int:
        """Always 0: there are no events, the caches are read directly."""
        return 0

    def observe(self, worker: str, predicted: int | None, outcome: Outcome, heard: int) -> None:
        """Do nothing: there is nothing to learn."""

    def correct(
        self, worker: str, prompt: Prompt, believed: Held, found: Held, *, sure: bool
    ) -> None:
        """Do nothing: there are no beliefs to correct."""

    def forget(self, worker: str) -> None:
        """Do nothing: the caches themselves are read."""


def _held(seat: Seat, prompt: Prompt) -> Held:
    engine, keys = seat.engine, prompt.keys
    size = engine.block_tokens
    stop = (prompt.tokens - 1) // size
    at = gpu = engine.cache.held(keys, stop)
    tiers = engine.tiers
    if tiers is None:
        return Held(gpu * size)
    host, store = tiers.l1, tiers.store
    while at < stop and keys[at] in host:
        at += 1
    l1 = at - gpu
    l2 = store.peek(keys[at:stop]) if isinstance(store, MemoryBlockStore) else 0
    return Held(gpu * size, l1 * size, l2 * size)


def _ours(name: str, seats: Sequence[Seat], seed: int) -> Strategy:
    """Return one of Warmroute's strategies with default settings; seats are only workers to it."""
    del seats, seed
    return make(name, {})


def _served(seats: Sequence[Seat], seed: int) -> Strategy:
    """Return `kvaware` with default settings, and the caches themselves as its memory."""
    del seed
    made = kvaware.KvAware(kvaware.KvAwareOptions())
    made.kv.memory = Exact(seats)
    return made


def _dynamo(weight: float, predicted_s: float = 0.0, threshold: float = 0.0) -> Maker:
    return partial(Dynamo, weight=weight, predicted_s=predicted_s, threshold=threshold)


POOLED = "one pooled cache, first come"
POOLED_SHORTEST = "one pooled cache, shortest first"
_PREFIXAWARE = partial(_ours, "prefixaware")

POLICIES = [
    Policy("prefixaware", "ours", _PREFIXAWARE, own_hold, everywhere=True),
    Policy("kvaware", "ours", _served, own_hold, everywhere=True),
    Policy("leastload", "ours", partial(_ours, "leastload"), own_hold),
    Policy("round robin", "plain", partial(_ours, "roundrobin"), everywhere=True),
    Policy("random", "plain", AtRandom),
    Policy("least requests", "plain", LeastRequests, everywhere=True),
    Policy("power of two", "plain", TwoChoices),
    Policy("consistent hashing, bounded load", "peer", BoundedLoad),
    Policy("session sticky", "peer", Sticky, everywhere=True),
    Policy("smg cache_aware", "peer", SmgTrees, everywhere=True),
    Policy("Ray Serve prefix-aware", "peer", RayPrefix),
    Policy("AIBrix prefix-cache", "peer", Brix),
    Policy("vllm-router kv_aware", "peer", VllmKvAware, everywhere=True),
    Policy(
        *("Dynamo, weight 16, shortest first", "peer", _dynamo(16.0)),
        partial(Parked, shortest),
        everywhere=True,
    ),
    Policy(
        *("Dynamo, weight 32, shortest first", "peer", _dynamo(32.0)),
        partial(Parked, shortest),
        everywhere=True,
    ),
    Policy(
        *("Dynamo, weight 8, predicted, shortest first", "peer", _dynamo(8.0, AHEAD_S, 2.0)),
        partial(Parked, shortest),
    ),
    Policy("llm-d scorers 3:2:2, flow control", "peer", Scorers, Parked, everywhere=True),
    Policy("llm-d affinity filter", "peer", Affinity, everywhere=True),
    Policy("Mooncake Conductor", "peer", Conductor, everywhere=True),
    Policy(POOLED, "bound", everywhere=True),
    Policy(POOLED_SHORTEST, "bound", shortest=True, everywhere=True),
    Policy("one infinite cache, first come", "bound", infinite=True),
    Policy("one infinite cache, shortest first", "bound", shortest=True, infinite=True),
    *(Policy(name, "ideal", partial(idealised, name, _PREFIXAWARE), own_hold) for name in IDEALS),
]

PEERS = tuple(policy.name for policy in POLICIES if policy.kind in {"plain", "peer"})


def router(policy: Policy, fleet: EngineFleet, seed: int) -> VirtualDrive:
    """Return a fleet with a policy, ready to run; raise ValueError for a bound."""
    make = policy.make
    if make is None:
        raise ValueError(f"{policy.name!r} is a bound, and no router")
    hold = None if policy.hold is None else policy.hold()
    return VirtualDrive(fleet, lambda seats: make(seats, seed), hold)


def policy_named(name: str) -> Policy:
    """Return the policy of that name; raise ValueError that lists the known names."""
    for policy in POLICIES:
        if policy.name == name:
            return policy
    known = ", ".join(repr(policy.name) for policy in POLICIES)
    raise ValueError(f"no policy is called {name!r}; there are: {known}")
