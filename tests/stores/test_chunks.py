"""The names of LMCache's chunks: as a real server made them."""

from array import array

import pytest

from router.stores.chunks import ENGINES, SERVERS, Chunking, digests

#: A prompt that was sent to vLLM 0.32 with LMCache 0.5.6, and what its first chunk of 64 was called
#: in the event: the last eight bytes of the digest.
IDS = array("I", [(5 * 37 + j * 7 + j // 50) % 7000 + 300 for j in range(800)])
RECORDED = 2374124787789390798


def test_a_recorded_name() -> None:
    """Computed from tokens alone; full chunks only, and no more than asked for."""
    named = digests(IDS.tobytes(), 64, 100)
    assert int.from_bytes(named[0][-8:], "big") == RECORDED
    assert len(named) == 12
    assert digests(IDS.tobytes(), 64, 5) == named[:5]
    assert digests(IDS.tobytes(), 801, 5) == []


def test_a_name_hangs_on_all_before_it() -> None:
    """And on nothing after it."""
    changed = array("I", IDS)
    changed[130] += 1
    one, other = digests(IDS.tobytes(), 64, 100), digests(changed.tobytes(), 64, 100)
    assert one[:2] == other[:2]
    assert set(one[2:]).isdisjoint(other[2:])


@pytest.mark.parametrize(("gpus", "rank"), [(1, "01000100"), (8, "08000800")])
def test_a_key_begins_with_model_and_rank(gpus: int, rank: str) -> None:
    """As `ObjectKey.ComputeKVRank` packs them, of the first GPU."""
    assert Chunking(256, gpus).prefix("asked") == f"asked@{rank}@0@"
    assert Chunking(256, gpus, "/models/x").prefix("asked") == f"/models/x@{rank}@0@"


def test_kinds_of_keys_are_told_apart() -> None:
    """Those of the server, those of an engine's own process, and others."""
    server = b"/models/a@b@01000100@0@" + b"ab" * 32
    engine = b"meta-llama/x@8@3@-1f9a@bfloat16"
    assert SERVERS.fullmatch(server)
    assert SERVERS.fullmatch(server + b"@tenant")
    assert not SERVERS.fullmatch(engine)
    assert ENGINES.fullmatch(engine)
    assert not ENGINES.fullmatch(b"warmroute:{pool}:used")
