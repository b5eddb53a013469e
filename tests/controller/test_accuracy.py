"""Blocks that an engine did not find where expected leave the index until announced again."""

from random import Random
from typing import Any

import pytest

from controller.events.source import EventSource
from controller.index.block_events import Tier
from controller.kv_memory import KvMemory
from strategies.api import Prompt
from strategies.cost.prefill import Held
from tests.controller.announcements import prompt, push, stored

CPU: dict[str, Any] = {"medium": "CPU"}
REMOTE: dict[str, Any] = {"medium": "STORAGE", "locality": "REMOTE"}
CLEARED = {"type": "AllBlocksCleared"}


def told(*events: dict[str, object]) -> tuple[KvMemory, EventSource]:
    """Return a memory with one worker that announced these events."""
    memory = KvMemory(1 << 24)
    source = memory.join("w")
    push(source, *events)
    return memory, source


def missed(memory: KvMemory, believed: Held, found: Held, *, sure: bool = True) -> Held:
    """Report what the worker found instead; return what is believed then."""
    memory.correct("w", prompt(), believed, found, sure=sure)
    return memory.held(prompt(), ["w"]).get("w", Held())


def test_what_was_not_on_l1_is_not_believed_again() -> None:
    """From where the worker stopped; what it did find stays."""
    memory, _ = told(stored(0, 2), stored(0, 8, **CPU))
    assert missed(memory, Held(32, 96), Held(32, 32)) == Held(32, 32)
    assert memory.misses.counts[next(iter(memory.misses.counts))] == 4


def test_it_may_have_been_loaded_from_l2_instead() -> None:
    """Then only L1 lost it; the GPU is never doubted, as its evictions are announced."""
    memory, _ = told(stored(0, 2), stored(0, 8, **CPU), stored(0, 8, **REMOTE))
    assert missed(memory, Held(32, 96), Held(32, 0, 96)) == Held(32, 0, 96)
    assert missed(memory, Held(32, 0, 96), Held()) == Held(32, 0, 0)


def test_what_is_announced_again_stays() -> None:
    """Whether it is announced again before the answer ends or after it."""
    memory, source = told(stored(0, 8, **CPU))
    push(source, stored(0, 8, **CPU))
    assert missed(memory, Held(0, 128), Held()) == Held(0, 128)
    assert missed(memory, Held(0, 128), Held()) == Held()
    push(source, stored(0, 8, **CPU))
    assert memory.held(prompt(), ["w"])["w"] == Held(0, 128)
    assert memory.index.holdings.copies == 0


def test_nobody_knows_which_rank_it_was() -> None:
    """So no rank's L1 is corrected, and misses of a worker without sources count for nothing."""
    memory, source = told(stored(0, 8, **CPU))
    other = memory.join("w", 1)
    push(other, stored(0, 8, **CPU))
    assert missed(memory, Held(0, 128), Held()) == Held(0, 128)
    memory.leave(other)
    assert missed(memory, Held(0, 128), Held()) == Held()
    push(memory.join("other"), stored(0, 8, **REMOTE))
    memory.leave(source)
    missed(memory, Held(0, 0, 128), Held())
    assert memory.held(prompt(), ["other"])["other"] == Held(0, 0, 128)


@pytest.mark.parametrize(("sure", "misses"), [(True, 2), (False, 4)])
def test_a_store_forgets_whichever_rank_it_was(sure: bool, misses: int) -> None:
    """All ranks would have loaded it from the store, whatever their GPUs hold. If only the sum is
    reported, two misses count as one; blocks announced again, however often, have to be missed once
    more."""
    memory, source = told(stored(0, 8, **REMOTE))
    other = memory.join("w", 1)
    push(other, stored(0, 8))
    for rank in (source, other, other):
        push(rank, stored(0, 8, **REMOTE))
    before = memory.held(prompt(), ["w"])["w"]
    assert before == Held(64, 0, 64)
    for number in range(misses):
        assert memory.held(prompt(), ["w"])["w"] == before, number
        missed(memory, before, Held(), sure=sure)
    assert memory.held(prompt(), ["w"])["w"] == Held(64)


def test_what_left_a_store_is_gone_whoever_wrote_it() -> None:
    """If two wrote the same block, the store has it once."""
    memory, source = told(stored(0, 8, **REMOTE))
    other = memory.join("w", 1)
    push(other, stored(0, 8, **REMOTE))
    names = [16000 + place for place in range(8)]
    push(source, {"type": "BlockRemoved", "block_hashes": names, **REMOTE})
    assert memory.held(prompt(), ["w"]) == {}
    assert memory.index.holdings.copies == 0


def test_ranks_own_disks_forget_where_all_must_have_lost_it() -> None:
    """If all ranks had it, one of them missed it: all are doubted, and the second miss removes it.
    If one never had it, that one may have been asked."""
    memory, source = told(stored(0, 8, medium="STORAGE"))
    other = memory.join("w", 1)
    for _ in range(4):
        assert missed(memory, Held(0, 0, 64), Held()) == Held(0, 0, 64)
    push(other, stored(0, 8, medium="STORAGE"))
    for left in (128, 0):
        assert missed(memory, Held(0, 0, 128), Held()) == Held(0, 0, left)
    for one in (source, other):
        push(one, stored(0, 1, medium="STORAGE"))
    assert memory.held(prompt(), ["w"])["w"] == Held(0, 0, 128)
    assert missed(memory, Held(0, 0, 128), Held(0, 0, 128)) == Held(0, 0, 128)


# What engines do not announce about their slower tiers, as observed with vLLM 0.32.


def removed(first: int, number: int, medium: str) -> dict[str, object]:
    """Announce that blocks left a tier."""
    names = [16_000 + place for place in range(first, first + number)]
    return {"type": "BlockRemoved", "block_hashes": names, "medium": medium}


def singly(*blocks: int, **more: Any) -> list[dict[str, object]]:
    """Announce each block in an event of its own, as offload tiers do."""
    return [stored(block, 1, **more) for block in blocks]


def answered(memory: KvMemory, asked: Prompt, cached: int, worker: str = "w") -> None:
    """Let the worker report its cached tokens twice."""
    for _ in range(2):
        believed = memory.held(asked, [worker]).get(worker, Held())
        memory.correct(worker, asked, believed, Held(cached), sure=False)


def test_blocks_of_slower_tiers_come_in_any_order() -> None:
    """Children may come before their parents, each in its own event."""
    for seed in range(20):
        memory = KvMemory(1 << 24)
        order = Random(seed).sample(range(8), 8)
        push(memory.join("w"), *singly(*order, **CPU), *singly(*order, **REMOTE))
        assert memory.held(prompt(), ["w"]) == {"w": Held(0, 128)}
        assert memory.index.waiting == 0


def test_a_salt_that_is_left_out_is_known_by_name() -> None:
    """vLLM gives the salt only with the GPU's first block; other tiers announce names and
    tokens."""
    memory = KvMemory(1 << 24)
    w, cold = memory.join("w"), memory.join("cold")
    push(w, stored(0, 8, extra_keys=[["s"], *[None] * 7]))
    push(w, *singly(5, 0, 7, 2, 1, 3, 4, 6, **CPU), *singly(5, 0, 7, 2, 1, 3, 4, 6, **REMOTE))
    push(w, removed(0, 8, "GPU"))
    push(cold, *singly(*range(8), **CPU))  # loaded from the store, before its GPU announces it
    names = ["w", "cold"]
    nothing = dict.fromkeys(names, Held())
    assert memory.held(prompt(salt="s"), names) == dict.fromkeys(names, Held(0, 128))
    assert {**nothing, **memory.held(prompt(), names)} == nothing


def test_a_chunk_of_which_the_first_block_is_known() -> None:
    """The other blocks follow it; a known name with another block size is not related."""
    memory = KvMemory(1 << 24)
    source = memory.join("w")
    push(source, stored(0, 1, extra_keys=[["s"]]), stored(0, 4, **CPU))
    assert memory.held(prompt(salt="s"), ["w"]) == {"w": Held(16, 48)}
    push(source, {**stored(0, 2, 32, **CPU), "block_hashes": [16_000, 32_001]})
    assert memory.held(prompt(), ["w"]) == {"w": Held(0, 64)}


def test_a_cleared_engine_keeps_its_slower_tiers() -> None:
    """`/reset_prefix_cache` only affects the GPU."""
    memory = KvMemory(1 << 24)
    source = memory.join("w")
    push(source, stored(0, 8), stored(0, 8, **CPU), stored(0, 8, **REMOTE), CLEARED)
    assert memory.held(prompt(), ["w"]) == {"w": Held(0, 128)}
    push(source, removed(0, 8, "CPU"))
    assert memory.held(prompt(), ["w"]) == {"w": Held(0, 0, 128)}


def test_what_is_told_again_after_a_clear_was_lost() -> None:
    """With `reset_external`, host memory is emptied without an event. A block announced again shows
    it: only what came since stays, and nothing is there twice."""
    memory = KvMemory(1 << 24)
    source = memory.join("w")
    push(source, *singly(*range(8), 0, 1, **CPU), CLEARED)
    other = {**stored(0, 1, **CPU), "block_hashes": [9], "token_ids": [7] * 16}
    push(source, other, *singly(3, 0, **CPU))
    assert memory.held(prompt(), ["w"]) == {"w": Held(0, 16)}
    assert memory.index.counts["gone without a word"] == 8
    push(source, *singly(1, 2, **CPU))
    assert memory.held(prompt(), ["w"]) == {"w": Held(0, 64)}
    place = memory.index.cache("w", Tier.L1)
    assert place is not None
    assert (place.blocks, place.copies, memory.index.holdings.copies) == (5, {}, 0)
    push(source, removed(0, 1, "CPU"))
    assert memory.held(prompt(), ["w"]) == {"w": Held()}


def test_a_clear_is_forgotten_when_much_has_come_since() -> None:
    """Blocks announced again later count as second copies, as usual; this bounds the names that are
    tracked."""
    memory = KvMemory(1 << 26)
    source = memory.join("w")
    push(source, stored(0, 8, **CPU), CLEARED)
    place = memory.index.cache("w", Tier.L1)
    assert place is not None
    for number in range(20_000):
        more = {"block_hashes": [99_000 + number], "token_ids": [number] * 16}
        push(source, {**stored(0, 1, **CPU), **more})
    push(source, stored(0, 8, **CPU))
    push(source, removed(0, 8, "CPU"))
    assert memory.held(prompt(), ["w"]) == {"w": Held(0, 128)}
    assert place.blocks == 20_008


def test_a_store_tells_of_nothing_that_leaves_it() -> None:
    """A worker that had to compute what the store was said to hold shows the loss, for all
    workers."""
    memory = KvMemory(1 << 24)
    push(memory.join("w"), stored(0, 8, **REMOTE))
    push(memory.join("other"))
    assert memory.held(prompt(), ["other"]) == {"other": Held(0, 0, 128)}
    answered(memory, prompt(), 48, "other")
    assert memory.held(prompt(), ["w"]) == {"w": Held(0, 0, 48)}
    assert memory.misses.counts[Tier.L2] == 1
    push(memory.sources["w"][0], stored(3, 1, **REMOTE))  # written anew, the others were there
    assert memory.held(prompt(), ["w"]) == {"w": Held(0, 0, 128)}


def test_a_gpu_is_believed_and_a_hosts_memory_nearly() -> None:
    """A GPU announces what it drops, so it is not corrected; host memory is, as LMCache's chunks
    are announced without their salt."""
    memory = KvMemory(1 << 24)
    source = memory.join("w")
    push(source, stored(0, 2), stored(0, 8, **CPU))
    answered(memory, prompt(), 48)
    assert memory.held(prompt(), ["w"]) == {"w": Held(32, 16)}
    answered(memory, prompt(), 0)
    assert memory.held(prompt(), ["w"]) == {"w": Held(32)}
    push(source, stored(3, 1, **CPU), CLEARED)
    assert memory.held(prompt(), ["w"]) == {"w": Held(0, 32)}
    push(source, stored(0, 1, **CPU), stored(0, 2))
    answered(memory, prompt(), 32)
    assert memory.held(prompt(), ["w"]) == {"w": Held(32)}
