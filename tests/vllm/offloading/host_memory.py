"""L1 of a vLLM on CPU: blocks in host memory, copied there as from a GPU.

vLLM 0.32 has the tiers, but its own copies need the streams of a GPU (`v1/kv_offload/cpu/spec.py`,
`get_worker`). This module replaces them, and is loaded by vLLM itself: `spec_name` and
`spec_module_path` in `kv_connector_extra_config`, with this folder on `PYTHONPATH`. It runs in
vLLM's environment.
"""

from collections.abc import Iterator
from time import perf_counter

import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class HostMemory(TieringOffloadingSpec):  # type: ignore[misc]  # vLLM is not in our environment
    """vLLM's tiers, with a worker that needs no GPU."""

    _copies: "Copies | None" = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Return what copies blocks; one for each of the engine's workers. Raises ValueError."""
        if self.blocks_per_chunk != 1:
            raise ValueError("block_size: chunks of one block are copied here, no others")
        if self._copies is None:
            region = SharedOffloadRegion(
                engine_id=self.config.engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._copies = Copies(kv_caches, region)
        return self._copies


class Copies(OffloadingWorker):  # type: ignore[misc]
    """Copies blocks row by row, synchronously."""

    def __init__(self, kv_caches: CanonicalKVCaches, region: SharedOffloadRegion) -> None:
        """Create a view of the region for each cache tensor, with a row for every block."""
        self._region = region
        self._groups = [
            sorted({ref.tensor_idx for ref in group}) for group in kv_caches.group_data_refs
        ]
        self._pages = [one.page_size_bytes for one in kv_caches.tensors]
        self._cache = [
            one.tensor.view(torch.int8).view(-1, one.page_size_bytes) for one in kv_caches.tensors
        ]
        self._host = [region.create_next_worker_view(size) for size in self._pages]
        self._done: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: BlockIDsLoadStoreSpec
    ) -> bool:
        """Copy from the cache to host memory."""
        began, size = perf_counter(), 0
        for tensor, blocks, rows in self._pairs(src_spec, dst_spec):
            self._host[tensor][rows] = self._cache[tensor][blocks]
            size += len(rows) * self._pages[tensor]
        return self._finished(job_id, size, began)

    def submit_load(
        self, job_id: int, src_spec: BlockIDsLoadStoreSpec, dst_spec: GPULoadStoreSpec
    ) -> bool:
        """Copy from host memory to the cache."""
        began, size = perf_counter(), 0
        for tensor, blocks, rows in self._pairs(dst_spec, src_spec):
            self._cache[tensor][blocks] = self._host[tensor][rows]
            size += len(rows) * self._pages[tensor]
        return self._finished(job_id, size, began)

    def get_finished(self) -> list[TransferResult]:
        """Return the jobs finished since the last call."""
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Do nothing: all jobs are finished."""

    def shutdown(self) -> None:
        """Release the memory."""
        self._host.clear()
        self._region.cleanup()

    def _pairs(
        self, cache: GPULoadStoreSpec, host: BlockIDsLoadStoreSpec
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Iterate over tensors: blocks of the cache, and their rows in host memory."""
        blocks = torch.from_numpy(cache.block_ids).long()
        rows = torch.from_numpy(host.block_ids).long()
        begin = 0
        for tensors, number in zip(self._groups, cache.group_sizes, strict=True):
            end = begin + number
            for tensor in tensors if number else ():
                yield tensor, blocks[begin:end], rows[begin:end]
            begin = end

    def _finished(self, job_id: int, size: int, began: float) -> bool:
        taken = max(perf_counter() - began, 1e-9)  # vLLM divides by it to compute rates
        self._done.append(TransferResult(job_id, True, size, taken))
        return True
