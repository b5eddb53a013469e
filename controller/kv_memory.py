"""The memory of a pool: what its workers hold, by their engines' events, and how true that is."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from controller.accuracy import Misses, TrackRecord
from controller.events.source import EventSource
from controller.events.stream import StreamPhase
from controller.index.block_events import Mark, Tier
from controller.index.holdings import Holdings
from controller.index.index import Index
from strategies.api import Outcome, Prompt
from strategies.cost.prefill import Held

#: Block sizes that prompts are cut into before any engine has announced blocks: vLLM's default.
DEFAULT_BLOCK_SIZES = (16,)
#: Most block sizes that prompts are cut into.
MAX_BLOCK_SIZES = 4


class KvMemory:
    """Answers the `kvaware` strategy from the events that subscriptions bring. Pure."""

    def __init__(self, limit_bytes: int) -> None:
        self.index = Index(limit_bytes)
        self.misses = Misses(self.index)
        """Handles blocks that engines did not find where they were expected."""
        self.sources: dict[str, list[EventSource]] = {}
        """The engines of each worker: one, or one per data-parallel rank."""
        self.track_records: dict[str, TrackRecord] = {}
        self.missing: dict[str, str] = {}
        """Workers without a source, and why."""
        self.l1 = True
        """Whether blocks in host memory count; if not, blocks on both L1 and L2 count as L2."""
        self.marks: dict[str, Mark] = {}
        """Where streams of a restored snapshot continue, by engine name, until the engine joins."""

    # For the code that listens to engines.

    def join(self, worker: str, rank: int = 0, *, replays: bool = False) -> EventSource:
        """Add a source of events and return it."""
        source = EventSource(self.index, worker, rank, replays=replays)
        if source.name in self.marks:
            source.resume(self.marks.pop(source.name))
        self.sources.setdefault(worker, []).append(source)
        self.track_records.setdefault(worker, TrackRecord())
        self.missing.pop(worker, None)
        return source

    def leave(self, source: EventSource) -> None:
        """Remove a source, and forget what it held."""
        self.index.forget(source.name)
        left = [other for other in self.sources.get(source.worker, []) if other is not source]
        if left:
            self.sources[source.worker] = left
        else:
            self.sources.pop(source.worker, None)
            self.track_records.pop(source.worker, None)

    def tidy(self, workers: Collection[str]) -> None:
        """Drop what is remembered of workers other than these."""
        self.missing = {name: why for name, why in self.missing.items() if name in workers}

    def where(self) -> dict[str, Mark]:
        """Return how far each stream is, by engine name; including engines still to join."""
        return {**self.marks, **{source.name: source.mark() for source in self.all_sources()}}

    def adopt(self, holdings: Holdings, marks: dict[str, Mark]) -> None:
        """Take over a snapshot, while the index is empty: streams continue where it ends.

        Engines that have already been heard are left out: the snapshot may describe an earlier
        process of theirs.
        """
        self.index.adopt(holdings)
        self.marks = dict(marks)
        for source in self.all_sources():
            mark = self.marks.pop(source.name, None)
            if source.stream.state is not StreamPhase.WAITING:
                self.index.forget(source.name)
            elif mark is not None:
                source.resume(mark)

    def absent(self) -> frozenset[str]:
        """Return the engines of a restored snapshot that have not joined."""
        known = {cache.worker for cache in self.index.caches() if cache.worker}
        return frozenset(
            (known | self.marks.keys()) - {source.name for source in self.all_sources()}
        )

    def forget_absent(self, engines: Iterable[str]) -> None:
        """Forget those of `engines` that have not joined: what they held is out of date."""
        for engine in self.absent().intersection(engines):
            self.marks.pop(engine, None)
            self.index.forget(engine)

    def all_sources(self) -> Iterator[EventSource]:
        """Iterate over every source of every worker."""
        return (source for sources in self.sources.values() for source in sources)

    def sizes(self) -> Sequence[int]:
        """Return the block sizes, in tokens, to cut prompts into, the most frequent first.

        Unusual sizes of a single engine thus do not displace the common ones.
        """
        return self.index.sizes()[:MAX_BLOCK_SIZES] or DEFAULT_BLOCK_SIZES

    # For `kvaware`.

    def held(
        self, prompt: Prompt, workers: Sequence[str], *, l1: bool | None = None
    ) -> Mapping[str, Held]:
        """See `strategies.api.KvMemoryView`; `l1` overrides the attribute of that name."""
        matches = Matches(self.index, prompt, l1=self.l1 if l1 is None else l1)
        if not matches.any:
            return {}
        held: dict[str, Held] = {}
        for worker in workers:
            tokens = [matches.held(source.name) for source in self.sources.get(worker, ())]
            if len(tokens) == 1:
                held[worker] = tokens[0]
            elif tokens:  # the average, as it is unknown which rank will take the request
                held[worker] = Held(
                    *(sum(tier) // len(tokens) for tier in zip(*tokens, strict=True))
                )
        return held

    def ranks(self, prompt: Prompt, worker: str) -> dict[int, Held]:
        """Return what each data-parallel rank of a worker holds."""
        matches = Matches(self.index, prompt, l1=self.l1)
        sources = self.sources.get(worker, ())
        return {source.rank: matches.held(source.name) for source in sources}

    def doubt(self, worker: str, prompt: Prompt | None = None) -> str:  # noqa: ARG002
        """See `strategies.api.KvMemoryView`."""
        sources = self.sources.get(worker)
        if not sources:
            return "no events"
        for source in sources:
            if source.doubt:
                return source.doubt
        return self.track_records[worker].doubt(self.heard(worker))

    def heard(self, worker: str) -> int:
        """See `strategies.api.KvMemoryView`."""
        return sum(source.events for source in self.sources.get(worker, ()))

    def observe(self, worker: str, predicted: int | None, outcome: Outcome, heard: int) -> None:
        """See `strategies.api.KvMemoryView`."""
        record = self.track_records.get(worker)
        if record is None or not outcome.ok:
            return
        if record.compare(predicted, outcome, self._block(worker)):
            record.computed(heard, self.heard(worker))

    def correct(
        self, worker: str, prompt: Prompt, believed: Held, found: Held, *, sure: bool
    ) -> None:
        """See `strategies.api.KvMemoryView`. Which of several ranks it was is unknown."""
        sources = self.sources.get(worker, ())
        if len(sources) == 1:
            self.misses.note(sources[0].name, prompt, believed, found, sure=sure)
        elif sources:
            names = [source.name for source in sources]
            self.misses.note_one_of(names, prompt, (found.total, believed.total), sure=sure)

    def forget(self, worker: str) -> None:
        """See `strategies.api.KvMemoryView`."""
        for source in self.sources.get(worker, ()):
            source.restarted()

    def _block(self, worker: str) -> int:
        """Return the worker's usual block size in tokens; the largest if tiers differ."""
        caches = (
            self.index.cache(source.name, tier)
            for source in self.sources.get(worker, ())
            for tier in Tier
        )
        return (
            max((cache.usual_block_size for cache in caches if cache), default=0) or self.sizes()[0]
        )


class Matches:
    """Where a prompt's blocks are: its paths through the index, one for each block size."""

    def __init__(self, index: Index, prompt: Prompt, *, l1: bool) -> None:
        """Follow the prompt's keys; blocks in host memory count if `l1`."""
        self._index, self._tokens, self._l1 = index, prompt.tokens, l1
        self._paths = {size: index.find(keys) for size, keys in prompt.blocks.items()}
        self._depths: dict[int, int] = {}
        """Tokens held from the start without a gap, by the cache's bit."""
        for size, path in self._paths.items():
            for bit, blocks in path.depths.items():
                self._depths[bit] = max(self._depths.get(bit, 0), blocks * size)

    @property
    def any(self) -> bool:
        """True if any block is known at all."""
        return any(path.steps for path in self._paths.values())

    def held(self, engine: str) -> Held:
        """Return what one engine need not compute.

        The GPU's last block does not count if it ends the prompt, since the last token is always
        computed (vLLM `v1/core/kv_cache_manager.py`, `get_computed_blocks`). From other tiers the
        whole prompt may be loaded.
        """
        cache = self._index.cache(engine, Tier.GPU)
        gpu = self._depths.get(cache.bit, 0) if cache is not None else 0
        if cache is not None and gpu >= self._tokens > 0:
            gpu -= min(cache.sizes, default=0)
        host = self._beyond(engine, Tier.L1, gpu) if self._l1 else 0
        l2 = max(self._beyond(name, Tier.L2, gpu + host) for name in (engine, ""))
        return Held(gpu, host, l2)

    def _beyond(self, engine: str, tier: Tier, start: int) -> int:
        """Return how many tokens a tier holds without a gap from token `start` on."""
        cache = self._index.cache(engine, tier)
        if cache is None or not cache.blocks:
            return 0
        reached = start
        for size in cache.sizes:
            if size in self._paths:
                blocks = self._paths[size].reach(cache.bit, start // size)
                reached = max(reached, blocks * size)
        return reached - start
