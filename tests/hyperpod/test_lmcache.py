"""What a manifest says of the Redis behind LMCache, and how the router uses it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from router.hyperpod.fields import FieldOutcome
from router.hyperpod.loader import Loaded
from tests.hyperpod.manifests import note, routed, taken, variables

REDIS = "redis://redis.team-a.svc:6379"
URL = "spec.kvCacheSpec.l2CacheSpec.l2CacheLocalUrl"
L2 = "spec.kvCacheSpec.enableL2Cache"
BACKEND = "spec.kvCacheSpec.l2CacheSpec.l2CacheBackend"
ARGS = ["/opt/ml/model", '--kv-events-config={"enable_kv_cache_events":true}']
SEEDED = {"PYTHONHASHSEED": "4711"}
LONG = "9" * 5000  # more digits than Python reads


def result_of(
    folder: Path,
    values: dict[str, str],
    args: list[str] = ARGS,
    url: str = REDIS,
    *,
    own: str = "logs: {level: info}",
    command: Sequence[str] = (),
    **cache: bool,
) -> Loaded:
    """Return what a manifest becomes whose workers have these variables and arguments."""
    store = {"l2CacheBackend": "redis", "l2CacheLocalUrl": url}
    return taken(
        folder,
        own=own,
        worker={**variables(**values), "args": args, "command": list(command)},
        intelligentRoutingSpec=routed("kvaware"),
        kvCacheSpec={"enableL2Cache": True, "l2CacheSpec": store, **cache},
    )


@pytest.mark.parametrize(
    ("values", "args", "names"),
    [
        (SEEDED, ARGS, {"seed": "4711", "model": "/opt/ml/model"}),
        (
            {"LMCACHE_PRE_CACHING_HASH_ALGORITHM": "sha256_cbor", "LMCACHE_CHUNK_SIZE": "128"},
            ["serve", "meta/llama", "--tensor-parallel-size", "4", "-pp=2", "--dtype", "float16"],
            {
                "hash": "sha256_cbor",
                "chunk": 128,
                "model": "meta/llama",
                "gpus": 8,
                "dtype": "half",
            },
        ),
        (
            SEEDED,
            ["--enforce-eager", "--model=m", "--tensor_parallel_size=2", "--kv-cache-dtype=auto"],
            {"seed": "4711", "model": "m", "gpus": 2},
        ),
    ],
)
def test_a_redis_is_asked(
    tmp_path: Path, values: dict[str, str], args: list[str], names: dict[str, Any]
) -> None:
    """The workers' environment decides how LMCache names chunks, and is mapped to settings."""
    result = result_of(tmp_path, values, args)
    lmcache = result.settings.tiers.l2.lmcache
    assert lmcache is not None
    given = {name: getattr(lmcache, name) for name in lmcache.model_fields_set}
    assert given == {"redis": REDIS, "names": "engine", **names}
    for field in (URL, L2, BACKEND):
        assert note(result, field).fate is FieldOutcome.MAPPED, field
    for number, name in enumerate(values):
        remark = note(result, f"spec.worker.environmentVariables[{number}]")
        assert (remark.value, remark.fate) == (f"{name}=***", FieldOutcome.MAPPED)


MODEL, GPUS = "the model in worker.args", "numbers of GPUs in worker.args"
HASH = "LMCACHE_PRE_CACHING_HASH_ALGORITHM"


@pytest.mark.parametrize(
    ("values", "args", "url", "lacks"),
    [
        ({}, ARGS, REDIS, "PYTHONHASHSEED, a number"),
        ({"PYTHONHASHSEED": "random"}, ARGS, REDIS, "PYTHONHASHSEED, a number"),
        ({"PYTHONHASHSEED": "4294967296"}, ARGS, REDIS, "PYTHONHASHSEED, a number"),
        ({**SEEDED, HASH: "md5"}, ARGS, REDIS, f"{HASH}, builtin or sha256 or sha256_cbor"),
        ({**SEEDED, "LMCACHE_CHUNK_SIZE": "²"}, ARGS, REDIS, "LMCACHE_CHUNK_SIZE, a number"),
        ({**SEEDED, "LMCACHE_CHUNK_SIZE": LONG}, ARGS, REDIS, "LMCACHE_CHUNK_SIZE, a number"),
        ({**SEEDED, "LMCACHE_CONFIG_FILE": "/c"}, ARGS, REDIS, "the file LMCACHE_CONFIG_FILE"),
        (SEEDED, ["--enforce-eager"], REDIS, MODEL),
        (SEEDED, ["vllm serve meta/llama -tp 4"], REDIS, MODEL),
        (SEEDED, ["sh", "-c", "vllm serve meta/llama -tp 4"], REDIS, MODEL),
        (SEEDED, [*ARGS, "-tp", "all"], REDIS, GPUS),
        (SEEDED, [*ARGS, "-tp", LONG], REDIS, GPUS),
        (SEEDED, [*ARGS, "--kv-cache-dtype", "fp8"], REDIS, "LMCache's word for the KV cache's"),
        (SEEDED, ARGS, "redis://:very-secret@redis:6379", "a URL of host and port alone"),
    ],
)
def test_what_it_would_take_is_told(
    tmp_path: Path, values: dict[str, str], args: list[str], url: str, lacks: str
) -> None:
    """If the names cannot be known, Redis is not used, and the note says what is missing."""
    result = result_of(tmp_path, values, args, url)
    assert result.settings.tiers.l2.lmcache is None
    remark = note(result, URL)
    assert remark.became.startswith("the router cannot ask it without ")
    assert lacks in remark.became
    assert "secret" not in remark.value
    assert {note(result, field).fate for field in (URL, L2, BACKEND)} == {FieldOutcome.LOST}


@pytest.mark.parametrize(
    ("command", "args", "model"),
    [
        ([], ["vllm", "serve", "meta/llama"], "meta/llama"),
        (["/opt/venv/bin/vllm", "serve"], ["meta/llama"], "meta/llama"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], ["--model", "m"], "m"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], [], None),
        (["sh", "-c"], ["vllm serve meta/llama -tp 4"], None),
        (["/start.sh"], ["meta/llama"], None),
    ],
)
def test_what_a_command_makes_of_arguments(
    tmp_path: Path, command: list[str], args: list[str], model: str | None
) -> None:
    """vLLM's own commands are understood, by path too; shells and other programs are not."""
    result = result_of(tmp_path, SEEDED, args, command=command)
    lmcache = result.settings.tiers.l2.lmcache
    assert (lmcache and lmcache.model) == model
    assert note(result, URL).fate is (FieldOutcome.MAPPED if model else FieldOutcome.LOST)


@pytest.mark.parametrize(("first", "promotes"), [(True, "l1"), (False, "gpu")])
def test_what_is_loaded_stays_on_l1(tmp_path: Path, first: bool, promotes: str) -> None:
    """If L1 is enabled, LMCache in the engine keeps loaded chunks there; the note says so."""
    result = result_of(tmp_path, SEEDED, enableL1Cache=first)
    assert result.settings.tiers.l2.promotes == promotes
    assert ("tiers.l2.promotes: l1" in note(result, L2).became) is first
    own = result_of(tmp_path, SEEDED, own="tiers: {l2: {promotes: gpu}}", enableL1Cache=first)
    assert own.settings.tiers.l2.promotes == "gpu"


@pytest.mark.parametrize("values", [SEEDED, {}])
def test_settings_of_our_own_take_its_place(tmp_path: Path, values: dict[str, str]) -> None:
    """They replace it as a whole, and nothing is reported as lost."""
    own = "tiers: {l2: {lmcache: {coordinator: 'http://lmcache:9000', chunk: 64}}}"
    result = result_of(tmp_path, values, own=own)
    lmcache = result.settings.tiers.l2.lmcache
    assert lmcache is not None
    assert lmcache.model_fields_set == {"coordinator", "chunk"}
    for field in (URL, L2, BACKEND):
        assert note(result, field).fate is FieldOutcome.ELSEWHERE, field
    assert [remark for remark in result.notes if remark.fate is FieldOutcome.LOST] == []
