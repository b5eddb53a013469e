"""What a manifest says of the Redis behind LMCache, and how the router uses it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from router.hyperpod.fields import Fate, Note
from router.hyperpod.loader import Loaded, take
from tests.hyperpod.manifests import manifest, variables, written

REDIS = "redis://redis.team-a.svc:6379"
URL = "spec.kvCacheSpec.l2CacheSpec.l2CacheLocalUrl"
L2 = "spec.kvCacheSpec.enableL2Cache"
BACKEND = "spec.kvCacheSpec.l2CacheSpec.l2CacheBackend"
ARGS = ["/opt/ml/model", '--kv-events-config={"enable_kv_cache_events":true}']
SEEDED = {"PYTHONHASHSEED": "4711"}
LONG = "9" * 5000  # more digits than Python reads


def taken(
    folder: Path,
    told: dict[str, str],
    args: list[str] = ARGS,
    url: str = REDIS,
    *,
    own: str = "logs: {level: info}",
    command: Sequence[str] = (),
    **cache: bool,
) -> Loaded:
    """Return what a manifest becomes whose workers have these variables and arguments."""
    store = {"l2CacheBackend": "redis", "l2CacheLocalUrl": url}
    data = manifest(
        worker={**variables(**told), "args": args, "command": list(command)},
        intelligentRoutingSpec={"enabled": True, "routingStrategy": "kvaware"},
        kvCacheSpec={"enableL2Cache": True, "l2CacheSpec": store, **cache},
    )
    data["metadata"]["annotations"]["warmroute.io/settings"] = own
    return take(written(folder, json.dumps(data)))


def note(loaded: Loaded, field: str) -> Note:
    """Return the note on one field."""
    return next(one for one in loaded.notes if one.field == field)


@pytest.mark.parametrize(
    ("told", "args", "names"),
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
    tmp_path: Path, told: dict[str, str], args: list[str], names: dict[str, Any]
) -> None:
    """The workers' environment decides how LMCache names chunks, and is mapped to settings."""
    found = taken(tmp_path, told, args)
    asked = found.settings.tiers.l2.lmcache
    assert asked is not None
    given = {name: getattr(asked, name) for name in asked.model_fields_set}
    assert given == {"redis": REDIS, "names": "engine", **names}
    for field in (URL, L2, BACKEND):
        assert note(found, field).fate is Fate.MAPPED, field
    for number, name in enumerate(told):
        said = note(found, f"spec.worker.environmentVariables[{number}]")
        assert (said.value, said.fate) == (f"{name}=***", Fate.MAPPED)


@pytest.mark.parametrize(
    ("told", "args", "url", "lacks"),
    [
        ({}, ARGS, REDIS, "PYTHONHASHSEED, a number"),
        ({"PYTHONHASHSEED": "random"}, ARGS, REDIS, "PYTHONHASHSEED, a number"),
        (
            {**SEEDED, "LMCACHE_PRE_CACHING_HASH_ALGORITHM": "md5"},
            ARGS,
            REDIS,
            "LMCACHE_PRE_CACHING_HASH_ALGORITHM, builtin or sha256 or sha256_cbor",
        ),
        ({"PYTHONHASHSEED": "4294967296"}, ARGS, REDIS, "PYTHONHASHSEED, a number"),
        ({**SEEDED, "LMCACHE_CHUNK_SIZE": "big"}, ARGS, REDIS, "LMCACHE_CHUNK_SIZE, a number"),
        ({**SEEDED, "LMCACHE_CHUNK_SIZE": "²"}, ARGS, REDIS, "LMCACHE_CHUNK_SIZE, a number"),
        ({**SEEDED, "LMCACHE_CHUNK_SIZE": LONG}, ARGS, REDIS, "LMCACHE_CHUNK_SIZE, a number"),
        (
            {**SEEDED, "LMCACHE_CONFIG_FILE": "/c.yaml"},
            ARGS,
            REDIS,
            "what stands in the file LMCACHE_CONFIG_FILE",
        ),
        (SEEDED, ["--enforce-eager"], REDIS, "the model in worker.args"),
        (SEEDED, ["vllm serve meta/llama -tp 4"], REDIS, "the model in worker.args"),
        (SEEDED, ["sh", "-c", "vllm serve meta/llama -tp 4"], REDIS, "the model in worker.args"),
        (SEEDED, [*ARGS, "-tp", "all"], REDIS, "numbers of GPUs in worker.args"),
        (SEEDED, [*ARGS, "-tp", LONG], REDIS, "numbers of GPUs in worker.args"),
        (
            SEEDED,
            [*ARGS, "--kv-cache-dtype", "fp8"],
            REDIS,
            "LMCache's word for the KV cache's type",
        ),
        (
            SEEDED,
            ARGS,
            "redis://:very-secret@redis:6379",
            "a URL of host and port alone, tiers.l2.lmcache.password if need be",
        ),
    ],
)
def test_what_it_would_take_is_told(
    tmp_path: Path, told: dict[str, str], args: list[str], url: str, lacks: str
) -> None:
    """If the names cannot be known, Redis is not used, and the note says what is missing."""
    found = taken(tmp_path, told, args, url)
    assert found.settings.tiers.l2.lmcache is None
    said = note(found, URL)
    assert (said.became, said.fate) == (f"the router cannot ask it without {lacks}", Fate.LOST)
    assert "secret" not in said.value
    assert note(found, L2).fate is Fate.LOST
    assert note(found, BACKEND).fate is Fate.LOST


@pytest.mark.parametrize(
    ("command", "args", "model"),
    [
        ([], ["vllm", "serve", "meta/llama"], "meta/llama"),
        (["/opt/venv/bin/vllm", "serve"], ["meta/llama"], "meta/llama"),
        (["vllm"], ["serve", "meta/llama"], "meta/llama"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], ["--model", "m"], "m"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server"], [], None),
        (["sh", "-c"], ["vllm serve meta/llama -tp 4"], None),
        (["sh", "-c", "vllm serve meta/llama -tp 4"], [], None),
        (["/start.sh"], ["meta/llama"], None),
    ],
)
def test_what_a_command_makes_of_arguments(
    tmp_path: Path, command: list[str], args: list[str], model: str | None
) -> None:
    """vLLM's own commands are understood, by path too; shells and other programs are not."""
    found = taken(tmp_path, SEEDED, args, command=command)
    asked = found.settings.tiers.l2.lmcache
    assert (asked and asked.model) == model
    assert note(found, URL).fate is (Fate.MAPPED if model else Fate.LOST)


@pytest.mark.parametrize(("first", "promotes"), [(True, "l1"), (False, "gpu")])
def test_what_is_loaded_stays_on_l1(tmp_path: Path, first: bool, promotes: str) -> None:
    """If L1 is enabled, LMCache in the engine keeps loaded chunks there; the note says so."""
    found = taken(tmp_path, SEEDED, enableL1Cache=first)
    assert found.settings.tiers.l2.promotes == promotes
    assert ("tiers.l2.promotes: l1" in note(found, L2).became) is first
    own = taken(tmp_path, SEEDED, own="tiers: {l2: {promotes: gpu}}", enableL1Cache=first)
    assert own.settings.tiers.l2.promotes == "gpu"


@pytest.mark.parametrize("told", [SEEDED, {}])
def test_settings_of_our_own_take_its_place(tmp_path: Path, told: dict[str, str]) -> None:
    """They replace it as a whole, and nothing is reported as lost."""
    own = "tiers: {l2: {lmcache: {coordinator: 'http://lmcache:9000', chunk: 64}}}"
    found = taken(tmp_path, told, own=own)
    asked = found.settings.tiers.l2.lmcache
    assert asked is not None
    assert asked.model_fields_set == {"coordinator", "chunk"}
    for field in (URL, L2, BACKEND):
        assert note(found, field).fate is Fate.ELSEWHERE, field
    assert [one for one in found.notes if one.fate is Fate.LOST] == []
