"""The simulated workers of the routing benchmark, and what the router knows about each."""

from dataclasses import replace
from typing import NamedTuple

from simulator.profiles import Profile
from simulator.store import SharedStore
from simulator.strides import BLOCK_TOKENS, StrideEngine
from simulator.tiers import USUAL, Rates, Tiers
from strategies.load import Load
from strategies.pace import Curve, Pace


class Fleet(NamedTuple):
    """The number and kind of the simulated workers."""

    profile: Profile
    workers: int = 8
    cache_tokens: int | None = None
    """Tokens of prefixes that a worker caches; None: only its room for running requests."""
    block_tokens: int = BLOCK_TOKENS
    host_tokens: int = 0
    """Tokens of each worker's host memory tier (L1), whose loading takes time; 0: none."""
    store_tokens: int = 0
    """Tokens of a store (L2) that all workers share; 0: none."""
    rates: Rates = USUAL
    """How fast these tiers load."""


class Seat:
    """A worker: its engine, and what the router knows about it (a `WorkerView`)."""

    __slots__ = ("engine", "kv_tokens", "load", "name", "pace", "room_tokens")

    def __init__(self, name: str, engine: StrideEngine) -> None:
        self.name = name
        self.engine = engine
        cache = engine.cache
        self.kv_tokens: int | None = None
        """Its cache capacity as known to the router: None, as memory behind the GPU is not told."""
        self.room_tokens: int | None = cache.room * engine.block_tokens
        """Tokens of KV cache that running requests may use."""
        self.load = Load()
        self.pace = Pace()


def seats(fleet: Fleet) -> list[Seat]:
    """Create the workers of a fleet, which share a store and a curve, as those of a pool do."""
    store, curve = _store(fleet), Curve()
    found = [_seat(number, fleet, store) for number in range(fleet.workers)]
    for seat in found:  # as `Pool.change` does
        seat.pace.curve = curve
    return found


def _store(fleet: Fleet) -> SharedStore[int] | None:
    blocks = fleet.store_tokens // fleet.block_tokens
    return SharedStore(blocks) if blocks else None


def _seat(number: int, fleet: Fleet, store: SharedStore[int] | None) -> Seat:
    size = fleet.block_tokens
    tiers = None
    if fleet.host_tokens or store is not None:
        tiers = Tiers(size, fleet.host_tokens // size, store, fleet.rates)
    engine = StrideEngine(
        fleet.profile,
        cache_tokens=fleet.cache_tokens,
        block_tokens=size,
        tiers=tiers,
        noise_seed=number,
    )
    return Seat(f"w{number}", engine)


def times_as_fast(profile: Profile, fast: float) -> Profile:
    """Return the profile of a worker that takes as many times less for everything."""
    return replace(
        profile,
        prefill_tokens_per_s=profile.prefill_tokens_per_s * fast,
        t0_s=profile.t0_s / fast,
        ts_s=profile.ts_s / fast,
        tk_s=profile.tk_s / fast,
    )
