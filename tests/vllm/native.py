"""vLLM's own tiers on CPU: L1 in host memory, L2 in a Redis that engines share."""

from os import environ, pathsep
from pathlib import Path

from tests.vllm.engine import BLOCK
from tests.vllm.tiered import BLOCK_BYTES, L1, Hits, Tiered

#: The modules that vLLM loads by name.
_MODULES = Path(__file__).parent / "offloading"


def engine(folder: Path, log: Path, redis: str, *flags: str, prefix: str = "kv") -> Tiered:
    """Return an engine with 40 GPU blocks and 80 in host memory; `redis` is a URL."""
    store = {"type": "RedisStore", "module_path": "redis_store", "url": redis, "prefix": prefix}
    made = Tiered(
        folder,
        log,
        "OffloadingConnector",
        spec_name="HostMemory",
        spec_module_path="host_memory",
        cpu_bytes_to_use=L1 * BLOCK_BYTES,
        self_describing_kv_events=True,
        secondary_tiers=[store],
    )
    made.engine.add(*flags)
    path = [str(_MODULES), *filter(None, [environ.get("PYTHONPATH")])]
    made.engine.tell(PYTHONPATH=pathsep.join(path))
    return made


def hits(one: Tiered) -> Hits:
    """Return the tokens that it found, by its own counts.

    Its counts of chunks by tier and of prompts by source have to agree.
    """
    name, source = "vllm:kv_offload_tiering_chunk_hits_total", "vllm:prompt_tokens_cached_by_source"
    found = one.counted(name, source)
    l1, l2 = (int(found.get((name, tier), 0)) * BLOCK for tier in ("0:primary", "1:RedisStore"))
    gpu, *slower = (
        int(found.get((f"{source}_total", where), 0)) for where in ("device", "host", "disk")
    )
    assert slower == [l1, l2]
    return Hits(gpu, l1, l2)
