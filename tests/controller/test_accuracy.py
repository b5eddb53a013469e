"""Blocks that an engine did not find where expected leave the index until announced again."""

from array import array
from typing import Any

import pytest

from controller.events.source import EventSource
from controller.kv_memory import KvMemory
from strategies.api import Prompt
from strategies.cost.tiers import Held
from strategies.prefix.block_keys import even_chain, even_root
from tests.controller.announcements import prompt, push, stored

CPU: dict[str, Any] = {"medium": "CPU"}
REMOTE: dict[str, Any] = {"medium": "STORAGE", "locality": "REMOTE"}


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


def test_a_store_forgets_for_everyone() -> None:
    """Stores do not announce evictions, so a miss counts for all workers."""
    memory, _ = told(stored(0, 8, **REMOTE))
    memory.join("other")
    assert missed(memory, Held(0, 0, 128), Held(0, 0, 64)) == Held(0, 0, 64)
    assert memory.held(prompt(), ["other"])["other"] == Held(0, 0, 64)


def test_a_sum_counts_the_second_time() -> None:
    """If only the sum is reported, a first miss may mean that loading was given up."""
    memory, _ = told(stored(0, 8, **CPU))
    for left in (128, 0):
        assert missed(memory, Held(0, 128), Held(), sure=False) == Held(0, left)


def test_what_is_announced_again_stays() -> None:
    """Whether it is announced again before the answer ends or after it."""
    memory, source = told(stored(0, 8, **CPU))
    push(source, stored(0, 8, **CPU))
    assert missed(memory, Held(0, 128), Held()) == Held(0, 128)
    assert missed(memory, Held(0, 128), Held()) == Held()
    push(source, stored(0, 8, **CPU))
    assert memory.held(prompt(), ["w"])["w"] == Held(0, 128)
    assert memory.index.holdings.copies == 0


def test_a_removal_that_comes_late_takes_nothing_else() -> None:
    """The name is still known, but its block has already been dropped."""
    memory, source = told(stored(0, 8), stored(0, 8, **CPU))
    missed(memory, Held(0, 128), Held())
    names = [16000 + place for place in range(8)]
    push(source, {"type": "BlockRemoved", "block_hashes": names, "medium": "CPU"})
    assert memory.held(prompt(), ["w"])["w"] == Held(128)
    assert sum(place.blocks for place in memory.index.caches()) == 8


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


def test_only_the_latest_misses_are_remembered() -> None:
    """Of many blocks that were missed once, the second miss of the first is a first one again."""
    memory, source = told()
    prompts = []
    for number in range(5000):
        ids = array("I", [number] * 16)
        hashes = {"block_hashes": [number], "token_ids": ids.tolist()}
        push(source, {**stored(0, 1, **CPU), **hashes})
        chain = even_chain(even_root("", ""), ids.tobytes(), 16)
        prompts.append(Prompt("m", 17, blocks={16: chain}))
    for asked in (*prompts, prompts[0], prompts[-1]):
        memory.correct("w", asked, Held(0, 16), Held(), sure=False)
    assert memory.held(prompts[0], ["w"])["w"] == Held(0, 16)
    assert memory.held(prompts[-1], ["w"]).get("w", Held()) == Held()


def test_a_prompt_without_blocks_of_that_size() -> None:
    """It says nothing about blocks of that size."""
    memory, _ = told(stored(0, 8, **CPU))
    memory.correct("w", Prompt("m", 129), Held(0, 128), Held(), sure=True)
    assert memory.held(prompt(), ["w"])["w"] == Held(0, 128)
