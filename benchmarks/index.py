"""The cost of the block index: `python -m benchmarks.index`.

Measures blocks stored and removed per second of CPU time, single events in a full index, bytes per
block, and the time to match a prompt, by its length, by the number of workers and by the number of
blocks. With `--peer FOLDER`, a folder where `ai_dynamo_runtime` is installed, its `RadixTree` is
measured in the same run. Its events are JSON with hashes computed beforehand, while our index
computes its keys from the tokens.
"""

import gc
import json
import multiprocessing
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter_ns, process_time
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from controller.events.source import EventSource
from controller.index.block_events import BlockRemoved, BlockStored, Tier
from controller.index.index import Index
from strategies.prefix.block_keys import even_chain, even_root

BLOCK_TOKENS = 16
PROMPT_TOKENS = (512, 4096, 32768)
WORKER_COUNTS = (8, 64, 1000)
INDEX_BLOCKS = (1_000_000,)
#: Blocks per event: 1,024 tokens, like a chunk of a prefill.
EVENT_BLOCKS = 64
_PAGE_BYTES = 4096

_out = Console(soft_wrap=True)


@dataclass(frozen=True, slots=True)
class IndexEvent:
    """One event of one worker: decoded, and the token ids to encode it."""

    worker: int
    event: BlockStored
    ids: list[int]


def stored_events(
    random: Random, blocks: int, workers: int, run: int = EVENT_BLOCKS
) -> Iterator[IndexEvent]:
    """Yield events of unrelated prompts, for the workers in turn."""
    for number in range(blocks // run):
        ids = [random.randrange(128_000) for _ in range(8)] * (run * BLOCK_TOKENS // 8)
        hashes = [random.getrandbits(64) for _ in range(run)]
        tokens = array("I", ids).tobytes()
        event = BlockStored(hashes, None, tokens, BLOCK_TOKENS, Tier.GPU, False, "", None, 0, True)
        yield IndexEvent(number % workers, event, ids)


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


def a_second(number: int, work: Callable[[], None]) -> float:
    """Run `work` once; return `number` per second of CPU time of all threads."""
    gc.collect()
    start = process_time()
    work()
    return number / (process_time() - start)


def measure_intake(random: Random, blocks: int) -> None:
    """Print the rates of storing decoded events and raw frames, and of removals."""
    events = list(stored_events(random, blocks, 8))
    frames = [_frame(sent) for sent in events]
    best: dict[str, float] = {}
    for _ in range(3):
        index = Index(1 << 40)
        rate = a_second(blocks, lambda index=index: _store(index, events))  # type: ignore[misc]
        best["stored, decoded"] = max(best.get("stored, decoded", 0), rate)
        rate = a_second(blocks, lambda index=index: _remove(index, events))  # type: ignore[misc]
        best["removed, one an event"] = max(best.get("removed, one an event", 0), rate)
        sources = [EventSource(Index(1 << 40), str(worker)) for worker in range(8)]
        rate = a_second(blocks, lambda sources=sources: _hear(sources, frames))  # type: ignore[misc]
        best["stored, raw frames"] = max(best.get("stored, raw frames", 0), rate)
    table = Table(title=f"{blocks:,} blocks of {EVENT_BLOCKS} an event", box=None)
    table.add_column("measure_intake")
    table.add_column("blocks a second", justify="right")
    for name, rate in best.items():
        table.add_row(name, f"{rate:,.0f}")
    _out.print(table)


def _frame(sent: IndexEvent) -> bytes:
    event = {
        "type": "BlockStored",
        "block_hashes": sent.event.hashes,
        "parent_block_hash": None,
        "token_ids": sent.ids,
        "block_size": BLOCK_TOKENS,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(sent.event.hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return msgspec.msgpack.encode([0.0, [event], 0])


def _store(index: Index, events: Sequence[IndexEvent]) -> None:
    names = [str(worker) for worker in range(1000)]
    for sent in events:
        index.store(names[sent.worker], sent.event)


def _remove(index: Index, events: Sequence[IndexEvent]) -> None:
    for sent in events:
        for name in reversed(sent.event.hashes):
            index.remove(str(sent.worker), BlockRemoved((name,), Tier.GPU, False, 0))


def _hear(sources: Sequence[EventSource], frames: Sequence[bytes]) -> None:
    for number, frame in enumerate(frames):
        for _ in sources[number % 8].heard(number // 8, frame, 0.0):
            raise AssertionError


def measure_full(random: Random, run: int, bound: int, number: int) -> None:
    """Print how long each of `number` events takes once the index is at its bound, in CPU time."""
    index, times = Index(bound), list[float]()
    for sent in stored_events(random, 1 << 40, 8, run):
        start = process_time()
        index.store(str(sent.worker), sent.event)
        if index.counts["dropped for room"]:
            times.append((process_time() - start) * 1000)
        if len(times) == number:
            break
    _out.print(
        f"full, {len(index):,} blocks, {run} an event: median {median(times):.2f} ms,"
        f" mean {sum(times) / number:.2f} ms, longest {max(times):.1f} ms"
    )


def shared(index: Index, tokens: int, workers: int) -> bytes:
    """Store a prompt, of which worker n of N holds the first (n + 1) / N; return its tokens."""
    random = Random(tokens * workers)
    ids = array("I", (random.randrange(128_000) for _ in range(tokens)))
    number = tokens // BLOCK_TOKENS
    for worker in range(workers):
        held = max(1, number * (worker + 1) // workers)
        hashes = [random.getrandbits(64) for _ in range(held)]
        data = ids[: held * BLOCK_TOKENS].tobytes()
        event = BlockStored(hashes, None, data, BLOCK_TOKENS, Tier.GPU, False, "", None, 0, True)
        index.store(str(worker), event)
    return ids.tobytes()


def latency(work: Callable[[], object]) -> float:
    """Return the median microseconds of many calls."""
    times = []
    for _ in range(300):
        start = perf_counter_ns()
        work()
        times.append(perf_counter_ns() - start)
    return median(times) / 1000


def filled(blocks: int, workers: int) -> Index:
    """Return an index of about `blocks` blocks."""
    index = Index(1 << 40)
    for sent in stored_events(Random(blocks), blocks, workers):
        index.store(str(sent.worker), sent.event)
    return index


def bytes_a_block(blocks: int, workers: int) -> tuple[float, float]:
    """Return the bytes per block and holder, measured and as counted; run in a new process."""
    for sent in stored_events(Random(0), EVENT_BLOCKS * workers, workers):
        Index(1 << 40).store(str(sent.worker), sent.event)
    gc.collect()
    before = resident()
    index = filled(blocks, workers)
    gc.collect()
    return (resident() - before) / index.holdings.holders, index.bytes / index.holdings.holders


def matched(index: Index, tokens: int, workers: int) -> tuple[float, list[int]]:
    """Return microseconds to match a prompt of `tokens` tokens, and its keys."""
    keys = even_chain(even_root("", ""), shared(index, tokens, workers), BLOCK_TOKENS)
    return latency(lambda: index.find(keys)), keys


def matching(blocks: int, fleets: Sequence[int], peer: type[Any] | None) -> None:
    """Print latencies by prompt length and number of workers, in an index of `blocks` blocks."""
    table = Table(title=f"matching in {blocks:,} blocks, µs a prompt", box=None)
    for heading in (
        *("workers", "bytes a block", "as counted"),
        *(f"{tokens:,} tokens" for tokens in PROMPT_TOKENS),
    ):
        table.add_column(heading, justify="right")
    for number in PROMPT_TOKENS if peer else ():
        table.add_column(f"peer, {number:,}", justify="right")
    fresh = multiprocessing.get_context("spawn")
    for workers in fleets:
        with ProcessPoolExecutor(1, mp_context=fresh) as other:
            sizes = other.submit(bytes_a_block, blocks, workers).result()
        index = filled(blocks, workers)
        row, peer_row = [], []
        for tokens in PROMPT_TOKENS:
            microseconds, keys = matched(index, tokens, workers)
            row.append(f"{microseconds:.1f}")
            if peer is not None:
                peer_row.append(f"{_peer_match(peer, keys, workers):.1f}")
        table.add_row(f"{workers:,}", *(f"{size:.0f}" for size in sizes), *row, *peer_row)
    _out.print(table)


def _peer_event(keys: Sequence[int], hashes: Sequence[int], number: int) -> bytes:
    blocks = [
        {"block_hash": name, "tokens_hash": key} for name, key in zip(hashes, keys, strict=True)
    ]
    data = {"stored": {"parent_hash": None, "blocks": blocks}}
    return json.dumps({"event_id": number, "data": data, "dp_rank": 0}).encode()


def _peer_match(peer: type[Any], keys: Sequence[int], workers: int) -> float:
    tree, random = peer(), Random(1)
    for worker in range(workers):
        held = keys[: max(1, len(keys) * (worker + 1) // workers)]
        tree.apply_event(worker, _peer_event(held, [random.getrandbits(63) for _ in held], worker))
    matches = tree.find_matches(list(keys))
    if len(matches.scores) != workers:
        raise AssertionError(matches.scores)
    return latency(lambda: tree.find_matches(list(keys)).scores)


def peer_intake(random: Random, blocks: int, peer: type[Any]) -> None:
    """Print the peer's rate of storing events that were encoded beforehand."""
    root = even_root("", "")
    events = [
        (
            sent.worker,
            _peer_event(
                even_chain(root, sent.event.tokens, BLOCK_TOKENS),
                [name >> 1 for name in sent.event.hashes],
                number,
            ),
        )
        for number, sent in enumerate(stored_events(random, blocks, 8))
    ]
    tree = peer()

    def take() -> None:
        for worker, event in events:
            tree.apply_event(worker, event)
        tree.find_matches([1])  # waits for the peer's own thread, which applies the events

    _out.print(f"peer: {a_second(blocks, take):,.0f} blocks a second, hashed beforehand, from JSON")


def main(
    *,
    blocks: Annotated[int, typer.Option(help="Blocks that are taken in.")] = 400_000,
    large: Annotated[
        list[int] | None, typer.Option(help="Sizes of the index that prompts are matched in.")
    ] = None,
    workers: Annotated[
        list[int] | None,
        typer.Option(help=f"Workers with a prompt. Default: {WORKER_COUNTS}."),
    ] = None,
    bound: Annotated[int, typer.Option(min=1, help="MiB of the index that is filled.")] = 256,
    events: Annotated[int, typer.Option(min=1, help="Events after it is full.")] = 20_000,
    peer: Annotated[
        Path | None, typer.Option(help="Folder with ai_dynamo_runtime, installed by --target.")
    ] = None,
) -> None:
    """Measure, and print tables."""
    tree = None
    if peer is not None:
        sys.path.append(str(peer))
        tree = import_module("dynamo._core").RadixTree
    random = Random(1)
    measure_intake(random, blocks)
    for run in (4, EVENT_BLOCKS, 4 * EVENT_BLOCKS):
        measure_full(random, run, bound << 20, events)
    if tree is not None:
        peer_intake(random, blocks, tree)
    for number in large or INDEX_BLOCKS:
        matching(number, workers or WORKER_COUNTS, tree)


if __name__ == "__main__":
    typer.run(main)
