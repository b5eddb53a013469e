"""The fleet and routers of the seeds benchmark, with constants from published figures.

Seven replicas of Llama-3.1-70B, each on eight H100 (`simulator/engine/profiles.py`). Behind their
GPUs:

====================  ===================================================================
L1, 1.25 M tokens     a fifth of the 2 TiB of a p5.48xlarge, HyperPod's default share
L1, 610,000 tokens/s  200 GB/s: 40 % of eight PCIe 5.0 x16 links of 64 GB/s
L2, 8.7 M tokens      the same share of all seven replicas, as tiered storage pools it
L2, 47,600 tokens/s   15.6 GB/s: eight ranks of 1.95 GB/s each, as AWS measured reading from
                      tiered storage (56 ms for 1,900 tokens of Qwen2-7B, 57,344 bytes each)
Redis, 9,500          3.1 GB/s: the 25 Gb/s of one cache node; contention between readers is
tokens/s              left out, to Redis's advantage
====================  ===================================================================
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from benchmarks.routing.drive import EngineFleet, Hold, Seat, own_hold
from benchmarks.routing.peers import AtRandom
from benchmarks.routing.policies import Exact
from benchmarks.routing.workloads import Talk
from simulator.engine.profiles import PROFILES
from simulator.kv.tiers import Rates
from strategies.api import Candidate, Decision, Outcome, Prompt, Strategy, WorkerView
from strategies.policies.kv_aware import KvAware
from strategies.registry import make

PROFILE = PROFILES["llama-3.1-70b-8xh100"]
REPLICAS = 7
HOST_TOKENS = int(0.2 * 2 * 2**40) // PROFILE.kv_bytes
STORE_TOKENS = REPLICAS * HOST_TOKENS
_HOST_BYTES_PER_S, _POOL_BYTES_PER_S, _REDIS_BYTES_PER_S = 200e9, 15.6e9, 3.1e9
TIERED = Rates(_HOST_BYTES_PER_S / PROFILE.kv_bytes, _POOL_BYTES_PER_S / PROFILE.kv_bytes)
REDIS = Rates(_HOST_BYTES_PER_S / PROFILE.kv_bytes, _REDIS_BYTES_PER_S / PROFILE.kv_bytes)


class TierSetup(NamedTuple):
    """A combination of tiers."""

    name: str
    rates: Rates | None

    def fleet(self, block_tokens: int) -> EngineFleet:
        """Return the fleet with these tiers and blocks of `block_tokens` tokens."""
        if self.rates is None:
            return EngineFleet(PROFILE, REPLICAS, block_tokens=block_tokens)
        return EngineFleet(
            *(PROFILE, REPLICAS, None, block_tokens, HOST_TOKENS, STORE_TOKENS, self.rates)
        )


BARE = TierSetup("GPU", None)
SETUPS = [BARE, TierSetup("L1+L2", TIERED), TierSetup("L1+L2, Redis", REDIS)]


class RouterSetup(NamedTuple):
    """A strategy with default settings; `make` creates it for seats and a seed."""

    name: str
    make: Callable[[Sequence[Seat], int], Any]
    hold: Callable[[], Hold] | None = None
    redis: bool = False
    """Whether it is also run with Redis as the store."""


class BoundSession(Strategy):
    """The strategy `session`, with the table of sessions that the router keeps for it."""

    def __init__(self) -> None:
        self._under: Strategy = make("session", {})
        self._session = 0
        self._homes: dict[int, str] = {}
        self.capabilities = self._under.capabilities

    def about(self, talk: Talk) -> None:
        """Note the session of the next request."""
        self._session = talk.session

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Rank with the worker that the session is bound to, then bind it to the first choice."""
        bound = msgspec.structs.replace(prompt, bound=self._homes.get(self._session, ""))
        decision = self._under.rank(bound, workers, now)
        self._homes[self._session] = decision.candidates[0].worker.name
        return decision

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Delegate to the strategy."""
        self._under.placed(prompt, worker, now)

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Delegate to the strategy."""
        self._under.settled(prompt, candidate, outcome, now)

    def forget(self, worker: str) -> None:
        """Delegate to the strategy."""
        self._under.forget(worker)


def _kvaware(seats: Sequence[Seat], seed: int) -> Strategy:
    del seed
    strategy = make("kvaware", {})
    assert isinstance(strategy, KvAware)  # noqa: S101 - narrows the type
    strategy.kv.memory = Exact(seats)
    return strategy


def _stock(name: str, seats: Sequence[Seat], seed: int) -> Strategy:
    """One of Warmroute's strategies, which sees workers only as the router does."""
    del seats, seed
    return make(name, {})


def _session(seats: Sequence[Seat], seed: int) -> BoundSession:
    del seats, seed
    return BoundSession()


BASELINE = RouterSetup("random", AtRandom)
ROUTERS = [
    BASELINE,
    RouterSetup("roundrobin", partial(_stock, "roundrobin")),
    RouterSetup("session", _session),
    RouterSetup("prefixaware", partial(_stock, "prefixaware"), own_hold),
    RouterSetup("kvaware", _kvaware, own_hold, redis=True),
]
