"""Any history of events leaves the index in the same state as a naive model."""

import tracemalloc
from array import array
from collections.abc import Sequence
from itertools import product
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from controller.index.block_events import BlockRemoved, BlockStored, Event, Mark, Tier
from controller.index.hash_table import TableSizes
from controller.index.index import Index
from controller.index.snapshot import BadSnapshot, with_checksum
from strategies.prefix.block_keys import even_chain, even_root
from tests.controller.index.naive import SIZE, Naive, depths, dump, restore

WORKERS = ("a", "b", "c")
TIERS = (Tier.GPU, Tier.L1)
#: Few different blocks, so that prompts share prefixes.
BLOCKS = st.integers(0, 2)
PROMPTS = st.lists(BLOCKS, min_size=1, max_size=9)
#: The prompt that ends with the block of each name given so far.
NAMED: dict[int, tuple[int, ...]] = {}


def ids(blocks: Sequence[int]) -> bytes:
    """Return the token ids of a prompt made of these blocks."""
    return array("I", [block for block in blocks for _ in range(SIZE)]).tobytes()


def name(worker: str, salt: str, blocks: Sequence[int]) -> int:
    """Return an engine's name for a block; each engine has its own."""
    number = hash((worker, salt, tuple(blocks))) & ((1 << 64) - 1)
    NAMED[number] = tuple(blocks)
    return number


def stored(worker: str, tier: Tier, salt: str, blocks: list[int], span: range) -> BlockStored:
    """Announce the blocks `span` of a prompt."""
    start, stop = span.start, span.stop
    return BlockStored(
        [name(worker, salt, blocks[: place + 1]) for place in range(start, stop)],
        name(worker, salt, blocks[:start]) if start else None,
        ids(blocks[start:stop]),
        SIZE,
        tier,
        False,
        salt,
        None,
        0,
        True,
    )


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, Event | Tier | None]:
    """One thing that an engine may announce, sensible or not."""
    worker, tier = draw(st.sampled_from(WORKERS)), draw(st.sampled_from(TIERS))
    salt, blocks = draw(st.sampled_from(("", "s"))), draw(PROMPTS)
    start = draw(st.integers(0, len(blocks) - 1))
    stop = draw(st.integers(start + 1, len(blocks)))
    kind = draw(st.sampled_from(("store",) * 6 + ("whole",) * 3 + ("remove",) * 6 + ("end",)))
    if kind == "store":
        return worker, stored(worker, tier, salt, blocks, range(start, stop))
    if kind == "whole":
        return worker, stored(worker, tier, salt, blocks, range(stop))
    if kind == "remove":
        gone = [name(worker, salt, blocks[: place + 1]) for place in range(start, stop)]
        return worker, BlockRemoved(draw(st.permutations(gone)), tier, False, None)
    return worker, draw(st.sampled_from((tier, None)))


def apply(index: Index | Naive, worker: str, change: Event | Tier | None) -> None:
    """Apply a change."""
    if isinstance(change, BlockStored):
        index.store(worker, change)
    elif isinstance(change, BlockRemoved):
        index.remove(worker, change)
    elif isinstance(change, Tier):
        index.clear(worker, change)
    else:
        index.forget(worker)


def prompts(history: list[tuple[str, Event | Tier | None]]) -> set[tuple[int, ...]]:
    """Return the prompts that these changes tell of, and others with the same blocks."""
    told = [one.hashes for _, one in history if isinstance(one, BlockStored | BlockRemoved)]
    found = {max((NAMED[number] for number in hashes), key=len) for hashes in told}
    found.update(first * 3 for first in product(range(3), repeat=3))
    return found


@settings(max_examples=200, deadline=None)
@given(
    st.lists(changes(), max_size=40),
    st.lists(PROMPTS, max_size=8),
    st.sampled_from((1, 2, 3, 512)),
    st.sampled_from((TableSizes(1, 0, 1), TableSizes(4, 2, 1), TableSizes(1 << 14, 1024))),
)
def test_any_history_leaves_the_index_as_the_model(
    history: list[tuple[str, Event | Tier | None]],
    asked: list[list[int]],
    longest: int,
    sizes: TableSizes,
) -> None:
    """Stores, removals, clears, duplicates, orphans and reordered parents, of several engines."""
    index, naive = Index(1 << 30, run_blocks=longest, sizes=sizes), Naive()
    for worker, change in history:
        apply(index, worker, change)
        apply(naive, worker, change)
    for prompt in (*asked, *prompts(history)):
        tokens = tuple(memoryview(ids(prompt)).cast("I"))
        for salt in ("", "s"):
            assert depths(index, salt, ids(prompt)) == naive.depths(salt, tokens)
            found = index.find(even_chain(even_root(salt, ""), ids(prompt), SIZE))
            for place in index.caches():
                for start in range(found.steps[-1][2] if found.steps else 0):
                    where = (place.worker, place.tier)
                    assert found.reach(place.bit, start) == naive.reach(where, salt, tokens, start)
    held = {where: len([n for n in held.values() if n]) for where, held in naive.held.items()}
    assert {(p.worker, p.tier): p.blocks for p in index.caches() if p.blocks} == {
        where: blocks for where, blocks in held.items() if blocks
    }
    assert index.holdings.holders == sum(held.values())
    assert index.holdings.copies == sum(len(place.copies) for place in index.caches())
    loose = (run.loose(place.bit) for run in index.holdings.tree.ring for place in index.caches())
    assert index.holdings.loose == sum(loose)


@settings(max_examples=60, deadline=None)
@given(st.lists(changes(), max_size=60))
def test_nothing_is_left_when_all_are_forgotten(
    history: list[tuple[str, Event | Tier | None]],
) -> None:
    """Counts of blocks, holders and bytes return to zero."""
    index = Index(1 << 30)
    for worker, change in history:
        apply(index, worker, change)
    for worker in WORKERS:
        index.forget(worker)
    assert (len(index), index.holdings.holders, index.waiting, index.bytes) == (0, 0, 0, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(changes(), max_size=40), st.lists(changes(), max_size=20))
def test_a_restored_index_goes_on_as_the_one_before(
    history: list[tuple[str, Event | Tier | None]], later: list[tuple[str, Event | Tier | None]]
) -> None:
    """Holders, names and copies are restored. Blocks that wait for parents are not: the history has
    none. A run that was cut does not grow again, but once restored it does; so later on, the same
    blocks may lie in other runs, and some that nobody holds may stay until those behind them go."""
    history = [
        (worker, change)
        for worker, change in history
        if not isinstance(change, BlockStored) or change.parent is None
    ]
    first, second = Index(1 << 30), Index(1 << 30)
    for worker, change in history:
        apply(first, worker, change)
    marks: dict[str, Mark] = {"a": (3, 4, 5, None), "b": (0, 0, 0, 1)}
    assert restore(second, dump(first, marks)) == marks
    assert (len(first), first.holdings.loose) == (len(second), second.holdings.loose)
    for worker, change in later:
        apply(first, worker, change)
        apply(second, worker, change)
    for prompt in prompts([*history, *later]):
        for salt in ("", "s"):
            assert depths(first, salt, ids(prompt)) == depths(second, salt, ids(prompt))
    assert first.holdings.holders == second.holdings.holders
    assert first.holdings.copies == second.holdings.copies
    for worker in WORKERS:
        second.forget(worker)
    assert (len(second), second.holdings.loose) == (0, 0)


@given(st.binary(max_size=60))
def test_a_bad_snapshot_is_refused(data: bytes) -> None:
    """Arbitrary bytes raise BadSnapshot, even with a checksum."""
    for damaged in (data, with_checksum(data)):
        with pytest.raises(BadSnapshot, match="snapshot"):
            restore(Index(1 << 30), damaged)


def test_a_snapshot_with_one_bit_changed_is_refused() -> None:
    """Damage is noticed wherever it is, also where it would make another valid index."""
    whole = Index(1 << 30)
    whole.store("a", stored("a", Tier.GPU, "", [1, 2, 0], range(3)))
    good = dump(whole, {})
    assert restore(Index(1 << 30), good) == {}
    for place in range(len(good)):
        damaged = bytearray(good)
        damaged[place] ^= 1
        with pytest.raises(BadSnapshot, match="damaged"):
            restore(Index(1 << 30), bytes(damaged))


def test_a_snapshot_that_lies_fills_nothing() -> None:
    """Whatever is wrong with it, the index stays empty, so another snapshot may be tried."""
    whole = Index(1 << 30)
    whole.store("a", stored("a", Tier.GPU, "", [1, 2, 0], range(3)))
    good = msgspec.msgpack.decode(dump(whole, {})[:-8])
    assert restore(Index(1 << 30), with_checksum(msgspec.msgpack.encode(good))) == {}
    (place,), (run,) = good["places"], good["runs"]
    keys, depth, size, parent, held = run
    odd: list[tuple[str, object]] = [
        ("runs", [run, run]),
        ("runs", [[b"", depth, size, parent, held]]),
        ("runs", [[keys, -1, size, parent, held]]),
        ("runs", [[keys, depth, 0, parent, held]]),
        ("runs", [[keys, depth, size, 5, held]]),
        ("runs", [[keys, depth, size, parent, [[7, 1, []]]]]),
        ("runs", [[keys, depth, size, parent, [[0, 9, []]]]]),
        ("runs", []),
        ("places", [[*place[:1], 9, *place[2:]]]),
        ("places", [[*place[:3], b"1234567", {}]]),
        ("places", [[*place[:3], bytes(8), {}]]),
    ]
    for field, value in odd:
        index = Index(1 << 30)
        with pytest.raises(BadSnapshot, match="snapshot"):
            restore(index, with_checksum(msgspec.msgpack.encode(good | {field: value})))
        assert (len(index), index.holdings.holders, list(index.caches())) == (0, 0, [])


def test_a_snapshot_is_cut_to_the_bound() -> None:
    """The snapshot comes from an index with a larger bound."""
    large, small = Index(1 << 30), Index(100_000)
    for number in range(1000):
        large.store("a", stored("a", Tier.GPU, "", [10 + number, 0, 1], range(3)))
    restore(small, dump(large, {}))
    assert 0 < small.bytes <= 100_000 < large.bytes


def test_a_name_that_is_given_twice_leaves_nothing_behind() -> None:
    """If a faulty engine reuses a name, nothing is left of its blocks once it is forgotten."""
    index = Index(1 << 30)
    for blocks in ([1], [2]):
        event = stored("a", Tier.GPU, "", blocks, range(1))
        index.store("a", event._replace(hashes=[7]))
    index.forget("a")
    assert (len(index), index.holdings.holders) == (0, 0)
    index.store("b", stored("b", Tier.GPU, "", [2], range(1)))
    assert depths(index, "", ids([1])) == {}


def test_a_name_of_what_is_gone_finds_nothing_else() -> None:
    """A block had two names and was replaced by another block: removing the old name again removes
    nothing."""
    index = Index(1 << 30)
    first, second = (stored("a", Tier.GPU, "", [1, 2], range(2)) for _ in range(2))
    index.store("a", first._replace(hashes=[1, 2]))
    index.store("a", second._replace(hashes=[1, 3]))
    index.remove("a", BlockRemoved([2, 3], Tier.GPU, False, None))
    index.store("a", stored("a", Tier.GPU, "", [1, 0], range(2))._replace(hashes=[1, 4]))
    index.remove("a", BlockRemoved([2], Tier.GPU, False, None))
    assert depths(index, "", ids([1, 0])) == {("a", Tier.GPU): 2}


def test_the_least_used_go_at_the_bound() -> None:
    """The bound is never exceeded, and prefixes that prompts look up stay."""
    index = Index(400_000)
    hot = stored("a", Tier.GPU, "", [1, 2, 0], range(3))
    index.store("a", hot)
    for number in range(3000):
        blocks = [10 + number, 0, 1]
        index.store("b", stored("b", Tier.GPU, "", blocks, range(3)))
        assert index.bytes <= 400_000
        if number % 100 == 0:
            assert depths(index, "", ids([1, 2, 0])) == {("a", Tier.GPU): 3}
    assert index.counts["dropped for room"] > 5000


@pytest.mark.long
@pytest.mark.parametrize(("workers", "run"), [(8, 64), (2, 1)])
def test_the_bound_holds_against_what_is_measured(workers: int, run: int) -> None:
    """In a full index, while blocks come, leave and are dropped, the memory measured is close to
    the bound."""
    limit, random = 1 << 19, Random(5)
    index = Index(limit)
    tracemalloc.start()
    try:
        for number in range(limit // 40 // run):
            event = stored_of(random.randbytes(4 * SIZE * run), SIZE)
            index.store(str(number % workers), event)
            if number % 3 == 0:
                index.remove(
                    str(number % workers), BlockRemoved(event.hashes, Tier.GPU, False, None)
                )
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert index.counts["dropped for room"] > 0
    assert 0.6 * limit < used < 1.15 * limit


def stored_of(tokens: bytes, size: int) -> BlockStored:
    """Announce the blocks of a prompt, with names of their own."""
    hashes = [xxh3_64_intdigest(tokens, number) for number in range(len(tokens) // 4 // size)]
    return BlockStored(hashes, None, tokens, size, Tier.GPU, False, "", None, None, None)


def test_what_a_gpu_tells_again_leaves_with_the_first_removal() -> None:
    """A GPU may announce again what it reused; an offloaded chunk that is announced again is there
    twice."""
    index = Index(1 << 30)
    for tier in TIERS:
        event = stored("a", tier, "", [1, 2], range(2))
        for _ in range(3):
            index.store("a", event)
        index.store("a", event._replace(tokens=b"", size=0))
        index.remove("a", BlockRemoved(event.hashes, tier, False, None))
    assert depths(index, "", ids([1, 2])) == {("a", Tier.L1): 2}
    index.store("a", stored("a", Tier.GPU, "", [1, 2], range(1)))
    index.store("a", stored("a", Tier.GPU, "", [1, 2], range(2)))
    index.remove("a", BlockRemoved([name("a", "", [1])], Tier.GPU, False, None))
    assert depths(index, "", ids([1]))["a", Tier.GPU] == 1, "with something new, it is a copy"
