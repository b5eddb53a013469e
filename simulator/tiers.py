"""Slower places for KV blocks behind the GPU: the host's memory (L1), a store for all (L2).

1. A prompt is looked up on the GPU, then on L1, then on L2, block after block; where none has the
   next block, computing begins.
2. What was computed is written to both.
3. What was loaded from L2 is kept on L1 from then on.
4. Each keeps what was used last. All blocks of a prompt are used when it is looked up, the last
   one first: so leaves go before what they hang on (vLLM `v1/kv_offload/lru_manager.py`, `touch`).

Pure: keys stand for blocks; seconds and moves are results.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from simulator.store import Lru, Store

K = TypeVar("K", bound=Hashable)

Medium = Literal["CPU", "STORAGE"]


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second that a worker loads from each tier."""

    l1: float = 200_000.0
    l2: float = 50_000.0

    def __post_init__(self) -> None:
        """Refuse what is no speed."""
        if not (self.l1 > 0 and self.l2 > 0):
            raise ValueError("tiers load some tokens a second")


#: Where nothing else is said: 26 and 6.5 GB/s for an 8B model (`profiles`: 131,072 bytes a token).
USUAL = Rates()


class Loaded(NamedTuple):
    """What a lookup found behind the GPU, in blocks, and how long loading them takes."""

    l1: int = 0
    l2: int = 0
    seconds: float = 0.0


class Move(NamedTuple):
    """A block came to a tier, or left it."""

    key: Hashable
    medium: Medium
    stored: bool


class Tiers(Generic[K]):
    """What one worker has besides its GPU."""

    def __init__(
        self,
        block_size: int,
        l1_blocks: int,
        store: Store[K] | None = None,
        rates: Rates = USUAL,
    ) -> None:
        """`l1_blocks` may be 0 for none; `store` is shared by whoever is given it."""
        self._l1_s = block_size / rates.l1
        self._l2_s = block_size / rates.l2
        self.l1: Lru[K] = Lru(l1_blocks)
        self.store = store

    def find(self, keys: Sequence[K], start: int, moves: list[Move] | None = None) -> Loaded:
        """Load what can be of a prompt's blocks from block `start` on; the GPU has those before.

        What came to L1 and what left it for that is added to `moves`, in order.
        """
        l1, at, number = self.l1, start, len(keys)
        from_l1 = from_l2 = 0
        while at < number:
            if keys[at] in l1:
                at += 1
                from_l1 += 1
                continue
            if self.store is None:
                break
            stop = at + 1
            while stop < number and keys[stop] not in l1:
                stop += 1
            found = self.store.held(keys[at:stop])
            self._keep(keys[at : at + found], moves)
            at += found
            from_l2 += found
            if at < stop:
                break
        for key in reversed(keys[:at]):
            l1.touch(key)
        return Loaded(from_l1, from_l2, from_l1 * self._l1_s + from_l2 * self._l2_s)

    def write(self, keys: Sequence[K], moves: list[Move] | None = None) -> None:
        """Copy newly computed blocks to both tiers; `moves` as in `find`."""
        self._keep(keys, moves)
        if self.store is not None:
            for key, new in zip(keys, self.store.write(keys), strict=True):
                if new and moves is not None:
                    moves.append(Move(key, "STORAGE", stored=True))

    def clear(self) -> None:
        """The host's memory is lost, as when the process ends."""
        self.l1.clear()

    def _keep(self, keys: Sequence[K], moves: list[Move] | None) -> None:
        l1 = self.l1
        if not l1.room:
            return
        for key in keys:
            if l1.touch(key):
                continue
            gone = l1.keep(key)
            if moves is not None:
                moves.append(Move(key, "CPU", stored=True))
                if gone is not None:
                    moves.append(Move(gone, "CPU", stored=False))
