"""Engines with tiers behind a tiny GPU, and how they count what came from which."""

import json
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from strategies.explain import Explanation, Term
from tests.support import Router, until
from tests.vllm.engine import BLOCK, MODEL, command
from tests.vllm.publishing import CHAT, PATIENCE, Publishing, memory

#: Blocks of a GPU, and of the host's memory.
GPU, L1 = 40, 80
#: Tokens of the longest prompt.
LONGEST = 1024
#: Bytes of a block of the model: keys and values, two layers, 32 numbers of two bytes each.
BLOCK_BYTES = 2 * 2 * 32 * 2 * BLOCK
#: A GPU with so few blocks.
TINY = ("--num-gpu-blocks-override", str(GPU), "--max-model-len", str(LONGEST))


@cache
def has(module: str) -> bool:
    """Whether the environment that vLLM is in has a module."""
    found = command()
    if found is None:
        return False
    asked = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    python = Path(found).parent / "python"
    return subprocess.run([python, "-c", asked], check=False).returncode == 0


class Tiered(Publishing):
    """An engine with something behind its GPU."""

    def __init__(self, folder: Path, log: Path, connector: str, **extra: object) -> None:
        """`connector` is vLLM's name of what moves blocks, `extra` its settings."""
        super().__init__(folder, log, *TINY)
        told = {
            "kv_connector": connector,
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        }
        self.engine.add("--kv-transfer-config", json.dumps(told))

    def counted(self) -> Mapping[tuple[str, str], float]:
        """The engine's counters about KV blocks: by name, and by tier where it tells one."""
        return counters(f"{self.url}/metrics", ("vllm:kv_offload", "vllm:external", "vllm:prompt"))

    def chunks(self) -> "Chunks":
        """Chunks that the engine looked up and found, by its own count, ever."""
        found = self.counted()
        name = "vllm:kv_offload_tiering_chunk_hits_total"
        return Chunks(
            int(found.get((name, "0:primary"), 0)), int(found.get((name, "1:RedisStore"), 0))
        )

    def direct(self, text: str, **more: object) -> httpx.Response:
        """Ask it, past the router."""
        chat = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
        answer = httpx.post(self.url + CHAT, json={**chat, **more}, timeout=120)
        assert answer.status_code == 200, answer.text
        return answer


class Chunks(NamedTuple):
    """Hits by tier."""

    l1: int
    l2: int

    def since(self, other: "Chunks") -> "Chunks":
        """What came after another count."""
        return Chunks(self.l1 - other.l1, self.l2 - other.l2)


def counters(url: str, names: tuple[str, ...]) -> Mapping[tuple[str, str], float]:
    """What a program counts under names that begin so, by name and by the label `tier`."""
    text = httpx.get(url, timeout=30).text
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(names):
                place = sample.name, sample.labels.get("tier", "")
                found[place] = found.get(place, 0.0) + sample.value
    return found


def start_all(engines: Iterable[Tiered]) -> None:
    """Start them at once: most of it is waiting."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: one.engine.start(), engines))


def explained(router: Router, text: str, **more: object) -> Explanation:
    """What the router would decide now, which sends nothing."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    answer = router.http.post("/explain", json={**chat, **more})
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=Explanation)


def believed(router: Router, worker: str, text: str, **more: object) -> Term:
    """What the router says a worker holds of a chat."""
    found = explained(router, text, **more).workers
    return next(one for one in found if one.worker == worker)


def settled(router: Router, engines: Iterable[Tiered]) -> None:
    """Wait until all that engines published has been applied: they tell with a step of theirs."""
    for one in engines:
        (source,) = memory(router).sources[one.name]
        until(lambda: not source.doubt, PATIENCE)  # noqa: B023


def blocks(router: Router) -> dict[tuple[str, str], int]:
    """Blocks held, by worker and tier; those of a shared store are nobody's."""
    return {(one.worker, one.tier.name): one.blocks for one in memory(router).index.places()}


def stats(answer: httpx.Response) -> dict[str, Any]:
    """What LMCache says of one request, if it was asked to."""
    told = answer.json()["kv_transfer_params"]["cached_token_stats"]
    assert isinstance(told, dict)
    return told
