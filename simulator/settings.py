"""What can be set of a simulated fleet."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.kv.events import Encoding
from simulator.kv.tiers import DEFAULT_RATES, Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """The number of workers in a fleet, and the settings they share."""

    workers: int = 1
    #: A name in `simulator.engine.profiles.PROFILES`.
    profile: str = "llama-3.1-8b-h100"
    #: The base model's names; the first is the canonical one.
    models: Sequence[str] = ("llama-3.1-8b",)
    #: LoRA adapters served beside it.
    adapters: Sequence[str] = ()
    #: Simulated seconds per real second.
    speed: float = 1.0
    host: str = "127.0.0.1"
    #: Port of the first worker, the others use the next ones; 0: any free ports.
    port: int = 0
    #: Tokens a KV block holds.
    block_size: int = 16
    #: Capacity of each KV cache in tokens; None: the profile's.
    kv_tokens: int | None = None
    #: Requests that may wait at a worker before it refuses more with 503; None: no limit.
    max_queued: int | None = None
    #: Capacity of each worker's host memory tier (L1) in tokens; 0: no such tier.
    host_tokens: int = 0
    #: Whether events about blocks in host memory carry hashes only, without tokens.
    bare_events: bool = False
    #: Capacity in tokens of the store (L2) that all workers share; 0: no store.
    store_tokens: int = 0
    #: URL of the Redis to use as the store; None: the store is in this process.
    store_url: str | None = None
    #: How fast each worker loads from host memory and from the store.
    rates: Rates = DEFAULT_RATES
    #: Seeds of the block hashes; workers take them in turn, so a single one serves all.
    hash_seeds: Sequence[str] = ("",)
    #: Whether workers publish KV events.
    kv_events: bool = True
    #: First of the event ports, two per worker: events, then replay; 0: any free ports.
    kv_port: int = 0
    #: How events are encoded: "map" as in vLLM since 0.24, "array" as before.
    kv_encoding: Encoding = "map"
    #: Model folder with tokenizer and chat template; None: the simulator's own.
    tokenizer: Path | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for settings that no fleet can have."""
        if self.workers < 1:
            raise ValueError("a fleet has at least one worker")
        if not 0 < self.speed < float("inf"):
            raise ValueError("speed must be a number above zero")
        if not self.models:
            raise ValueError("a worker serves at least one model")
        for first, each in ((self.port, 1), (self.kv_port, 2)):
            if first < 0 or first + each * self.workers > 65536:  # sockets would wrap around
                raise ValueError("ports are 0 (any) to 65535, those of all workers")
        if 0 < self.store_tokens < self.block_size:
            raise ValueError(f"a store holds at least one block of {self.block_size} tokens")
        if self.store_url is not None and not self.store_tokens:
            raise ValueError("a store at a URL needs a size, too: add --store-tokens")
