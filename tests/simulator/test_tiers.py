"""L1 and L2 of a simulated worker: lookup order, what is written where, what is promoted."""

from array import array

import pytest

from simulator.engine.core import Engine
from simulator.engine.profiles import PROFILES
from simulator.engine.request import EngineRequest
from simulator.kv.blocks import Change, RemovedEvent, StoredEvent
from simulator.kv.stores import MemoryBlockStore
from simulator.kv.tiers import Offloading, Rates, Tiers

SIZE = 4


class Bench:
    """An engine of 8 blocks of 4 tokens, with a host tier of `l1` blocks and a store."""

    def __init__(self, l1: int, store: MemoryBlockStore[bytes] | None) -> None:
        self.tiers = Tiers(SIZE, l1, store)
        self.engine = Engine(
            PROFILES["toy"],
            block_size=SIZE,
            kv_tokens=8 * SIZE,
            tiers=Offloading(self.tiers, SIZE),
        )
        self.changes: list[Change] = []
        self._count = 0

    def ask(self, first: int, tokens: int = 22) -> tuple[int, int, int]:
        """Run a prompt of tokens from `first` on; return how many were cached, from L1, and from
        L2."""
        self._count += 1
        prompt = array("I", range(first, first + tokens))
        request = EngineRequest(str(self._count), prompt, array("I", [1]))
        before = self.engine.totals.l1_hits, self.engine.totals.l2_hits
        self.engine.add(request, 0.0)
        while self.engine.busy:
            self.changes += self.engine.step().changes
        after = self.engine.totals.l1_hits, self.engine.totals.l2_hits
        return request.cached_tokens or 0, after[0] - before[0], after[1] - before[1]

    def media(self, kind: type[StoredEvent] | type[RemovedEvent]) -> list[str]:
        """Return the media of all blocks stored or removed so far."""
        return [one.medium for one in self.changes if isinstance(one, kind)]


def test_gpu_then_l1_then_l2_then_compute() -> None:
    """Computed, then from L1, then from L2 and promoted, then from L1 again: row K1 of
    docs/hyperpod.md."""
    bench = Bench(l1=5, store=MemoryBlockStore(100))
    assert bench.ask(0) == (0, 0, 0)
    assert bench.ask(0) == (20, 0, 0)
    bench.engine.reset_prefix_cache()
    assert bench.ask(0) == (20, 20, 0)
    bench.ask(1000)  # the GPU and L1 each have room for little more than one prompt
    bench.ask(2000)
    assert bench.ask(0) == (20, 0, 20)
    bench.engine.reset_prefix_cache()
    assert bench.ask(0) == (20, 20, 0)


def test_written_to_both_and_told_of() -> None:
    """Each full block goes to the host and to the store, and the store announces it once: row K2 of
    docs/hyperpod.md."""
    store = MemoryBlockStore[bytes](100)
    one, other = Bench(10, store), Bench(10, store)
    one.ask(0)
    assert (len(one.tiers.l1), len(store)) == (5, 5)
    media = one.media(StoredEvent)
    assert (media.count("CPU"), media.count("STORAGE")) == (5, 5)
    assert other.ask(0) == (20, 0, 20)
    assert other.media(StoredEvent).count("STORAGE") == 0
    assert other.media(StoredEvent).count("CPU") == 5


def test_the_host_tells_what_went() -> None:
    """The host tier announces evictions; the store does not."""
    bench = Bench(l1=5, store=MemoryBlockStore(5))
    bench.ask(0)
    bench.ask(1000)
    assert bench.media(RemovedEvent).count("CPU") == 5
    assert bench.media(RemovedEvent).count("STORAGE") == 0


def test_a_whole_prompt_may_come_from_behind() -> None:
    """A prompt found in full is reported in full, as in vLLM; its last token is computed all the
    same."""
    bench = Bench(l1=10, store=None)
    assert bench.ask(0, 20) == (0, 0, 0)
    assert bench.ask(0, 20)[0] == 20  # four from the GPU, the last from the host
    bench.engine.reset_prefix_cache()
    assert bench.ask(0, 20) == (20, 20, 0)


def test_loading_takes_its_time() -> None:
    """At each tier's own rate; a gap on L1 is filled from L2."""
    store = MemoryBlockStore[int](100)
    tiers = Tiers[int](10, 100, store, Rates(l1=1000.0, l2=100.0))
    tiers.write(range(6))
    assert tiers.find(range(8), 1) == pytest.approx((5, 0, 0.05))
    tiers.clear()
    tiers.write([3])
    assert tiers.find(range(8), 0) == pytest.approx((1, 5, 0.51))
    assert tiers.find(range(8), 0) == pytest.approx((6, 0, 0.06))
