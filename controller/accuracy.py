"""Predicted against reported cached tokens: how true the index is, worker by worker.

A worker whose events keep giving wrong predictions is demoted: it is judged by what was sent there
until the predictions are right again. They continue to be made and compared meanwhile.

Engines announce what leaves their GPU, but not always what leaves other tiers: vLLM's host memory
when it is reset, a shared store whenever it evicts. Answers show it. If a worker reports from which
tier its tokens came, a block that it did not find on a tier is not there. If it only reports the
sum, it may just have given up loading once, so only the second miss of a block counts.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

from controller.index.block_events import Tier
from controller.index.holdings import TierCache
from controller.index.index import Index
from strategies.api import Outcome, Prompt
from strategies.cost.prefill import Held

#: Upper bounds of the error histogram, in tokens: reported minus predicted.
ERROR_BOUNDS = (-4096, -1024, -256, -64, -1, 0, 64, 256, 1024, 4096)
#: Weight of one answer in the share of wrong predictions.
SMOOTHING = 1 / 16
#: A worker is demoted above the first share of wrong predictions, and believed below the second.
DEMOTE_ABOVE, RESTORE_BELOW = 0.5, 0.25
#: A stream is silent after this many answers to prompts with new blocks, without any event.
MAX_UNHEARD_ANSWERS = 4
#: So many computed tokens must give new blocks, whatever the block size.
MIN_NEW_TOKENS = 1024
#: Most blocks remembered as missed once.
MAX_REMEMBERED_MISSES = 1024


class TrackRecord:
    """How predictions of one worker's cached tokens compare with its reports."""

    def __init__(self) -> None:
        self.wrong = 0.0
        """Share of recent predictions that were off by more than a block."""
        self.demoted = False
        self.reports: bool | None = None
        """Whether its answers report cached tokens; None if there was no answer that could."""
        self.compared = 0
        self.sum = 0
        """Sum of all errors in tokens; divided by `compared` it is the bias."""
        self.buckets = [0] * (len(ERROR_BOUNDS) + 1)
        """Number of errors up to each bound in `ERROR_BOUNDS`, and above the last."""
        self._unheard = 0
        self._events = 0

    def answered(self, reports: bool) -> None:
        """Note an answer that reported its prompt's length, and if it `reports` also cached tokens.

        One report is enough, as some workers that can report do not always do it.
        """
        self.reports = reports or bool(self.reports)

    def compare(self, predicted: int | None, outcome: Outcome, block: int) -> bool:
        """Compare with what an answer reports; an error of up to `block` tokens is not wrong.

        Return true if the worker must have announced new blocks of its prompt.
        """
        cached, prompt = outcome.cached_tokens, outcome.prompt_tokens or 0
        if prompt:
            self.answered(cached is not None)
        if cached is None:
            return False
        if predicted is not None:
            error = cached - predicted
            self.compared += 1
            self.sum += error
            self.buckets[bisect_left(ERROR_BOUNDS, error)] += 1
            self.wrong += SMOOTHING * ((abs(error) > block) - self.wrong)
            if self.wrong > DEMOTE_ABOVE:
                self.demoted = True
            elif self.wrong < RESTORE_BELOW:
                self.demoted = False
        return prompt - cached >= MIN_NEW_TOKENS

    def computed(self, before: int, events: int) -> None:
        """Note an answer to a prompt whose new blocks the worker must have announced.

        `before` is how many events there were when it was sent, `events` how many there are now.
        One event may announce the blocks of many prompts, so each answer is judged by the events
        during its own time.
        """
        if events != self._events:
            self._unheard = 0
        self._unheard += events == before
        self._events = events

    def doubt(self, events: int) -> str:
        """Return why the worker's events are not believed; `events` is their number by now.

        It is silent if it computes and announces nothing.
        """
        if self._unheard >= MAX_UNHEARD_ANSWERS and events == self._events:
            return "silent"
        return "disagrees" if self.demoted else ""

    @property
    def bias(self) -> float:
        """Mean error in tokens; negative if more was predicted than found."""
        return self.sum / self.compared if self.compared else 0.0


class Misses:
    """Removes missed blocks from the index."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._once: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.counts = {Tier.L1: 0, Tier.L2: 0}
        """Number of blocks removed, by tier."""

    def note(self, engine: str, prompt: Prompt, believed: Held, found: Held, *, sure: bool) -> None:
        """Learn that an engine found a prompt on other tiers than predicted."""
        on_host = believed.gpu + believed.l1
        reached = found.gpu + found.l1 if sure else found.total
        lost = max(reached, believed.gpu), on_host
        self._missed(self._index.cache(engine, Tier.L1), prompt, lost, sure=sure)
        lost = max(found.total, on_host), believed.total
        for name in (engine, ""):
            self._missed(self._index.cache(name, Tier.L2), prompt, lost, sure=sure)

    def note_one_of(
        self, engines: Sequence[str], prompt: Prompt, lost: tuple[int, int], *, sure: bool
    ) -> None:
        """Learn that one of these engines, unknown which, found fewer tokens than predicted.

        `lost` are the tokens of the prompt that it found, and those that it was believed to hold.
        Whichever engine it was, it would have loaded the next block from L2 if that were there:
        from the shared store, or from its own L2. The latter is doubted only if all of them have
        the block there.
        """
        self._missed(self._index.cache("", Tier.L2), prompt, lost, sure=sure)
        caches = [self._index.cache(name, Tier.L2) for name in engines]
        if all(cache is not None and self._has(cache, prompt, lost[0]) for cache in caches):
            for cache in caches:
                self._missed(cache, prompt, lost, sure=False)

    def _has(self, cache: TierCache, prompt: Prompt, token: int) -> bool:
        """Return true if a cache holds the first block that begins at `token` or after it."""
        matches = {size: self._index.find(prompt.blocks.get(size, ())) for size in cache.sizes}
        return any(
            match.reach(cache.bit, -(-token // size)) > -(-token // size)
            for size, match in matches.items()
        )

    def _missed(
        self, cache: TierCache | None, prompt: Prompt, lost: tuple[int, int], *, sure: bool
    ) -> None:
        """Handle tokens that a tier lacks, from `lost[0]` up to `lost[1]` of a prompt."""
        start, stop = lost
        if cache is None or stop <= start:
            return
        for size in list(cache.sizes):
            keys = prompt.blocks.get(size, ())
            first, last = -(-start // size), min(stop // size, len(keys))
            if first >= last:
                continue
            if cache.ignored_misses:
                cache.ignored_misses -= 1
                return
            if cache.tier is Tier.L2:
                last = first + 1  # only one block: L2 never announces again what it still has
            elif cache.confirmed is not None:
                self._index.doubt(cache.worker)
            if sure or self._again(cache, keys[first]):
                self.counts[cache.tier] += self._index.holdings.lose(cache, keys, first, last)

    def _again(self, cache: TierCache, key: int) -> bool:
        """Return true if a block is missed for the second time; if so, counting starts over."""
        missed = (cache.bit, key)
        if missed in self._once:
            del self._once[missed]
            return True
        self._once[missed] = None
        if len(self._once) > MAX_REMEMBERED_MISSES:
            self._once.popitem(last=False)
        return False
