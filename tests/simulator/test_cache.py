"""The paged KV cache: block names, reuse, eviction, and no blocks lost."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from simulator.kv.blocks import Chain, RemovedEvent, StoredEvent, event_hash
from simulator.kv.cache import BlockCache

SIZE = 4


def tokens(*ids: int) -> array[int]:
    """Return token ids in which each given id fills a whole block."""
    return array("I", [token for token in ids for _ in range(SIZE)])


def chain(ids: array[int], lora: str | None = None, salt: str | None = None) -> Chain:
    """Return the names of all full blocks."""
    made = Chain(SIZE, lora, salt)
    made.extend(ids)
    return made


def store(cache: BlockCache, ids: array[int]) -> list[int]:
    """Compute a prompt as an engine would, and return its block table."""
    names = chain(ids)
    matched = cache.match(names.digests, len(names.digests))
    table = cache.admit(matched, len(names.digests) - len(matched))
    assert table is not None
    cache.name(table, names, ids, len(matched), len(names.digests))
    return table


def test_what_was_computed_is_found_again_from_its_start() -> None:
    """Only equal blocks at the start of the prompt, without a gap, are reused."""
    cache = BlockCache(8, SIZE)
    table = store(cache, tokens(1, 2, 3))
    cache.release(table)
    assert cache.match(chain(tokens(1, 2, 9)).digests, 3) == table[:2]
    assert cache.match(chain(tokens(9, 2, 3)).digests, 3) == []
    assert cache.match(chain(tokens(1, 2, 3)).digests, 1) == table[:1]


def test_a_block_computed_twice_is_announced_and_removed_once() -> None:
    """Two requests that compute the same prompt at once leave one named block behind."""
    cache = BlockCache(2, SIZE)
    ids = tokens(1)
    names = chain(ids)
    tables = [cache.admit([], 1), cache.admit([], 1)]
    for table in tables:
        assert table is not None
        cache.name(table, names, ids, 0, 1)
    assert len(cache.drain()) == 1
    for table in tables:
        assert table is not None
        cache.release(table)
    cache.admit([], 2)
    assert cache.drain() == [RemovedEvent(event_hash(names.digests[0]))]


@given(
    st.lists(
        st.tuples(st.booleans(), st.lists(st.integers(0, 2), min_size=1, max_size=5)), max_size=40
    )
)
def test_blocks_are_neither_lost_nor_shared_by_mistake(
    plan: list[tuple[bool, list[int]]],
) -> None:
    """Whatever is stored and released, counts add up and the events mirror what is cached."""
    cache = BlockCache(8, SIZE)
    running: list[list[int]] = []
    mirror: set[int] = set()
    for release, ids in plan:
        if release and running:
            cache.release(running.pop(0))
        else:
            prompt = tokens(*ids)
            names = chain(prompt)
            matched = cache.match(names.digests, len(ids) - 1)
            table = cache.admit(matched, len(ids) - len(matched))
            if table is not None:
                cache.name(table, names, prompt, len(matched), len(ids))
                running.append(table)
        for change in cache.drain():
            if isinstance(change, StoredEvent):
                assert not mirror & set(change.hashes)
                mirror |= set(change.hashes)
            elif isinstance(change, RemovedEvent):
                mirror.remove(change.hash)
        assert cache.used == len({block for table in running for block in table})
        assert cache.used + cache.free == cache.num_blocks
        assert len(mirror) == cache.cached
    for table in running:
        cache.release(table)
    assert cache.free == cache.num_blocks
