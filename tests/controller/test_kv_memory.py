"""The memory's answers: ranks, the last token, doubts, and track records."""

from typing import Any

import pytest

from controller.index.snapshot import decode_snapshot
from controller.kv_memory import KvMemory
from strategies.api import Outcome
from strategies.cost.prefill import Held
from tests.controller.announcements import batch, prompt, push, stored
from tests.controller.index.naive import dump


def test_ranks_are_averaged() -> None:
    """It is unknown which rank will get the prompt."""
    memory = KvMemory(1 << 24)
    push(memory.join("w", 0), stored(0, 8))
    push(memory.join("w", 1), stored(0, 4))
    assert memory.held(prompt(), ["w"]) == {"w": Held(96)}
    assert {rank: held.gpu for rank, held in memory.ranks(prompt(), "w").items()} == {0: 128, 1: 64}


def test_a_host_that_does_not_count_hides_no_store() -> None:
    """If L1 is off, blocks on both L1 and L2 count as L2, for the engine's own store and a shared
    one."""
    own: dict[str, Any] = {"medium": "STORAGE"}
    for store in (own, {**own, "locality": "REMOTE"}):
        memory = KvMemory(1 << 24)
        tiers = [
            stored(0, 2),
            stored(0, 6, medium="CPU"),
            stored(0, 8, **store),
        ]
        push(memory.join("w"), *tiers)
        assert memory.held(prompt(), ["w"]) == {"w": Held(32, 64, 32)}
        assert memory.held(prompt(), ["w"], l1=False) == {"w": Held(32, 0, 96)}
        memory.l1 = False
        assert memory.held(prompt(), ["w"]) == {"w": Held(32, 0, 96)}
        assert memory.held(prompt(), ["w"], l1=True) == {"w": Held(32, 64, 32)}


def test_the_last_token_is_always_computed() -> None:
    """If the prompt consists of full blocks, its last block on the GPU does not count; other tiers
    may load it."""
    memory = KvMemory(1 << 24)
    source = memory.join("w")
    push(source, stored(0, 8))
    assert memory.held(prompt(128), ["w"]) == {"w": Held(112)}
    push(source, stored(0, 8, medium="CPU"))
    assert memory.held(prompt(128), ["w"]) == {"w": Held(112, 16)}


def test_tiers_go_on_where_the_faster_one_ends() -> None:
    """Also with blocks of another size, and if the slower tier lacks the beginning."""
    memory = KvMemory(1 << 24)
    source = memory.join("w")
    push(source, stored(0, 2), stored(0, 3, 32, medium="CPU"), stored(0, 8, medium="STORAGE"))
    assert memory.held(prompt(), ["w"]) == {"w": Held(32, 64, 32)}
    removed = {"type": "BlockRemoved", "block_hashes": [32000], "medium": "CPU"}
    push(source, removed)
    assert memory.held(prompt(), ["w"]) == {"w": Held(32, 64, 32)}


def test_other_attention_is_not_mixed_up() -> None:
    """Sliding windows and states have blocks with the same names; removing those does not remove
    ours."""
    memory = KvMemory(1 << 24)
    source = memory.join("w")
    push(
        source,
        stored(0, 8, group_idx=1, kv_cache_spec_kind="full_attention"),
        stored(0, 8, group_idx=0, kv_cache_spec_kind="sliding_window"),
        {"type": "BlockRemoved", "block_hashes": [16000], "medium": "GPU", "group_idx": 0},
    )
    assert memory.held(prompt(), ["w"]) == {"w": Held(128)}
    assert source.refused == {"other attention": 1}


def test_salts_and_adapters_are_part_of_the_key() -> None:
    """The salt is only in the extra keys of the first block."""
    memory = KvMemory(1 << 24)
    salted = stored(0, 8, extra_keys=[["s"], *[None] * 7])
    push(memory.join("salted"), salted)
    push(memory.join("adapted"), stored(0, 8, lora_name="l", extra_keys=[["l"]] * 8))
    push(memory.join("seen"), stored(0, 8, extra_keys=[None, [["image", 0]], *[None] * 6]))
    names = ["salted", "adapted", "seen"]
    assert memory.held(prompt(), names) == {
        **dict.fromkeys(("salted", "adapted"), Held()),
        "seen": Held(16),
    }
    assert memory.held(prompt(salt="s"), names)["salted"] == Held(128)


def test_an_engines_odd_blocks_are_in_nobodys_way() -> None:
    """Prompts are cut into the most common block sizes; sizes without blocks are forgotten."""
    memory = KvMemory(1 << 24)
    push(memory.join("w"), stored(0, 8))
    odd = memory.join("odd")
    for size in (1, 2, 3, 5):
        push(odd, stored(0, 1, size))
    assert memory.sizes()[0] == 16
    assert memory.held(prompt(), ["w"]) == {"w": Held(128)}
    for size in (1, 2, 3, 5):
        push(odd, {"type": "BlockRemoved", "block_hashes": [size * 1000]})
    assert memory.sizes() == [16]
    push(odd, {"type": "AllBlocksCleared"})
    memory.index.forget("w")
    assert memory.sizes() == (16,), "as vLLM has it"


def test_a_snapshot_is_not_taken_over_for_who_has_spoken_since() -> None:
    """An engine already heard may be a new process, which also counts from 0; the others
    continue."""
    before = KvMemory(1 << 24)
    for worker in ("spoken", "quiet"):
        source = before.join(worker)
        for number in range(8):
            source.heard(number, batch(stored(number, 1)), 0.0)
    marks = {source.name: source.mark() for source in before.all_sources()}
    taken = dump(before.index, marks)
    memory = KvMemory(1 << 24)
    spoken, quiet = memory.join("spoken"), memory.join("quiet")
    spoken.heard(0, batch({"type": "AllBlocksCleared"}), 0.0)
    memory.adopt(*decode_snapshot(taken))
    assert memory.held(prompt(), ["spoken", "quiet"]) == {"spoken": Held(), "quiet": Held(128)}
    spoken.heard(1, batch(stored(0, 2)), 1.0)
    quiet.heard(8, batch({"type": "BlockRemoved", "block_hashes": [16007]}), 1.0)
    assert memory.held(prompt(), ["spoken", "quiet"]) == {"spoken": Held(32), "quiet": Held(112)}


def test_which_group_counts_is_in_a_snapshot() -> None:
    """Otherwise, removals of another group would be taken for this one's."""
    before = KvMemory(1 << 24)
    source = before.join("w")
    source.heard(0, batch(stored(0, 8, group_idx=1, kv_cache_spec_kind="full_attention")), 0.0)
    memory = KvMemory(1 << 24)
    taken = dump(before.index, {source.name: source.mark()})
    memory.adopt(*decode_snapshot(taken))
    again = memory.join("w")
    removed = {"type": "BlockRemoved", "block_hashes": [16000], "medium": "GPU", "group_idx": 0}
    again.heard(1, batch(removed), 1.0)
    assert memory.held(prompt(), ["w"]) == {"w": Held(128)}
    again.heard(2, batch(removed | {"group_idx": 1}), 2.0)
    assert memory.held(prompt(), ["w"]) == {"w": Held()}


def test_a_restart_that_the_stream_met_first_forgets_nothing_new() -> None:
    """Health checks may suggest it half a minute later; another restart after that counts again."""
    memory = KvMemory(1 << 24)
    source = memory.join("w")
    source.opened(0.0)

    def hear(*numbers: int) -> int:
        for number in numbers:
            source.heard(number, batch(stored(2 * number, 2)), 0.0)
        held = memory.held(prompt(), ["w"])
        return held["w"].gpu if held else 0

    assert hear(0, 1, 2) == 96
    assert hear(0, 1) == 64
    memory.forget("w")
    assert hear() == 64
    assert hear(2) == 96
    memory.forget("w")
    assert hear() == 0
    assert (hear(0, 1), hear(0)) == (64, 32)
    source.disconnected()
    memory.forget("w")  # the one that was met is not the last
    assert hear() == 0
    assert source.stream.counts == {"restart": 2, "worker was down": 2}


def answered(
    memory: KvMemory, predicted: int | None, cached: int, times: int, heard: int | None = None
) -> str:
    """Let the worker answer so often, with so many cached tokens of 9,000; return the doubt."""
    answer = Outcome(ok=True, prompt_tokens=9000, cached_tokens=cached)
    for _ in range(times):
        before = memory.heard("w") if heard is None else heard
        memory.observe("w", predicted, answer, before)
    return memory.doubt("w")


def test_doubts() -> None:
    """No source, no connection, silence, and wrong predictions cause doubts; each of them ends."""
    memory = KvMemory(1 << 24)
    assert memory.doubt("w") == "no events"
    source = memory.join("w")
    assert memory.doubt("w") == "not connected"
    push(source, stored(0, 8))
    assert memory.doubt("w") == ""
    source.disconnected()
    assert memory.doubt("w") == "not connected", "it may say what it likes, nobody hears"
    push(source)
    assert answered(memory, 0, 0, 6) == "silent"
    push(source, stored(0, 8))
    assert memory.doubt("w") == "", "at once"
    assert answered(memory, 0, 0, 1) == ""
    assert answered(memory, 5000, 8500, 20) == "disagrees"
    assert memory.track_records["w"].bias == pytest.approx(20 * 3500 / 27)
    assert answered(memory, 8500, 8500, 30) == ""


def test_one_event_may_be_of_many_prompts() -> None:
    """Answers to prompts sent before an event are no sign of silence; answers to later ones are."""
    memory = KvMemory(1 << 24)
    source = memory.join("w")
    push(source)
    before = memory.heard("w")
    push(source, stored(0, 8))
    assert answered(memory, None, 0, 20, before) == ""
    assert answered(memory, None, 0, 4) == "silent"


def test_engines_of_a_snapshot_that_never_join_are_forgotten() -> None:
    """Names change with every roll-out; what has joined, or is kept on purpose, stays."""
    before = KvMemory(1 << 24)
    for name in ("gone", "away", "back"):
        push(before.join(name), stored(0, 4))
    memory = KvMemory(1 << 24)
    memory.adopt(*decode_snapshot(dump(before.index, before.where())))
    memory.join("back")
    assert memory.absent() == {"gone", "away"}
    memory.forget_absent({"gone", "back"})
    assert memory.absent() == {"away"}
    assert {cache.worker for cache in memory.index.caches() if cache.blocks} == {"away", "back"}
    assert memory.where().keys() == {"away", "back"}
