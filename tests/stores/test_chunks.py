"""The names of LMCache's chunks, compared with a recorded one."""

from array import array

import pytest

from router.kv.lmcache.names import Chunking, Kind, digests, kind_of

#: A prompt that was sent to vLLM 0.32 with LMCache 0.5.6, and the name of its first chunk of 64
#: tokens in the KV event: the last eight bytes of the digest.
IDS = array("I", [(5 * 37 + j * 7 + j // 50) % 7000 + 300 for j in range(800)])
RECORDED = 2374124787789390798


def test_a_recorded_name() -> None:
    """Names depend only on tokens; only full chunks have one, and no more than asked are made."""
    named = digests(IDS.tobytes(), 64, 100)
    assert int.from_bytes(named[0][-8:], "big") == RECORDED
    assert len(named) == 12
    assert digests(IDS.tobytes(), 64, 5) == named[:5]
    assert digests(IDS.tobytes(), 801, 5) == []


def test_a_name_hangs_on_all_before_it() -> None:
    """It depends on no token after the chunk."""
    changed = array("I", IDS)
    changed[130] += 1
    one, other = digests(IDS.tobytes(), 64, 100), digests(changed.tobytes(), 64, 100)
    assert one[:2] == other[:2]
    assert set(one[2:]).isdisjoint(other[2:])


@pytest.mark.parametrize("chunks", [0, 1, 15, 16, 33])
def test_names_are_made_as_they_are_wanted(chunks: int) -> None:
    """A few are made at a time, and they equal those made all at once."""
    ids = array("I", range(16 * chunks + 15)).tobytes()
    names = list(Chunking(16).names(ids, "salt"))
    assert names == [f"{digest.hex()}@salt" for digest in digests(ids, 16, 1000)]
    assert len(names) == chunks


@pytest.mark.parametrize(("gpus", "rank"), [(1, "01000100"), (8, "08000800")])
def test_a_key_begins_with_model_and_rank(gpus: int, rank: str) -> None:
    """The rank is that of the first GPU, packed as in `ObjectKey.ComputeKVRank`."""
    assert Chunking(256, gpus).prefix("asked") == f"asked@{rank}@0@"
    assert Chunking(256, gpus, "/models/x").prefix("asked") == f"/models/x@{rank}@0@"
    keys = ["m@03000300@0@d", "m@03010301@0@d", "m@03020302@0@d"]
    assert Chunking(256, 3).keys("m", "d") == (keys,), "as LMCache looks them up"


def test_kinds_of_keys_are_told_apart() -> None:
    """Keys of LMCache's server, of LMCache in an engine's process, and others."""
    server = b"/models/a@b@01000100@0@" + b"ab" * 32
    engine = b"meta-llama/x@8@3@-1f9a@bfloat16"
    assert kind_of(server) == kind_of(server + b"@tenant") == Kind("/models/a@b", 1)
    for part in (b"", b"metadata", b"kv_bytes"):
        assert kind_of(engine + part) == Kind("meta-llama/x", 8, "bfloat16")
    assert kind_of(b"warmroute:{pool}:used") is None
    assert kind_of(b"m@8@3@-1f9a") is None
    assert str(Kind("a\x1b", 2)) == "a? with 2 GPUs, named by the server"
