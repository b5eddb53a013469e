"""The paged KV cache: block names, reuse, eviction, and no blocks lost."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.kv.blocks import AllBlocksCleared, BlockRemoved, BlockStored, Chain, event_hash
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


def test_a_block_is_named_by_everything_before_it() -> None:
    """Equal blocks after different ones have different names."""
    assert chain(tokens(1, 2)).digests[1] != chain(tokens(3, 2)).digests[1]
    assert chain(tokens(1, 2)).digests == chain(tokens(1, 2, 5)).digests[:2]


def test_names_differ_by_adapter_and_by_salt() -> None:
    """Blocks cached for one tenant or adapter are not reused for another."""
    ids = tokens(1, 2)
    names = [chain(ids), chain(ids, lora="a"), chain(ids, salt="a"), chain(ids, lora="a", salt="b")]
    for block in range(2):
        assert len({each.digests[block] for each in names}) == 4


def test_a_chain_grown_token_by_token_equals_one_made_at_once() -> None:
    """Names do not depend on when they are computed."""
    ids, grown, so_far = tokens(1, 2, 3), Chain(SIZE, None, "s"), array("I")
    for token in ids:
        so_far.append(token)
        grown.extend(so_far)
    assert grown.digests == chain(ids, salt="s").digests


def test_what_was_computed_is_found_again_from_its_start() -> None:
    """Only equal blocks at the start of the prompt, without a gap, are reused."""
    cache = BlockCache(8, SIZE)
    table = store(cache, tokens(1, 2, 3))
    cache.release(table)
    assert cache.match(chain(tokens(1, 2, 9)).digests, 3) == table[:2]
    assert cache.match(chain(tokens(9, 2, 3)).digests, 3) == []
    assert cache.match(chain(tokens(1, 2, 3)).digests, 1) == table[:1]


def test_leaves_are_evicted_before_the_blocks_they_hang_on() -> None:
    """The last block of the least recently used prompt is evicted first."""
    cache = BlockCache(3, SIZE)
    ids = tokens(1, 2, 3)
    cache.release(store(cache, ids))
    cache.drain()
    names = chain(ids)
    for left in (2, 1, 0):
        table = cache.admit([], 1)
        assert table is not None
        assert cache.drain() == [BlockRemoved(event_hash(names.digests[left]))]
        assert len(cache.match(names.digests, 3)) == left


def test_the_prompt_used_last_is_evicted_last() -> None:
    """Being found in the cache counts as use."""
    cache = BlockCache(2, SIZE)
    old, new = tokens(1), tokens(2)
    cache.release(store(cache, old))
    cache.release(store(cache, new))
    cache.release(store(cache, old))
    cache.admit([], 1)
    assert cache.match(chain(old).digests, 1)
    assert not cache.match(chain(new).digests, 1)


def test_blocks_in_use_are_never_evicted() -> None:
    """A full cache refuses a request rather than take blocks from a running one."""
    cache = BlockCache(2, SIZE)
    table = store(cache, tokens(1, 2))
    assert cache.admit([], 1) is None
    assert not cache.grow(table)
    assert cache.free == 0


def test_matched_blocks_do_not_count_as_free_for_the_same_request() -> None:
    """The blocks a request reuses cannot also be evicted to make room for it."""
    cache = BlockCache(2, SIZE)
    ids = tokens(1, 2)
    cache.release(store(cache, ids))
    matched = cache.match(chain(ids).digests, 1)
    assert cache.admit(matched, 2) is None
    assert cache.admit(matched, 1) is not None


def test_events_tell_hashes_parent_tokens_and_extra_keys() -> None:
    """Stored blocks are announced once, with what a router needs to place them."""
    cache = BlockCache(8, SIZE)
    ids = tokens(1, 2, 3)
    names = chain(ids, lora="tuned", salt="tenant")
    table = cache.admit([], 3)
    assert table is not None
    cache.name(table, names, ids, 0, 1)
    cache.name(table, names, ids, 1, 3)
    first, second = cache.drain()
    hashes = [event_hash(digest) for digest in names.digests]
    assert first == BlockStored([hashes[0]], None, tokens(1), SIZE, "tuned", [["tuned", "tenant"]])
    assert second == BlockStored(
        hashes[1:], hashes[0], tokens(2, 3), SIZE, "tuned", [["tuned"], ["tuned"]]
    )
    assert cache.drain() == []


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
    assert cache.drain() == [BlockRemoved(event_hash(names.digests[0]))]


def test_a_reset_forgets_everything_unless_something_runs() -> None:
    """vLLM refuses to reset a prefix cache in use."""
    cache = BlockCache(4, SIZE)
    ids = tokens(1, 2)
    table = store(cache, ids)
    assert not cache.reset()
    cache.release(table)
    cache.drain()
    assert cache.reset()
    assert cache.drain() == [AllBlocksCleared()]
    assert not cache.match(chain(ids).digests, 2)
    assert cache.admit([], 4) is not None
    assert cache.drain() == []


@pytest.mark.parametrize(("blocks", "size"), [(0, 16), (4, 0)])
def test_a_cache_without_room_is_refused(blocks: int, size: int) -> None:
    """A cache without blocks is a mistake in the settings."""
    with pytest.raises(ValueError, match="at least one block"):
        BlockCache(blocks, size)


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
            if isinstance(change, BlockStored):
                assert not mirror & set(change.hashes)
                mirror |= set(change.hashes)
            elif isinstance(change, BlockRemoved):
                mirror.remove(change.hash)
        assert cache.used == len({block for table in running for block in table})
        assert cache.used + cache.free == cache.num_blocks
        assert len(mirror) == cache.cached
        assert all(users >= 0 for users in cache._users)
    for table in running:
        cache.release(table)
    assert cache.free == cache.num_blocks
