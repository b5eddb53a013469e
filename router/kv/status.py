"""What operators see of KV events: for each worker, its streams and how accurate they are."""

from collections import Counter
from time import monotonic, time

from controller.accuracy import TrackRecord
from controller.events.source import EventSource
from controller.kv_memory import KvMemory
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.kv.attach import FLAG, Memories
from router.kv.remote import RemoteMemory
from router.observe.models import Shown


class KvStreamStatus(Shown):
    """One engine's events: the worker's own, or those of one data-parallel rank."""

    rank: int
    connected: bool
    replays: bool
    """What was missed can be asked for."""
    state: str
    """`waiting`, `live`, `replay` or `gap`."""
    sequence: int
    """The last batch that was applied; -1 if none was."""
    epoch: int
    """Engine processes that followed another."""
    seconds_since_event: float | None
    seconds_since_batch: float | None
    """Since the engine made the last batch, by its clock: one that was replayed counts too."""
    seconds_behind: float
    """How long the last batch had waited here before it was applied; 0 if none waits now."""
    events: int
    counts: dict[str, int]
    """Gaps, replays, restarts and losses."""
    refused: dict[str, int]
    """What could not be used, by reason."""

    @classmethod
    def of(cls, source: EventSource) -> "KvStreamStatus":
        """Return the current status of `source`."""
        stream, last = source.stream, source.last_event
        return cls(
            rank=source.rank,
            connected=source.connected,
            replays=stream.replays,
            state=stream.state.value,
            sequence=stream.applied,
            epoch=stream.epoch,
            seconds_since_event=None if last is None else monotonic() - last,
            seconds_since_batch=time() - source.batch_time if source.batch_time else None,
            seconds_behind=source.lag.seconds,
            events=source.events,
            counts=dict(stream.counts),
            refused=dict(source.refused),
        )


class KvStatus(Shown):
    """One worker's KV events."""

    pool: str
    worker: str
    doubt: str
    """Why decisions do not go by its events; empty if they do."""
    missing: str
    """What keeps it from being listened to."""
    streams: list[KvStreamStatus]
    blocks: dict[str, int]
    """Held, by tier."""
    reports: bool | None
    """Whether its answers tell cached tokens; null if that is not known."""
    compared: int
    """Answers of which the worker reported cached tokens."""
    wrong: float
    """Share of the last of them that were predicted wrong by more than a block."""
    bias: float
    """Mean of reported minus predicted tokens."""

    def sentence(self) -> str:
        """Describe the status for people, and what would help."""
        if not self.streams:
            why = self.missing or "it was not asked yet"
            return f"worker {self.worker}: no KV events: {why}"
        streams = "; ".join(self._stream(stream) for stream in self.streams)
        tiers = ", ".join(f"{tier} {blocks}" for tier, blocks in sorted(self.blocks.items()))
        blocks = f"{sum(self.blocks.values())} blocks" + (f" ({tiers})" if tiers else "")
        right = f"{1 - self.wrong:.0%} of predictions right" if self.compared else self._compares()
        doubt = f"; not trusted: {self.doubt}{_HELP.get(self.doubt, '')}" if self.doubt else ""
        return f"worker {self.worker}: KV events: {streams}; {blocks}, {right}{doubt}"

    def _compares(self) -> str:
        """Say why no prediction was compared yet."""
        if self.reports is None:
            return "cached tokens reported: not known (it takes answers; --ask has it give some)"
        if self.reports:
            return "cached tokens are reported"
        return (
            "cached tokens are not reported, so that no prediction can be compared"
            f" (start vLLM with {USAGE_FLAG})"
        )

    def _stream(self, stream: KvStreamStatus) -> str:
        rank = f"rank {stream.rank}: " if len(self.streams) > 1 else ""
        state = "subscribed" if stream.connected else "not connected"
        ago, made = stream.seconds_since_event, stream.seconds_since_batch
        last = "no event yet" if ago is None else f"last event {ago:.1f}s ago"
        if ago is None and made is not None:  # the engine's clock may be ahead of ours
            last = f"last event {max(0.0, made):.1f}s ago (replayed)"
        gaps = f"gaps {stream.counts.get('gap', 0)}"
        lost = "" if stream.replays else ", what was missed is lost (give vLLM a replay_endpoint)"
        return f"{rank}{state}, {last}, sequence {stream.sequence}, {gaps}{lost}"


#: The flag that makes vLLM report cached tokens.
USAGE_FLAG = "--enable-prompt-tokens-details"
#: What an operator can do about each doubt.
_HELP = {
    "not connected": f" (nobody publishes there: start vLLM with {FLAG}, and see that its port can"
    " be reached)",
    "silent": f" (it computes and announces nothing: start vLLM with {FLAG})",
    "disagrees": " (it reports other cached tokens than its events promise: compare tokenizers,"
    " and see that vLLM has --enable-prefix-caching)",
    "gap": " (events were missed: give vLLM a replay_endpoint)",
    "late": " (events come faster than one core applies them: give them a controller of their own)",
}


def kv_statuses(memories: Memories) -> list[KvStatus]:
    """Return the status of every worker in pools that use KV events."""
    return [
        _status(pool, worker, memory)
        for pool, memory in memories.pools()
        for worker in pool.workers
    ]


def remote_statuses(memories: Memories) -> list[KvStatus]:
    """Return the same for pools with a remote controller: its doubts, and its accuracy."""
    return [
        _status(pool, worker, remote)
        for pool, remote in memories.remotes()
        for worker in pool.workers
    ]


def held_by_tier(memory: KvMemory, worker: Worker) -> dict[str, int]:
    """Count the blocks that a worker holds, by tier: `gpu`, `l1`, `l2`."""
    blocks: Counter[str] = Counter()
    for cache in memory.index.caches():
        if cache.worker.partition("\0")[0] == worker.name:
            blocks[cache.tier.name.lower()] += cache.blocks
    return dict(blocks)


def _status(pool: Pool, worker: Worker, memory: KvMemory | RemoteMemory) -> KvStatus:
    record = memory.track_records.get(worker.name) or TrackRecord()
    status = KvStatus(
        pool=pool.name,
        worker=worker.name,
        doubt=memory.doubt(worker.name),
        missing="",
        streams=[],
        blocks={},
        reports=record.reports,
        compared=record.compared,
        wrong=record.wrong,
        bias=record.bias,
    )
    if isinstance(memory, RemoteMemory):
        return status
    sources = memory.sources.get(worker.name, ())
    return status.model_copy(
        update={
            "missing": memory.missing.get(worker.name, ""),
            "streams": [KvStreamStatus.of(source) for source in sources],
            "blocks": held_by_tier(memory, worker),
        }
    )
