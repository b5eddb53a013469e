"""LMCache's server on CPU: L1 in its memory, L2 in a Redis that servers share."""

import json
from collections.abc import Mapping
from pathlib import Path

import httpx

from tests.vllm.engine import command, free_port
from tests.vllm.program import Program
from tests.vllm.tiered import BLOCK_BYTES, Hits, Tiered, counters, has

#: Why the tests are skipped.
NOT_INSTALLED = "LMCache is not installed in the environment that vLLM is in (lmcache 0.5)"
#: Size of a chunk, in tokens and in bytes.
CHUNK = 64
CHUNK_BYTES = CHUNK // 32 * BLOCK_BYTES
#: Capacity of the server's memory, in chunks.
L1 = 80

_QUIET = {"LMCACHE_TRACK_USAGE": "false"}


def installed() -> bool:
    """Return whether it is installed, in vLLM's environment."""
    return has("lmcache")


class Server(Program):
    """One server process, from `start` to `stop`; it serves the engines of a host."""

    name = "LMCache's server"

    def __init__(self, log: Path, redis: int) -> None:
        """`redis` is the port of the store behind it."""
        super().__init__(log)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{free_port()}"
        self._redis = redis

    def start(self) -> "Server":
        """Start it and wait until it is healthy. Raises RuntimeError if it ends or takes too
        long."""
        found = command()
        if found is None or not installed():
            raise RuntimeError(NOT_INSTALLED)
        store = {"type": "resp", "host": "127.0.0.1", "port": self._redis, "num_workers": 2}
        arguments = [
            *(str(Path(found).parent / "lmcache"), "server"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--http-host", "127.0.0.1", "--http-port", self.url.rpartition(":")[2]),
            *("--chunk-size", str(CHUNK), "--eviction-policy", "LRU"),
            *("--l1-size-gb", str(L1 * CHUNK_BYTES / (1 << 30)), "--no-l1-use-lazy"),
            *("--supported-transfer-mode", "auto", "--max-workers", "1"),
            *("--kv-event-log-size", "10000", "--l2-adapter", json.dumps(store)),
        ]
        self.run(arguments, _QUIET, f"{self.url}/status")
        return self

    def counted(self) -> Mapping[tuple[str, str], float]:
        """Return its counters."""
        return counters(f"{self.url}/metrics", ("lmcache_mp",))

    def status(self) -> dict[str, object]:
        """Return what it reports about itself."""
        found: dict[str, object] = httpx.get(f"{self.url}/status", timeout=30).json()
        return found


def engine(
    folder: Path,
    log: Path,
    server: Server,
    *flags: str,
    seed: str = "0",
    mode: str = "lmcache_driven",
) -> Tiered:
    """Return an engine with 40 GPU blocks that uses a server; `seed` is for its block names.

    Of LMCache's modes, the default one publishes events, and `engine_driven` does not.
    """
    told = {
        "lmcache.mp.host": "tcp://127.0.0.1",
        "lmcache.mp.port": server.port,
        "lmcache.mp.mp_transfer_mode": mode,
    }
    made = Tiered(folder, log, "LMCacheMPConnector", **told)
    made.engine.add(*flags)
    made.engine.tell(PYTHONHASHSEED=seed, **_QUIET)
    return made


def hits(server: Server) -> Hits:
    """Return the tokens that lookups found, by the server's own count, whatever was on the GPU."""
    name = "lmcache_mp_lookup_hit_l{}_tokens_total"
    found = server.counted()
    return Hits(0, *(int(found.get((name.format(tier), ""), 0)) for tier in (1, 2)))


def stats(answer: httpx.Response) -> tuple[int, int]:
    """Return the tokens of a request found on the GPU, and in LMCache beyond those.

    The request has to ask for it.
    """
    told = answer.json()["kv_transfer_params"]["cached_token_stats"]
    return told["num_vllm_cached_tokens"], told["num_lmcache_extra_cached_tokens"]
