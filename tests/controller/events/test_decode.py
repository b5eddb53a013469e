"""Decoding of both encodings, of every field since vLLM 0.9.2, and of arbitrary bytes."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.events.decode import BadEvent, decode
from controller.index.block_events import AllBlocksCleared, BlockRemoved, BlockStored, Tier
from tests.fuzz import seeds

TOKENS = list(range(32))
STORED = {
    "type": "BlockStored",
    "block_hashes": [11, 12],
    "parent_block_hash": 10,
    "token_ids": TOKENS,
    "block_size": 16,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": "a",
    "extra_keys": [["a"], None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
}


def batch(*events: object, rank: object = 0) -> bytes:
    """Return a payload."""
    return msgspec.msgpack.encode([1.5, list(events), rank])


def one(event: object) -> BlockStored | BlockRemoved | AllBlocksCleared:
    """Return the only event of a payload."""
    (found,) = decode(batch(event)).events
    return found


def test_both_encodings_say_the_same() -> None:
    """Maps since 0.24, before that arrays with every field at a fixed place."""
    fields = [*list(STORED.values()), None]
    fields[0] = "BlockStored"
    found = one(STORED)
    assert one(fields) == found
    assert isinstance(found, BlockStored)
    assert (found.hashes, found.parent, found.size, found.tier) == ([11, 12], 10, 16, Tier.GPU)
    assert memoryview(found.tokens).cast("I").tolist() == TOKENS
    assert (found.adapter, found.extras, found.group, found.whole) == (
        *("a", [["a"], None]),
        *(0, True),
    )
    assert one(["BlockRemoved", [11], "CPU", 1]) == BlockRemoved([11], Tier.L1, False, 1)
    removed = {"type": "BlockRemoved", "block_hashes": [11], "medium": "CPU", "group_idx": 1}
    assert one(removed) == BlockRemoved([11], Tier.L1, False, 1)
    assert one(["AllBlocksCleared"]) == one({"type": "AllBlocksCleared"}) == AllBlocksCleared()


@pytest.mark.parametrize("length", range(5, 12))
def test_arrays_of_every_release(length: int) -> None:
    """Fields were added at the end; missing ones have their defaults."""
    fields = ["BlockStored", *list(STORED.values())[1:]][:length]
    found = one(fields)
    assert isinstance(found, BlockStored)
    assert (found.tier, found.adapter) == (Tier.GPU, "a" if length > 7 else "")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ([-1], [(1 << 64) - 1]),
        ([b"\x00" * 24 + b"\x01\x02\x03\x04\x05\x06\x07\x08"], [0x0102030405060708]),
        ([b"\x00" * 8 + b"\xff" * 8], [(1 << 64) - 1]),
        ([(1 << 64) - 1], [(1 << 64) - 1]),
    ],
)
def test_hashes_of_every_kind(given: list[object], read: list[int]) -> None:
    """Signed numbers of SGLang, digests of 32 and of 16 bytes, and unsigned numbers."""
    found = one({"type": "BlockRemoved", "block_hashes": given})
    assert isinstance(found, BlockRemoved)
    assert found.hashes == read


@pytest.mark.parametrize(
    ("medium", "tier"),
    [(None, Tier.GPU), ("cpu", Tier.L1), ("CPU", Tier.L1), ("STORAGE", Tier.L2), ("FS", Tier.L2)],
)
def test_media(medium: str | None, tier: Tier) -> None:
    """In upper or lower case; no medium means the GPU."""
    assert one({"type": "BlockRemoved", "block_hashes": [1], "medium": medium}) == BlockRemoved(
        [1], tier, False, None
    )


def test_what_is_unknown_is_passed_over() -> None:
    """Unknown fields, kinds of events and media are ignored and counted, each event by itself."""
    found = decode(
        batch(
            STORED | {"lookahead_token_ids": [[1]], "session_id": "s"},
            {"type": "BlockMoved"},
            ["BlockFound", 1],
            {"type": "BlockRemoved", "block_hashes": [1], "medium": "tape"},
            {"type": "BlockRemoved", "block_hashes": [1, "x"]},
            STORED | {"token_ids": ["x"]},
            STORED | {"token_ids": [-1]},
            *(STORED | {"token_ids": ids} for ids in (b"abc", b"a" * 128, "abc", {1: 2})),
            STORED | {"block_size": -1},
            7,
        )
    )
    assert len(found.events) == 1
    assert found.ignored == {
        "unknown kind": 2,
        "unknown medium": 1,
        "odd hashes": 1,
        "odd tokens": 6,
        "odd block size": 1,
        "not an event": 1,
    }


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.sampled_from([*STORED, "x"]) | st.text(max_size=3), inner, max_size=8)
    ),
    max_leaves=20,
)
NAMES = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"])
#: Almost valid events: some fields are arbitrary, and parents refer to known blocks.
ALMOST = st.builds(
    lambda hashes, parent, odd: {
        **seeds.STORED,
        "block_hashes": hashes,
        "parent_block_hash": parent,
        **odd,
    },
    st.lists(st.integers(10, 16), min_size=2, max_size=2),
    st.none() | st.integers(10, 16),
    st.dictionaries(st.sampled_from([*seeds.STORED][1:]), JUNK, max_size=3),
) | st.builds(
    lambda hashes, odd: {"type": "BlockRemoved", "block_hashes": hashes, **odd},
    st.lists(st.integers(10, 16), max_size=4),
    st.dictionaries(st.sampled_from(["medium", "group_idx", "locality"]), JUNK, max_size=1),
)
EVENTS = st.lists(
    ALMOST
    | st.builds(lambda kind, rest: [kind, *rest], NAMES, st.lists(JUNK, max_size=12))
    | st.builds(
        lambda kind, rest: {**rest, "type": kind},
        NAMES,
        st.dictionaries(st.sampled_from(list(STORED)), JUNK, max_size=11),
    ),
    max_size=5,
)


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=200)
    | JUNK.map(msgspec.msgpack.encode)
    | EVENTS.map(lambda events: batch(*events))
)
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x91" * 10_000)
@example(b"\x93\xcb" + b"\x00" * 8 + b"\x91\x81\xa4type\xa1\xff\xc0")
def test_any_bytes_are_taken_or_refused(payload: bytes) -> None:
    """Arbitrary bytes are decoded or raise Refused, and nothing else."""
    with suppress(BadEvent):
        found = decode(payload)
        assert found.ignored.total() <= len(payload)
