"""L2 of a vLLM on CPU: blocks in a Redis that all engines share.

A second tier that vLLM 0.32 loads by name (`type` and `module_path` in `secondary_tiers`). A block
is one value, `<prefix>:<hash><group>` in hex. The first to write it publishes an event, and
evictions are not announced. Redis is queried while the scheduler waits, which suits small blocks
and a Redis nearby. A Redis that does not answer counts as empty.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, cast

import numpy as np
from redis import Redis, RedisError
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob


class RedisStore(SecondaryTierManager):  # type: ignore[misc]  # vLLM is not in our environment
    """Every job is finished when it is submitted."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(self, *given: Any, url: str, prefix: str = "kv", **named: Any) -> None:
        """`url` is that of the Redis; `prefix` separates fleets. The rest is vLLM's."""
        super().__init__(*given, **named)
        self.locality = Locality.REMOTE
        self._rows: np.ndarray[Any, Any] | None = np.asarray(self._primary_kv_view)
        self._redis = Redis.from_url(url, socket_timeout=1.0, socket_connect_timeout=1.0)
        self._prefix = prefix
        self._done: list[JobResult] = []
        self._told: list[OffloadingEvent] = []

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:  # noqa: ARG002
        """Return whether a block is there."""
        try:
            there = self._redis.exists(self._name(key))
        except RedisError:
            there = 0
        return LookupResult.HIT if there else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Write the blocks that are not there yet."""
        assert self._rows is not None
        job, keys = job_metadata, list(job_metadata.keys)
        try:
            with self._redis.pipeline(transaction=False) as line:
                for key, row in zip(keys, self._rows[job.chunk_ids], strict=True):
                    line.set(self._name(key), row.tobytes(), nx=True)
                written = line.execute()
        except RedisError:
            self._done.append(JobResult(job.job_id, success=False))
            return
        new = [key for key, done in zip(keys, written, strict=True) if done]
        if new:
            event = OffloadingEvent(new, self.medium, removed=False, locality=self.locality)
            self._told.append(event)
        self._done.append(JobResult(job.job_id, success=True))

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Read blocks; only those that are gone meanwhile fail."""
        assert self._rows is not None
        job, keys = job_metadata, list(job_metadata.keys)
        try:
            values = self._redis.mget([self._name(key) for key in keys])
        except RedisError:
            values = [None] * len(keys)
        read = []
        there = cast("list[bytes | None]", values)
        for key, row, value in zip(keys, job.chunk_ids, there, strict=True):
            if value is not None:
                self._rows[row] = np.frombuffer(value, self._rows.dtype)
                read.append(key)
        whole = len(read) == len(keys)
        result = JobResult(job.job_id, success=whole, successful_keys=None if whole else read)
        self._done.append(result)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return the jobs finished since the last call."""
        done, self._done = self._done, []
        return done

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Return events for what was written since the last call."""
        told, self._told = self._told, []
        return told

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:  # noqa: ARG002
        """Offload only what is new."""
        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        """Do nothing: no job is ever running."""

    def shutdown(self) -> None:
        """Release memory and connections."""
        self._rows = None
        self._redis.close()

    def _name(self, key: OffloadKey) -> str:
        return f"{self._prefix}:{bytes(key).hex()}"
