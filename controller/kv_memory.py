"""What the workers of a pool hold, according to their engines: index, sources, track records."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from controller.accuracy import Misses, Truth
from controller.events.decode import Tier
from controller.events.source import Mark, Source
from controller.events.stream import State
from controller.index.holdings import Holdings
from controller.index.index import Index
from controller.index.tree import Found
from strategies.api import Outcome, Prompt
from strategies.cost.tiers import Held

#: Block sizes that prompts are cut into before any engine has announced blocks: vLLM's default.
USUAL = (16,)
#: Most block sizes that prompts are cut into.
MOST_SIZES = 4
#: So many computed tokens must give new blocks, whatever the block size.
SURELY_NEW = 1024

_NOTHING = Held()


class Memory:
    """Answers the `kvaware` strategy from the events that subscriptions bring. Pure."""

    def __init__(self, limit_bytes: int) -> None:
        self.index = Index(limit_bytes)
        self.misses = Misses(self.index)
        """Handles blocks that engines did not find where they were expected."""
        self.sources: dict[str, list[Source]] = {}
        """The engines of each worker: one, or one per data-parallel rank."""
        self.truths: dict[str, Truth] = {}
        self.missing: dict[str, str] = {}
        """Workers without a source, and why."""
        self.l1 = True
        """Whether blocks in host memory count; if not, blocks on both L1 and L2 count as L2."""
        self.marks: dict[str, Mark] = {}
        """Where streams of a restored snapshot continue, by engine name, until the engine joins."""

    # For the code that listens to engines.

    def join(self, worker: str, rank: int = 0, *, replays: bool = False) -> Source:
        """Add a source of events and return it."""
        source = Source(self.index, worker, rank, replays=replays)
        if source.name in self.marks:
            source.resume(self.marks.pop(source.name))
        self.sources.setdefault(worker, []).append(source)
        self.truths.setdefault(worker, Truth())
        self.missing.pop(worker, None)
        return source

    def leave(self, source: Source) -> None:
        """Remove a source, and forget what it held."""
        self.index.forget(source.name)
        left = [one for one in self.sources.get(source.worker, []) if one is not source]
        if left:
            self.sources[source.worker] = left
        else:
            self.sources.pop(source.worker, None)
            self.truths.pop(source.worker, None)

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
            if source.stream.state is not State.WAITING:
                self.index.forget(source.name)
            elif mark is not None:
                source.resume(mark)

    def absent(self) -> frozenset[str]:
        """Return the engines of a restored snapshot that have not joined."""
        told = {place.worker for place in self.index.places() if place.worker}
        return frozenset((told | self.marks.keys()) - {one.name for one in self.all_sources()})

    def forget_absent(self, engines: Iterable[str]) -> None:
        """Forget those of `engines` that have not joined: what they held is out of date."""
        for engine in self.absent().intersection(engines):
            self.marks.pop(engine, None)
            self.index.forget(engine)

    def all_sources(self) -> Iterator[Source]:
        """Iterate over every source of every worker."""
        return (source for sources in self.sources.values() for source in sources)

    def sizes(self) -> Sequence[int]:
        """Return the block sizes, in tokens, to cut prompts into, the most frequent first.

        Unusual sizes of a single engine thus do not displace the common ones.
        """
        return self.index.sizes()[:MOST_SIZES] or USUAL

    # For `kvaware`.

    def held(
        self, prompt: Prompt, workers: Sequence[str], *, l1: bool | None = None
    ) -> Mapping[str, Held]:
        """See `strategies.policies.kv_aware.Memory`; `l1` overrides the attribute of that name."""
        l1 = self.l1 if l1 is None else l1
        found = {size: self.index.find(keys) for size, keys in prompt.blocks.items()}
        if not any(one.steps for one in found.values()):
            return {}
        depths = self._depths(found)
        held: dict[str, Held] = {}
        for worker in workers:
            tokens = list(self._ranks(worker, prompt, found, depths, l1=l1).values())
            if len(tokens) == 1:
                held[worker] = tokens[0]
            elif tokens:  # the average, as it is unknown which rank will take the request
                held[worker] = Held(
                    *(sum(tier) // len(tokens) for tier in zip(*tokens, strict=True))
                )
        return held

    def ranks(self, prompt: Prompt, worker: str) -> dict[int, Held]:
        """Return what each data-parallel rank of a worker holds."""
        found = {size: self.index.find(keys) for size, keys in prompt.blocks.items()}
        return self._ranks(worker, prompt, found, self._depths(found), l1=self.l1)

    def doubt(self, worker: str, prompt: Prompt | None = None) -> str:  # noqa: ARG002
        """See `strategies.policies.kv_aware.Memory`."""
        sources = self.sources.get(worker)
        if not sources:
            return "no events"
        for source in sources:
            if source.doubt:
                return source.doubt
        truth = self.truths[worker]
        if truth.silent(self.heard(worker)):
            return "silent"
        return "disagrees" if truth.demoted else ""

    def heard(self, worker: str) -> int:
        """See `strategies.policies.kv_aware.Memory`."""
        return sum(source.events for source in self.sources.get(worker, ()))

    def observe(self, worker: str, predicted: int | None, outcome: Outcome, heard: int) -> None:
        """See `strategies.policies.kv_aware.Memory`."""
        truth = self.truths.get(worker)
        if truth is None or not outcome.ok:
            return
        cached, prompt = outcome.cached_tokens, outcome.prompt_tokens or 0
        if prompt:
            truth.answered(cached is not None)
        if cached is None:
            return
        if prompt - cached >= SURELY_NEW:
            truth.computed(heard, self.heard(worker))
        if predicted is not None:
            truth.observe(predicted, cached, self._block(worker))

    def correct(
        self, worker: str, prompt: Prompt, believed: Held, found: Held, *, sure: bool
    ) -> None:
        """See `strategies.policies.kv_aware.Memory`. Which of several ranks it was is unknown."""
        sources = self.sources.get(worker, ())
        if len(sources) == 1:
            self.misses.note(sources[0].name, prompt, believed, found, sure=sure)
        elif sources:
            names = [source.name for source in sources]
            self.misses.note_one_of(names, prompt, (found.total, believed.total), sure=sure)

    def forget(self, worker: str) -> None:
        """See `strategies.policies.kv_aware.Memory`."""
        for source in self.sources.get(worker, ()):
            source.restarted()

    # Helpers.

    def _ranks(
        self,
        worker: str,
        prompt: Prompt,
        found: Mapping[int, Found],
        depths: Mapping[tuple[str, Tier], int],
        *,
        l1: bool,
    ) -> dict[int, Held]:
        return {
            source.rank: self._of(source.name, prompt, found, depths, l1=l1)
            for source in self.sources.get(worker, ())
        }

    def _depths(self, found: Mapping[int, Found]) -> dict[tuple[str, Tier], int]:
        """Return tokens held from the start without a gap, by engine and tier, over all sizes."""
        depths: dict[tuple[str, Tier], int] = {}
        place_of = self.index.place_of
        for size, one in found.items():
            for bit, blocks in one.depths.items():
                place = place_of(bit)
                where = (place.worker, place.tier)
                depths[where] = max(depths.get(where, 0), blocks * size)
        return depths

    def _of(
        self,
        engine: str,
        prompt: Prompt,
        found: Mapping[int, Found],
        depths: Mapping[tuple[str, Tier], int],
        *,
        l1: bool,
    ) -> Held:
        """Return what one engine need not compute.

        The GPU's last block does not count if it ends the prompt, since the last token is always
        computed (vLLM `v1/core/kv_cache_manager.py`, `get_computed_blocks`). From other tiers the
        whole prompt may be loaded.
        """
        gpu = depths.get((engine, Tier.GPU), 0)
        if gpu >= prompt.tokens > 0:
            gpu -= self._size(engine, Tier.GPU)
        host = self._beyond((engine, Tier.L1), gpu, found) if l1 else 0
        l2 = max(
            self._beyond((engine, Tier.L2), gpu + host, found),
            self._beyond(("", Tier.L2), gpu + host, found),
        )
        return Held(gpu, host, l2)

    def _block(self, worker: str) -> int:
        """Return the worker's usual block size in tokens; the largest if tiers differ."""
        places = (
            self.index.place(source.name, tier)
            for source in self.sources.get(worker, ())
            for tier in Tier
        )
        return max((place.usual for place in places if place), default=0) or self.sizes()[0]

    def _size(self, engine: str, tier: Tier) -> int:
        place = self.index.place(engine, tier)
        return min(place.sizes) if place and place.sizes else 0

    def _beyond(self, where: tuple[str, Tier], start: int, found: Mapping[int, Found]) -> int:
        """Return how many tokens a tier holds without a gap from token `start` on."""
        place = self.index.place(*where)
        if place is None or not place.blocks:
            return 0
        reached = start
        for size in place.sizes:
            if size in found:
                reached = max(reached, found[size].reach(place.bit, start // size) * size)
        return reached - start
