"""How engines compute the names of blocks, and whether they agree."""

from array import array

import pytest

from controller.index.agreement import (
    DEFAULT_SEED,
    HashAgreement,
    compare_hashes,
    hash_algorithm,
)
from controller.index.block_events import (
    BlockRemoved,
    BlockStored,
    FirstBlock,
    Tier,
    first_block,
)
from controller.index.index import Index

#: Numbers of every length that CBOR has.
IDS = array("I", [5, 300, 70000, 23, 24, 255, 256, 65536] * 2).tobytes()
#: What vLLM 0.32 calls this block (`hash_block_tokens`, `maybe_convert_block_hash`).
NAMES = {
    ("sha256", DEFAULT_SEED): 3822000880194540892,
    ("sha256_cbor", DEFAULT_SEED): 12138980732841903876,
    ("sha256", "0"): 5935525854550771375,
    ("sha256_cbor", "0"): 3963469647727601711,
    ("xxhash", "0"): 2194919175611371470,
    ("xxhash_cbor", "0"): 17772713111624323243,
    ("sha256", "42"): 1341542587849625242,
    ("xxhash_cbor", "42"): 11627267463707614602,
}


def stored(name: int, tokens: bytes = IDS) -> BlockStored:
    """One block of 16 tokens."""
    return BlockStored([name], None, tokens, 16, Tier.GPU, False, "", None, None, None)


@pytest.mark.parametrize(("algorithm", "seed"), NAMES)
def test_names_of_vllm_are_known(algorithm: str, seed: str) -> None:
    """All its algorithms are recognised, with the usual seeds."""
    told = "the default seed" if seed == DEFAULT_SEED else f"PYTHONHASHSEED={seed}"
    assert hash_algorithm(FirstBlock(NAMES[algorithm, seed], IDS)) == f"{algorithm}, {told}"


def test_other_names_are_not() -> None:
    """Not with an unknown seed or another block; seeds that are passed in are tried."""
    assert hash_algorithm(FirstBlock(NAMES["sha256", "0"], IDS), seeds=("7",)) == ""
    assert hash_algorithm(FirstBlock(NAMES["sha256", "0"] + 1, IDS)) == ""
    assert hash_algorithm(FirstBlock(NAMES["sha256", "0"], IDS[:-4])) == ""


def test_what_is_more_than_tokens_is_not_looked_at() -> None:
    """Blocks whose name covers more than tokens, that are not first, or not on the GPU are left
    out."""
    assert first_block(stored(1)) == FirstBlock(1, IDS)
    odd: tuple[dict[str, object], ...] = (
        {"parent": 5},
        {"extras": [["salt"]]},
        {"adapter": "a"},
        {"tier": Tier.L1},
        {"size": 0, "tokens": b""},
        {"size": 1 << 16},
        {"hashes": []},
    )
    for more in odd:
        assert first_block(stored(1)._replace(**more)) is None  # type: ignore[arg-type]


def test_engines_are_compared_by_what_they_have_in_common() -> None:
    """Names of removed blocks do not count, nor do blocks of a single engine."""
    index = Index(1 << 20)
    for engine, names in {"a": (1, 2), "b": (1, 3), "c": (4, 2), "d": ()}.items():
        for number, name in enumerate(names):
            index.store(engine, stored(name, bytes([number]) * 64))
    index.store("a", stored(9, b"9" * 64))
    index.store("d", stored(8, b"8" * 64))
    found = compare_hashes(index, ["a", "b", "c", "d"])
    assert found == {
        "a": HashAgreement(2, frozenset("bc")),
        "b": HashAgreement(2, frozenset("ac")),
        "c": HashAgreement(2, frozenset("ab")),
        "d": HashAgreement(0, frozenset()),
    }
    index.remove("c", BlockRemoved([4, 2], Tier.GPU, False, None))
    assert compare_hashes(index, ["a", "b", "c"])["c"] == HashAgreement(0, frozenset())
    assert compare_hashes(index, ["a", "b"])["a"] == HashAgreement(2, frozenset("b"))
    index.remove("b", BlockRemoved([3], Tier.GPU, False, None))
    assert compare_hashes(index, ["a", "b"])["a"] == HashAgreement(1, frozenset())
