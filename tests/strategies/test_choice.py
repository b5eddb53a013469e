"""What each strategy chooses."""

from collections import Counter
from dataclasses import dataclass, field
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.base import Candidate, Cost, NoOptions, Outcome, Prompt, Strategy
from strategies.blocks import TEXT_ENDS, chain
from strategies.chbl import Chbl, ChblOptions
from strategies.cost import LEAST_WAIT, Costs
from strategies.demand import IDLE_S, SMOOTHED_S
from strategies.load import STAY_S, Load
from strategies.pace import Pace
from strategies.poweroftwo import PowerOfTwo
from strategies.registry import find, make, names


@dataclass(eq=False)
class Stand:
    """A worker as a strategy sees it."""

    name: str
    load: Load = field(default_factory=Load)
    pace: Pace = field(default_factory=Pace)
    kv_tokens: int | None = 400_000
    room_tokens: int | None = 400_000


def fleet(count: int) -> list[Stand]:
    """Workers w0, w1, …"""
    return [Stand(f"w{number}") for number in range(count)]


def prompt(text: str, answer_tokens: int = 100) -> Prompt:
    """A prompt of this text at four bytes a token."""
    data = text.encode()
    return Prompt("m", len(data) // 4, chain(0, data), TEXT_ENDS, 0.25, answer_tokens, stream=True)


class Run:
    """Places prompts as the router does; the clock stands still unless `now` is given."""

    def __init__(self, strategy: str, workers: list[Stand]) -> None:
        self.strategy: Strategy = make(strategy, {})
        self.workers = workers
        self.turn = 0

    def place(self, asked: Prompt, now: float = 0.0, *, book: bool = True) -> Stand:
        choice = self.strategy.rank(asked, self.workers, now).candidates[0]
        worker = next(w for w in self.workers if w.name == choice.worker.name)
        self.turn += 1
        worker.load.turn = self.turn
        if book:
            worker.load.book(now, choice.cost.prefill, asked.tokens + asked.answer_tokens)
        self.strategy.placed(asked, worker, now)
        return worker


LONG = "the same long document " * 2000


def test_the_built_in_strategies_are_found_by_name() -> None:
    """Strategies are found by their entry points; the error for an unknown name lists them."""
    assert {"roundrobin", "leastload", "prefixaware"} <= set(names())
    with pytest.raises(KeyError, match=r"leastload, .*prefixaware, roundrobin"):
        find("nearest")


@given(st.lists(st.sets(st.integers(0, 5), min_size=1), max_size=60))
def test_round_robin_is_even_under_joins_and_leaves(present: list[set[int]]) -> None:
    """For workers that are always there, the counts never differ by more than one."""
    everyone = fleet(6)
    run = Run("roundrobin", everyone)
    steady = {0, 1}
    counts: Counter[str] = Counter()
    for here in present:
        run.workers = [everyone[number] for number in sorted(here | steady)]
        counts[run.place(prompt("x"), book=False).name] += 1
        assert abs(counts["w0"] - counts["w1"]) <= 1


def test_round_robin_gives_a_newcomer_one_turn_at_a_time() -> None:
    """A worker that joins late is not flooded with requests to make it catch up."""
    run = Run("roundrobin", fleet(2))
    for _ in range(10):
        run.place(prompt("x"), book=False)
    run.workers.append(Stand("late"))
    placed = [run.place(prompt("x"), book=False).name for _ in range(6)]
    assert Counter(placed) == {"w0": 2, "w1": 2, "late": 2}


def test_a_prefix_returns_to_its_worker() -> None:
    """The next turn of a conversation goes where the first went, even when others are idle."""
    run = Run("prefixaware", fleet(8))
    first = run.place(prompt(LONG), book=False)
    for _ in range(20):
        run.place(prompt(f"other {_} " + LONG[: _ * 100]), book=False)
    decision = run.strategy.rank(prompt(LONG + "and one more question"), run.workers, 0.0)
    assert decision.candidates[0].worker.name == first.name
    assert decision.reason == "prefix"
    assert decision.candidates[0].held_tokens > 11_000


def test_a_burst_of_siblings_finds_its_first() -> None:
    """A placement counts at once: a similar cold prompt joins the first on its worker."""
    run = Run("prefixaware", fleet(8))
    placed = {run.place(prompt(LONG + str(number))).name for number in range(2)}
    assert len(placed) == 1


def test_a_hot_prefix_spills_when_waiting_costs_more() -> None:
    """A short shared system prompt does not pin the fleet's traffic to one worker."""
    run = Run("prefixaware", fleet(4))
    system = "You are a helpful assistant. " * 40
    placed = Counter(
        run.place(prompt(system + f"question {number} " * 400)).name for number in range(200)
    )
    assert len(placed) == 4
    assert max(placed.values()) < 1.3 * 200 / 4


def test_without_reuse_prefixaware_is_leastload() -> None:
    """Prompts that share nothing are placed exactly as `leastload` places them."""
    texts = [f"{number} " * (number * 37 % 900) for number in range(100)]
    aware, plain = Run("prefixaware", fleet(4)), Run("leastload", fleet(4))
    assert [aware.place(prompt(t)).name for t in texts] == [
        plain.place(prompt(t)).name for t in texts
    ]


def test_ties_go_round() -> None:
    """An idle fleet is used evenly, not in the order of the list."""
    run = Run("leastload", fleet(4))
    counts = Counter(run.place(prompt(""), book=False).name for _ in range(40))
    assert set(counts.values()) == {10}


def test_a_slow_worker_gets_less() -> None:
    """Cost is in seconds, so a worker four times slower takes a quarter of the work."""
    run = Run("leastload", fleet(2))
    run.workers[1].pace.slower *= 4.0
    counts = Counter(run.place(prompt(f"{n} " * 4000)).name for n in range(100))
    assert counts["w0"] == pytest.approx(80, abs=3)


def test_a_full_cache_repels() -> None:
    """With all else equal, the worker with free KV blocks is chosen."""
    run = Run("leastload", fleet(2))
    booking = run.workers[0].load.book(0.0, 0.0, 390_000)
    run.workers[0].load.first_byte(booking, 0.0)
    run.workers[1].load.turn = 9
    assert run.place(prompt("x" * 4000)).name == "w1"


def test_a_restarted_worker_is_credited_with_nothing() -> None:
    """After `forget`, the prefix is cold everywhere."""
    run = Run("prefixaware", fleet(2))
    first = run.place(prompt(LONG), book=False)
    run.strategy.forget(first.name)
    assert run.strategy.rank(prompt(LONG), run.workers, 0.0).reason == "cold"


@pytest.mark.parametrize("name", ["roundrobin", "leastload", "prefixaware"])
def test_every_worker_is_a_candidate(name: str) -> None:
    """Failover takes the next candidate, so every worker must be listed exactly once."""
    run = Run(name, fleet(5))
    run.place(prompt(LONG))
    decision = run.strategy.rank(prompt(LONG), run.workers, 0.0)
    assert sorted(c.worker.name for c in decision.candidates) == [w.name for w in run.workers]
    candidate = Candidate(run.workers[0], Cost())
    run.strategy.settled(prompt(LONG), candidate, Outcome(ok=True), 1.0)


def test_the_last_token_is_never_taken_as_held() -> None:
    """A prompt that was sent before still has its last token computed."""
    run = Run("prefixaware", fleet(1))
    whole = prompt("y" * 1024)
    run.place(whole)
    held = run.strategy.rank(whole, run.workers, 0.0).candidates[0].held_tokens
    assert held == whole.tokens - 1


def test_answers_are_slower_among_many() -> None:
    """With all else equal, the worker that decodes fewer requests is chosen."""
    run = Run("leastload", fleet(2))
    for _ in range(10):
        load = run.workers[0].load
        load.first_byte(load.book(0.0, 0.0, 4000), 0.0)
    run.workers[1].load.turn = 9
    assert run.place(prompt("x" * 4000)).name == "w1"


def test_a_worker_that_refused_is_not_credited() -> None:
    """A refused placement is taken back, except for what the worker held before."""
    run = Run("prefixaware", fleet(1))
    run.place(prompt(LONG[:5000]), book=False)
    longer = prompt(LONG)
    candidate = run.strategy.rank(longer, run.workers, 0.0).candidates[0]
    run.place(longer, book=False)
    run.strategy.settled(longer, candidate, Outcome(ok=False, began=False), 1.0)
    after = run.strategy.rank(longer, run.workers, 0.0).candidates[0]
    assert after.held_tokens == candidate.held_tokens > 1000


def test_of_two_drawn_the_one_with_less_to_do_is_taken() -> None:
    """The busiest worker is never first: whichever it is drawn with has less to do."""
    workers = fleet(4)
    workers[0].load.book(0.0, 9.0)
    strategy = PowerOfTwo(NoOptions())
    firsts = [strategy.rank(prompt("x"), workers, 0.0).candidates for _ in range(100)]
    assert all(found[0].worker.name != "w0" for found in firsts)
    assert len({found[0].worker.name for found in firsts}) == 3
    assert all(len(found) == 4 for found in firsts)


def test_a_hashed_prefix_has_one_worker_whoever_asks() -> None:
    """Two routers agree on the worker of a prefix; what follows the prefix does not matter."""
    texts = [f"{n} " * 3000 for n in range(40)]
    homes = []
    for question in ("one", "two"):
        strategy = Chbl(ChblOptions())
        found = [strategy.rank(prompt(t + question), fleet(8), 0.0).candidates[0] for t in texts]
        homes.append([candidate.worker.name for candidate in found])
    assert homes[0] == homes[1]
    assert len(set(homes[0])) > 4


def test_a_worker_that_joins_moves_only_what_it_takes() -> None:
    """Prefixes move to the new worker only, never between the old ones."""
    texts = [f"{n} " * 3000 for n in range(200)]
    strategy = Chbl(ChblOptions())
    seven, eight = (
        [strategy.rank(prompt(t), fleet(count), 0.0).candidates[0].worker.name for t in texts]
        for count in (7, 8)
    )
    moved = [after for before, after in zip(seven, eight, strict=True) if before != after]
    assert set(moved) == {"w7"}
    assert len(moved) < 200 * (1 / 8 + 0.05)


def test_a_hashed_prefix_spills_beyond_the_bound() -> None:
    """If all send the same prompt, no worker gets more than its bounded share."""
    workers = fleet(4)
    strategy = Chbl(ChblOptions())
    for _ in range(100):
        choice = strategy.rank(prompt(LONG), workers, 0.0).candidates[0]
        next(w for w in workers if w is choice.worker).load.book(0.0, 0.1)
    assert max(worker.load.in_flight for worker in workers) <= 1.25 * 101 / 4 + 1


def test_a_prefix_of_no_tokens_is_refused() -> None:
    """All prompts would hash to the same worker."""
    with pytest.raises(ValueError, match="at least 1"):
        ChblOptions(prefix=0)


def test_a_replica_costs_more_the_busier_the_fleet_is() -> None:
    """A prompt spills from a busy holder in an idle fleet; near saturation it waits for it."""
    text = LONG[:16_000]

    def spills(busy: int) -> bool:
        run = Run("prefixaware", fleet(4))
        home = run.place(prompt(text), book=False)
        for worker in run.workers[:busy]:
            worker.load.book(0.0, 5.0, stream=True)
        for now in range(200):  # the share of busy workers is smoothed
            asked = prompt(text + "x")
            run.strategy.rank(asked, run.workers, float(now))
            run.strategy.placed(asked, home, float(now))
        for worker in run.workers:
            worker.load.book(200.0, 0.0 if worker is not home else 1.2)
            worker.load.given_s, worker.load.given_at = 20.0, 200.0  # all had their share
        found = run.strategy.rank(prompt(text + "one more"), run.workers, 200.0)
        return found.candidates[0].worker is not home

    assert spills(0)
    assert not spills(4)


@pytest.mark.parametrize("reused", [False, True])
def test_conversations_begin_where_their_turns_will_not_wait(*, reused: bool) -> None:
    """Of two idle workers that hold the same, the one less busy lately wins if turns follow."""
    run = Run("prefixaware", fleet(2))
    text = LONG[:16_000] if reused else ""
    for now in range(300):
        for worker in run.workers:
            asked = prompt(text + f"{now} {worker.name} " * 60)
            run.strategy.rank(asked, run.workers, float(now))
            run.strategy.placed(asked, worker, float(now))
        load = run.workers[0].load
        load.release(load.book(float(now), 0.8), float(now))
    first, second = run.strategy.rank(prompt(text + "z" * 400), run.workers, 300.0).candidates
    assert (first.cost.wait, second.cost.wait) == (0.0, 0.0)
    if reused:
        assert first.worker.name == "w1"
        assert second.cost.home > 0.2 > first.cost.home
    else:  # no later turns are expected, so none will wait
        assert second.cost.home < 0.05


def test_sessions_that_begin_without_a_prompt_take_turns() -> None:
    """Otherwise the worker that was least busy would attract all of them: nothing is booked."""
    run = Run("prefixaware", fleet(4))
    text = LONG[:16_000]
    for now in range(40):
        asked = prompt(text + "y" * 400)
        run.strategy.rank(asked, run.workers, float(now))
        run.strategy.placed(asked, run.workers[0], float(now))
        load = run.workers[0].load
        load.release(load.book(float(now), 0.8), float(now))
    chosen = Counter(run.place(Prompt("m", 0), 40.0).name for _ in range(8))
    assert set(chosen.values()) == {2}


def test_a_full_worker_is_waited_for_only_if_it_is_worth_it() -> None:
    """On a worker without room in its KV cache, waiting for another request to end costs time."""
    run = Run("leastload", fleet(2))
    full = run.workers[0]
    full.load.first_byte(full.load.book(0.0, 0.0, 399_000), 0.0)
    first, second = run.strategy.rank(prompt("x" * 40_000), run.workers, 0.0).candidates
    assert (first.worker.name, first.cost.room) == ("w1", 0.0)
    assert second.cost.room > 1.0
    (asked,) = Costs().rank(Prompt("m", 21_000, answer_tokens=0), [full], 0.0)
    assert asked.cost.room == pytest.approx(STAY_S * (0.05 + LEAST_WAIT))


@pytest.mark.parametrize("running", [0, 3])
def test_what_never_fits_does_not_wait_for_room(running: int) -> None:
    """The worker will refuse a prompt larger than its KV cache, so the sooner the better."""
    one = Stand("w0", room_tokens=8_000)
    for _ in range(running):
        one.load.book(0.0, 0.0, 2_000)
    (choice,) = Costs().rank(Prompt("m", 8_100, answer_tokens=256), [one], 0.0)
    assert choice.cost.room == 0.0
    if not running:  # no request is running whose end could make room for the answer
        (choice,) = Costs().rank(Prompt("m", 7_900, answer_tokens=256), [one], 0.0)
        assert choice.cost.room == 0.0


def test_what_requests_have_in_common_takes_room_once() -> None:
    """Ten questions about one long document fit where ten documents would not."""
    run = Run("prefixaware", fleet(1))
    document = "long document " * 20_000
    for number in range(10):
        run.place(prompt(document + f"question {number} " * 100))
    choice = run.strategy.rank(prompt(document + "another"), run.workers, 0.0).candidates[0]
    assert run.workers[0].load.kv_tokens > 400_000
    assert choice.cost.room == 0.0


def test_a_report_of_fewer_tokens_is_believed() -> None:
    """A worker that lost a prefix has also lost everything used before it."""
    run = Run("prefixaware", fleet(1))
    worker = run.workers[0]
    texts = [f"{number} " * 4000 for number in range(4)]
    for text in texts:
        asked = prompt(text)
        run.place(asked, book=False)
        candidate = Candidate(worker, Cost())
        run.strategy.settled(asked, candidate, Outcome(ok=True, cached_tokens=0), 0.0)
    again = prompt(texts[1])
    candidate = run.strategy.rank(again, run.workers, 0.0).candidates[0]
    assert candidate.held_tokens > 1000
    run.place(again, book=False)
    run.strategy.settled(again, candidate, Outcome(ok=True, cached_tokens=0), 0.0)
    held = [
        run.strategy.rank(prompt(text), run.workers, 0.0).candidates[0].held_tokens
        for text in texts
    ]
    assert held[0] == 0
    assert all(held[1:])


@pytest.mark.parametrize("strategy", ["prefixaware", "kvaware"])
def test_what_a_request_has_in_common_with_those_under_way_takes_no_room(strategy: str) -> None:
    """A prefix of more than half of the KV cache is stored once, however many requests share it; a
    prompt that shares nothing with it waits for room."""
    (worker,) = workers = fleet(1)
    worker.kv_tokens = worker.room_tokens = 100_000
    run = Run(strategy, workers)
    for number in range(3):
        asked = prompt("x" * 240_000 + f"question {number}")
        assert run.strategy.rank(asked, workers, 0.0).candidates[0].cost.room == 0.0
        run.place(asked)
    other = prompt("y" * 240_000)
    assert run.strategy.rank(other, workers, 0.0).candidates[0].cost.room > 0.0


def test_a_prefix_of_all_is_worth_a_second_copy() -> None:
    """On one worker, decoding would read more than its KV cache has room for."""
    workers = fleet(2)
    run = Run("prefixaware", workers)
    texts = ["x" * 240_000 + f"question {number}" for number in range(40)]
    for text in texts:
        choice = run.strategy.rank(prompt(text), workers, 0.0).candidates[0]
        asked = prompt(text)
        worker = next(w for w in workers if w.name == choice.worker.name)
        booking = worker.load.book(0.0, choice.cost.prefill, asked.tokens + asked.answer_tokens)
        worker.load.first_byte(booking, 0.0)  # computed at once, so the queue stays empty
        run.strategy.placed(asked, worker, 0.0)
    flying = sorted(worker.load.in_flight for worker in workers)
    assert flying[0] > 10


def test_who_does_not_tell_its_room_has_the_least() -> None:
    """Its cache is taken to be as full as if it were the smallest in the pool."""
    workers = [Stand("w0", room_tokens=room) for room in (None, 100_000, 300_000)]
    for number, worker in enumerate(workers):
        worker.name = f"w{number}"
    ranked = {one.worker.name: one.cost for one in Costs().rank(Prompt("m", 1_000), workers, 0.0)}
    assert ranked["w0"].decode == ranked["w1"].decode > 2 * ranked["w2"].decode > 0.0
    (alone,) = Costs().rank(Prompt("m", 1_000), workers[:1], 0.0)
    assert alone.cost.decode == 0.0


def test_demand_is_told_of_a_prompt_once() -> None:
    """A prompt counts as demand once, however often it is ranked and sent."""
    workers, costs = fleet(2), Costs()
    workers[0].load.book(0.0, 1000.0)
    demand, late = costs._demand, SMOOTHED_S * log(2.0)
    first, asked, other = (prompt(f"{word} " * 100) for word in ("first", "asked", "other"))
    costs.rank(first, workers[1:], 0.0)
    costs.placed(first, 0.0)
    costs.rank(asked, workers, late)
    costs.placed(asked, late)
    told = demand._busy, demand._prompts
    half = SMOOTHED_S / 2
    assert list(told) == pytest.approx([0.5 * half / (half + IDLE_S), 1.5])
    costs.placed(asked, late)
    costs.rank(asked, workers[:1], 2 * late)
    costs.placed(asked, 2 * late)
    costs.rank(other, workers, 2 * late)
    costs.placed(asked, 2 * late)
    assert (demand._busy, demand._prompts) == told
    costs.rank(other, workers[1:], 2 * late)
    costs.placed(other, 2 * late)
    assert demand._busy == pytest.approx(told[0] / 2)
