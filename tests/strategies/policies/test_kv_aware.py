"""`kvaware`: what events say, what is running or has just ended, and the shadow without events."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from strategies.api import Candidate, Cost, Outcome, Prompt, Seconds
from strategies.cost.prefill import Held, Loads
from strategies.explain import words
from strategies.policies.kv_aware import KvAware, KvAwareOptions
from tests.strategies.workers import Stand, untold

KEYS = list(range(1, 65))
PROMPT = Prompt("m", 4160, keys=KEYS, ends=range(0, 1 << 20, 64), blocks={16: KEYS}, counted=True)


class Told:
    """A memory that answers with what the test puts into it, and records its calls."""

    def __init__(self, **held: Held) -> None:
        self.tokens: dict[str, Held] = dict(held)
        self.doubts: dict[str, str] = {}
        self.observed: list[tuple[str, int | None]] = []
        self.events = 0
        self.heard_before: list[int] = []
        self.forgotten: list[str] = []
        self.corrected: list[tuple[str, Held, Held, bool]] = []

    def held(self, _: Prompt, workers: Sequence[str]) -> Mapping[str, Held]:
        """Return what the test has set."""
        return {worker: self.tokens[worker] for worker in workers if worker in self.tokens}

    def doubt(self, worker: str, _: Prompt | None = None) -> str:
        """Return what the test has set."""
        return self.doubts.get(worker, "")

    def heard(self, _: str) -> int:
        """Return what the test has set."""
        return self.events

    def observe(self, worker: str, predicted: int | None, _: Outcome, heard: int) -> None:
        """Record the call."""
        self.observed.append((worker, predicted))
        self.heard_before.append(heard)

    def correct(
        self, worker: str, prompt: Prompt, believed: Held, found: Held, *, sure: bool
    ) -> None:
        """Record the call."""
        assert prompt.blocks
        self.corrected.append((worker, believed, found, sure))

    def forget(self, worker: str) -> None:
        """Record the call."""
        self.forgotten.append(worker)


def strategy(memory: Told | None, unconfirmed: float = 10.0) -> KvAware:
    """Create the strategy, with this memory or without one."""
    made = KvAware(KvAwareOptions(unconfirmed=Seconds(unconfirmed)))
    made.kv.loads = Loads(200_000.0, 50_000.0)
    made.kv.memory = memory
    return made


def test_who_is_said_to_hold_it_is_first() -> None:
    """The worker that holds the prompt according to its events comes first."""
    kvaware = strategy(Told(b=Held(4096)))
    decision = kvaware.rank(PROMPT, [untold("a"), untold("b")], 0.0)
    assert [one.worker.name for one in decision.candidates] == ["b", "a"]
    assert (decision.reason, decision.candidates[0].held_tokens) == ("prefix", 4096)


def test_tiers_cost_their_loading_and_never_more_than_computing() -> None:
    """The order is GPU, host memory, store, nothing; a tier slower than computing costs what
    computing costs."""
    memory = Told(a=Held(), b=Held(0, 0, 4096), c=Held(0, 4096), d=Held(4096))
    workers = [untold(name) for name in "abcd"]
    decision = strategy(memory).rank(PROMPT, workers, 0.0)
    assert [one.worker.name for one in decision.candidates] == ["d", "c", "b", "a"]
    costs = {one.worker.name: one.cost.prefill for one in decision.candidates}
    assert costs["c"] - costs["d"] == pytest.approx(4096 / 200_000)
    assert costs["b"] - costs["d"] == pytest.approx(4096 / 50_000)
    slow = KvAware(KvAwareOptions())
    slow.kv.loads = Loads(200_000.0, 1.0)
    slow.kv.memory = memory
    costs = {one.worker.name: one.cost.prefill for one in slow.rank(PROMPT, workers, 0).candidates}
    assert costs["b"] == pytest.approx(costs["a"])


@pytest.mark.parametrize(
    ("threshold", "held", "first", "reason"),
    [
        (0, 1024, "b", "prefix"),
        (3136, 1024, "b", "prefix"),
        (3135, 1024, "a", "below_threshold"),
        (3135, 1040, "b", "prefix"),
        (3135, 0, "a", "below_threshold"),
        (4160, 0, "a", "cold"),
    ],
)
def test_a_match_below_the_threshold_counts_for_nothing(
    threshold: int, held: int, first: str, reason: str
) -> None:
    """The least loaded worker takes the prompt; what each worker holds is still predicted, and
    compared with the outcome."""
    kvaware = KvAware(KvAwareOptions(threshold=threshold))
    kvaware.kv.memory = memory = Told(b=Held(held))
    workers = [untold("b"), untold("a")]
    workers[0].load.book(0.0, 0.001, 1, stream=True)
    decision = kvaware.rank(PROMPT, workers, 0.0)
    assert (decision.candidates[0].worker.name, decision.reason) == (first, reason)
    assert {one.worker.name: one.held_tokens for one in decision.candidates} == {"a": 0, "b": held}
    few = words(PROMPT, decision).startswith(
        f"No worker holds enough of the prompt: {first} is least loaded."
    )
    assert few is (reason == "below_threshold")
    (there,) = [one for one in decision.candidates if one.worker.name == "b"]
    kvaware.placed(PROMPT, there.worker, 0.0)
    outcome = Outcome(ok=True, began=True, prompt_tokens=4160, cached_tokens=held)
    kvaware.settled(PROMPT, there, outcome, 1.0)
    assert memory.observed == [("b", held)]


def test_what_is_under_way_counts_until_its_events_have_come() -> None:
    """A running request cannot be evicted, so it counts however long it takes; `unconfirmed`
    seconds after its end only the memory counts."""
    kvaware, workers = strategy(Told(), 1.0), [untold("a"), untold("b")]
    first = kvaware.rank(PROMPT, workers, 0.0).candidates[1]
    assert first.worker.name == "b"
    kvaware.placed(PROMPT, first.worker, 0.0)
    for now in (0.0, 5.0, 100.0, 100.9):
        decision = kvaware.rank(PROMPT, workers, now)
        assert (decision.candidates[0].worker.name, decision.reason) == ("b", "prefix")
        if now == 100.0:
            kvaware.settled(PROMPT, first, Outcome(ok=True, began=True), now)
    assert kvaware.rank(PROMPT, workers, 101.0).reason == "cold"


@pytest.mark.parametrize("doubt", ["gap", "silent", "disagrees"])
def test_who_is_doubted_is_judged_by_what_was_sent(doubt: str) -> None:
    """If the events of a worker are doubted, its shadow is used and the reason names the doubt."""
    memory = Told(a=Held(4096))
    kvaware, workers = strategy(memory, 0.0), [untold("a"), untold("b")]
    kvaware.placed(PROMPT, workers[1], 0.0)
    memory.doubts = {"a": doubt, "b": doubt}
    decision = kvaware.rank(PROMPT, workers, 5.0)
    assert (decision.candidates[0].worker.name, decision.reason) == ("b", f"prefix ({doubt})")


def test_without_tokens_or_memory_the_shadow_decides() -> None:
    """Then it chooses by what was sent, like `prefixaware`."""
    text = Prompt("m", 4160, keys=KEYS, ends=range(0, 1 << 20, 64))
    for kvaware, prompt, reason in (
        (strategy(Told(a=Held(4096))), text, "prefix (text)"),
        (strategy(None), PROMPT, "prefix (no memory)"),
    ):
        workers = [untold("a"), untold("b")]
        kvaware.placed(prompt, workers[1], 0.0)
        decision = kvaware.rank(prompt, workers, 50.0)
        assert (decision.candidates[0].worker.name, decision.reason) == ("b", reason)


def test_predictions_are_compared_where_the_memory_made_them() -> None:
    """Not if a running or just ended request affected the prediction, and not if the worker
    refused; while the worker is doubted they still are."""
    memory, done = Told(a=Held(4096)), Outcome(ok=True, prompt_tokens=4160, cached_tokens=4096)
    kvaware, worker = strategy(memory), untold("a")
    first = kvaware.rank(PROMPT, [worker], 0.0).candidates[0]
    kvaware.placed(PROMPT, worker, 0.0)
    kvaware.settled(PROMPT, first, done, 1.0)
    again = Prompt("m", 4160, keys=KEYS, ends=range(0, 1 << 20, 64), blocks={16: KEYS})
    kvaware.placed(again, worker, 2.0)
    kvaware.settled(again, Candidate(worker, first.cost, 4096), done, 3.0)
    memory.doubts, memory.events = {"a": "disagrees"}, 7
    kvaware.placed(again, worker, 100.0)
    memory.events = 8
    kvaware.settled(again, Candidate(worker, first.cost, 0), done, 101.0)
    kvaware.placed(again, worker, 200.0)
    kvaware.settled(again, Candidate(worker, first.cost, 0), Outcome(False, began=False), 201.0)
    assert memory.observed == [("a", 4096), ("a", None), ("a", 4096)]
    assert memory.heard_before == [0, 0, 7], "as it was when it was sent"
    kvaware.forget("a")
    assert memory.forgotten == ["a"]


def test_of_a_preempted_prompt_only_events_tell_what_is_there() -> None:
    """It is neither under way nor in a store any more, and says nothing about the memory; neither
    does it once it is resumed, as events of what it computed may be on their way."""
    memory, worker = Told(), untold("a")
    kvaware = strategy(memory)
    kvaware.kv.store = store = Stored(0)
    best = kvaware.rank(PROMPT, [worker], 0.0).candidates[0]
    kvaware.placed(PROMPT, worker, 0.0)
    kvaware.settled(PROMPT, best, Outcome(ok=False, kept_tokens=2048), 1.0)
    assert kvaware.rank(PROMPT, [worker], 1.0).candidates[0].held_tokens == 0
    kvaware.settled(PROMPT, best, Outcome(ok=True, cached_tokens=0), 1.0)
    assert (memory.observed, store.told) == ([], []), "it has ended before"
    resumed = replace(PROMPT, resumed=True)
    best = kvaware.rank(resumed, [worker], 1.0).candidates[0]
    kvaware.placed(resumed, worker, 1.0)
    kvaware.settled(resumed, best, Outcome(ok=True, cached_tokens=2048), 2.0)
    assert memory.observed == [("a", None)]


def test_the_reason_names_the_tier() -> None:
    """The reason names the tier that has most of the tokens: row K6 of docs/hyperpod.md."""
    workers = [untold("a"), untold("b")]
    for held, reason in (
        ({"a": Held(64, 4032)}, "l1"),
        ({"a": Held(64, 0, 4032), "b": Held(0, 0, 4096)}, "l2"),
        ({"a": Held(2112, 0, 1984)}, "prefix"),
    ):
        assert strategy(Told(**held), 0.0).rank(PROMPT, workers, 0.0).reason == reason


class Stored:
    """A store that answers with what the test has set, and records its calls."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.told: list[int] = []

    def held(self, _: Prompt) -> int:
        """Return what the test has set."""
        return self.tokens

    def computed(self, prompt: Prompt, cached: int) -> None:
        """Record the call."""
        assert prompt.keys is KEYS
        self.told.append(cached)


def test_the_store_is_told_what_was_computed() -> None:
    """All but the cached tokens that the worker reported, or else that were predicted; nothing if
    the request failed."""
    kvaware, worker = strategy(Told(a=Held(1024)), 0.0), untold("a")
    kvaware.kv.store = store = Stored(0)
    for outcome in (
        Outcome(True, cached_tokens=512),
        Outcome(True),
        Outcome(False),
        Outcome(False, began=False),
    ):
        best = kvaware.rank(PROMPT, [worker], 0.0).candidates[0]
        kvaware.placed(PROMPT, worker, 0.0)
        kvaware.settled(PROMPT, best, outcome, 0.0)
    assert store.told == [512, 1024]


def test_what_was_sent_is_on_the_gpu_by_now() -> None:
    """A running request has loaded its blocks onto the GPU, so they are not loaded again."""
    memory = Told(a=Held(0, 0, 4096))
    kvaware, workers = strategy(memory, 10.0), [untold("a")]
    kvaware.placed(PROMPT, workers[0], 0.0)
    best = kvaware.rank(PROMPT, workers, 1.0).candidates[0]
    assert (best.held_tokens, best.loading.seconds) == (4096, 0.0)


def test_loading_is_learned_from_what_was_loaded() -> None:
    """A tier ten times slower than guessed is recognised after a dozen answers; answers that found
    fewer tokens than predicted teach nothing."""
    kvaware, worker = strategy(Told(a=Held(0, 0, 4096)), 0.0), untold("a")
    took = 4096 / 5_000 + worker.pace.prefill(64, 4096)
    for cached, number in ((100, 3), (4096, 12)):
        for _ in range(number):
            best = kvaware.rank(PROMPT, [worker], 100.0).candidates[0]
            kvaware.placed(PROMPT, worker, 100.0)
            done = Outcome(True, prompt_tokens=4160, cached_tokens=cached, computed_s=took)
            kvaware.settled(PROMPT, best, done, 100.0)
        assert (kvaware.kv.loads.rates["l2"] == pytest.approx(50_000)) == (cached == 100)
    assert kvaware.kv.loads.rates["l2"] == pytest.approx(5_000, rel=0.2)
    assert kvaware.kv.loads.rates["l1"] == pytest.approx(200_000)


@pytest.mark.parametrize("memory", [None, Told(a=Held(1024))])
def test_what_others_sent_corrects_only_a_shadow(memory: Told | None) -> None:
    """What another process predicted is not known here, so its outcomes correct nothing, unless
    there is no memory and all processes use shadows."""
    kvaware, worker = strategy(memory, 0.0), untold("a", kv_tokens=100_000)

    def sent(keys: list[int]) -> int:
        """Return what counts as held by what was sent, as text has no blocks to look up."""
        text = Prompt("", 4160, keys=keys, ends=PROMPT.ends)
        return kvaware.rank(text, [worker], 0.0).candidates[0].held_tokens

    first, *_, last = paths = [[100 * n + block for block in range(64)] for n in (1, 2, 3, 1)]
    for keys in paths:  # the first one is gone when it comes again
        theirs = Prompt("", 4160, keys=keys, ends=PROMPT.ends, elsewhere=True)
        kvaware.placed(theirs, worker, 0.0)
        assert sent(keys) == 4096
        held = 4096 if keys is last else 0
        there = Candidate(worker, Cost(), held)
        kvaware.settled(theirs, there, Outcome(True, cached_tokens=0), 0.0)
    assert sent(first) == 4096
    assert memory is None or (memory.observed, memory.corrected) == ([], [])


def asked(kvaware: KvAware, worker: Stand, now: float = 0.0, **said: object) -> Candidate:
    """Send one prompt to the worker and settle it; return the candidate that was ranked."""
    best = kvaware.rank(PROMPT, [worker], now).candidates[0]
    kvaware.placed(PROMPT, worker, now)
    outcome = Outcome(True, prompt_tokens=4160, **said)  # type: ignore[arg-type]
    kvaware.settled(PROMPT, best, outcome, now)
    return best


def test_a_worker_that_says_where_it_found_it_is_believed() -> None:
    """The tiers are corrected by its report, and load rates are learned from what it loaded rather
    than from what was predicted."""
    memory, worker = Told(a=Held(0, 4096)), untold("a")
    kvaware, found = strategy(memory, 0.0), Held(0, 0, 4096)
    took = 4096 / 5_000 + worker.pace.prefill(64, 4096)
    for _ in range(12):
        asked(kvaware, worker, cached_tokens=4096, found=found, computed_s=took)
    assert memory.corrected[0] == ("a", Held(0, 4096), found, True)
    assert kvaware.kv.loads.rates["l2"] == pytest.approx(5_000, rel=0.2)
    assert kvaware.kv.loads.rates["l1"] == pytest.approx(200_000)


def test_a_sum_corrects_what_lies_behind_the_gpu() -> None:
    """A total of cached tokens corrects what was believed on slower tiers. It corrects nothing if
    it is as predicted, if only the GPU was involved (its events are reliable), or while the worker
    is doubted."""
    memory, worker = Told(a=Held(1024, 3072)), untold("a")
    kvaware = strategy(memory, 0.0)
    asked(kvaware, worker, cached_tokens=4096)
    memory.tokens["a"] = Held(4096)
    asked(kvaware, worker, cached_tokens=0)
    assert memory.corrected == []
    memory.tokens["a"] = Held(1024, 3072)
    asked(kvaware, worker, cached_tokens=1040)
    assert memory.corrected == [("a", Held(1024, 3072), Held(1024, 16), False)]
    memory.doubts["a"] = "gap"
    asked(kvaware, worker, cached_tokens=0)
    assert len(memory.corrected) == 1


@pytest.mark.parametrize("promotes", [False, True])
def test_what_was_loaded_from_l2_stays_where_settings_say(promotes: bool) -> None:
    """With promotion it is on L1 as well, although no event says so, until an answer shows that it
    is not."""
    memory, worker = Told(a=Held(0, 0, 4096)), untold("a")
    kvaware = strategy(memory, 0.0)
    kvaware.kv.loads = Loads(200_000.0, 50_000.0, promotes=promotes)
    asked(kvaware, worker, cached_tokens=4096)
    asked(kvaware, worker, 1.0, cached_tokens=4096, found=Held(0, 0, 4096))
    on_l1 = kvaware.rank(PROMPT, [worker], 2.0)
    assert (on_l1.reason, on_l1.candidates[0].loading.l1) == (
        ("l1", 4096) if promotes else ("l2", 0)
    )
    if promotes:
        asked(kvaware, worker, 3.0, cached_tokens=64, found=Held(0, 64))
        assert kvaware.rank(PROMPT, [worker], 4.0).reason == "l2"
        asked(kvaware, worker, 5.0, cached_tokens=4096)
        assert kvaware.rank(PROMPT, [worker], 6.0).reason == "l1"
        kvaware.forget("a")
        assert kvaware.gauges()["promoted_blocks"] == 0


def test_what_all_can_load_attracts_nobody() -> None:
    """The least loaded worker is chosen and charged for loading: row K6 of docs/hyperpod.md."""
    store = Held(0, 0, 4096)
    kvaware, workers = strategy(Told(a=store, b=store), 0.0), [untold("a"), untold("b")]
    workers[0].load.book(0.0, 1.0, 4096, stream=True)
    best = kvaware.rank(PROMPT, workers, 0.0).candidates[0]
    assert best.worker.name == "b"
    rest = workers[1].pace.prefill(64, 4096)
    assert best.cost.prefill == pytest.approx(4096 / 50_000 + rest)
    assert best.loading == pytest.approx((4096 / 50_000, 0, 4096))
