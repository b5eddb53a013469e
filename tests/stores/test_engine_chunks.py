"""Names of LMCache in the engine's process, as LMCache 0.5.6 with vLLM 0.32 made them."""

from array import array
from typing import Any

import pytest
from pydantic import ValidationError
from redis import Redis

from controller.index.agreement import cbor_head
from router.kv.lmcache.names import NUMBER, EngineChunking, cbor_array, none_hash
from router.settings.fleet import LmcacheSettings
from tests.sessions.redis_server import RedisServer
from tests.stores.test_redis_chunks import check, held

#: 200 tokens of `org/model` in chunks of 64 on two GPUs: root and three full chunks.
TOKENS = list(range(100, 300))
RECORDED: dict[tuple[Any, str | None], tuple[int, list[str]]] = {
    ("sha256_cbor", "0"): (
        5625442194607170974,
        ["e55b5707b0d60a0c", "cb99eb961f4a6e78", "cd602569a421639b"],
    ),
    ("sha256_cbor", None): (
        11230124004819357437,
        ["2dd51a5a8e22fa26", "53cefc88f8c4fff1", "97751fe6d2d0e04b"],
    ),
    ("builtin", "123"): (
        -6197052367682486848,
        ["-69a33523dabe39f7", "1ae7e1609b517dde", "aa730ce59b3d65d"],
    ),
    ("sha256", "0"): (
        1834058204627357124,
        ["9a436751e0f56303", "f44b9dce1bd6c38a", "5efc47d4eccde0a7"],
    ),
}
ENGINE: dict[str, Any] = {"names": "engine", "hash": "sha256_cbor", "seed": "0", "gpus": 2}


@pytest.mark.parametrize(("how", "recorded"), RECORDED.items())
def test_recorded_names(how: tuple[Any, str | None], recorded: tuple[int, list[str]]) -> None:
    """The root and all names match, for each hash and seed."""
    function, seed = how
    assert none_hash(function, seed) == recorded[0]
    chunking = EngineChunking(64, 2, "org/model", function, seed)
    ids = array("I", TOKENS).tobytes()
    names = [f"{name}@bfloat16" for name in recorded[1]]
    assert list(chunking.names(ids, "")) == names
    assert list(chunking.names(ids[: 4 * 63], "")) == []
    assert list(chunking.names(ids, "salt")) == []
    key = f"org/model@2@0@{names[0]}"
    parts = [key, key.replace("@2@0@", "@2@1@")]
    assert list(chunking.keys("asked", names[0])) == [[f"{part}metadata" for part in parts], parts]
    other = EngineChunking(64, 1, None, function, seed, "half")
    (name, *_) = other.names(ids, "")
    assert other.keys("asked", name)[1] == [f"asked@1@0@{recorded[1][0]}@half"]


#: Appendix A of RFC 8949, and the limits of each width.
@pytest.mark.parametrize(
    ("number", "written"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (255, "18ff"),
        (256, "190100"),
        (65535, "19ffff"),
        (65536, "1a00010000"),
        (4294967295, "1affffffff"),
        (18446744073709551615, "1bffffffffffffffff"),
    ],
)
def test_numbers_in_cbor(number: int, written: str) -> None:
    """Numbers take as few bytes as possible, one by one and in arrays."""
    assert cbor_head(NUMBER, number).hex() == written
    if number < 1 << 32:
        assert cbor_array(array("I", [0, number, 0]).tobytes()).hex() == f"8300{written}00"


@pytest.mark.parametrize("part", ["metadata", ""])
def test_what_it_wrote_is_found(redis: RedisServer, part: str) -> None:
    """Chunks are found as written over Redis's own protocol or LMCache's."""
    recorded = RECORDED["sha256_cbor", "0"][1]
    with Redis(port=redis.port) as client:
        for name in recorded[:2]:
            client.set(f"toy@2@0@{name}@bfloat16{part}", b"x" * 64)
    assert held(redis, TOKENS, **ENGINE) == 0, "the other GPU's part is missing"
    with Redis(port=redis.port) as client:
        for name in recorded:
            client.set(f"toy@2@1@{name}@bfloat16{part}", b"x" * 64)
    assert held(redis, TOKENS, **ENGINE) == 128
    assert held(redis, [1, *TOKENS], **ENGINE) == 0
    assert held(redis, TOKENS, **{**ENGINE, "seed": "1"}) == 0
    assert held(redis, TOKENS) == 0


def test_other_names_are_said(redis: RedisServer) -> None:
    """Keys of another model size, type or naming scheme are reported."""
    with Redis(port=redis.port) as client:
        client.set("toy@2@0@1f9ab@bfloat16kv_bytes", bytes(64 * 512))
        client.set("toy@2@0@1f9ab@bfloat16metadata", b"1")
    assert check(redis, **ENGINE, model="toy") == ""
    with Redis(port=redis.port) as client:
        client.delete("toy@2@0@1f9ab@bfloat16kv_bytes")
    assert check(redis, **ENGINE, model="toy") == "", "it is seen by either part"
    assert check(redis, **{**ENGINE, "model": "other"}) == "", "it is somebody else's"
    for more, said in (
        ({"gpus": 1}, "of toy with 2 GPUs, bfloat16, named in the engine, and settings say toy"),
        ({"dtype": "half"}, "settings say toy with 2 GPUs, half, named in the engine"),
    ):
        assert said in check(redis, **{**ENGINE, "model": "toy", **more})
    assert "with 2 GPUs, bfloat16, named in the engine, and settings say" in check(
        redis, model="toy"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"hash": "builtin"}, "needs seed"),
        ({"seed": "x"}, "seed"),
        ({"seed": "4294967296"}, "4294967296 is beyond 4294967295"),
        ({"dtype": "a@b"}, "dtype"),
        ({"redis": None, "coordinator": "http://c:1"}, "needs redis"),
    ],
)
def test_settings_that_name_nothing(given: dict[str, Any], said: str) -> None:
    """The error names the field."""
    told = {"redis": "redis://r:1", "names": "engine", "hash": "sha256_cbor", **given}
    with pytest.raises(ValidationError, match=said):
        LmcacheSettings(**told)
