"""When `prefixaware` returns a prompt to its prefix, and when it spreads it."""

from collections import Counter

from strategies.api import Candidate, Cost, Outcome, Prompt
from tests.strategies.workers import LONG, Run, fleet, prompt


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
            worker.load.book(200.0, 0.0 if worker is not home else 0.6)
        found = run.strategy.rank(prompt(text + "one more"), run.workers, 200.0)
        return found.candidates[0].worker is not home

    assert spills(0)
    assert not spills(4)


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


def test_a_restarted_worker_is_credited_with_nothing() -> None:
    """After `forget`, the prefix is cold everywhere."""
    run = Run("prefixaware", fleet(2))
    first = run.place(prompt(LONG), book=False)
    run.strategy.forget(first.name)
    assert run.strategy.rank(prompt(LONG), run.workers, 0.0).reason == "cold"


def test_the_last_token_is_never_taken_as_held() -> None:
    """A prompt that was sent before still has its last token computed."""
    run = Run("prefixaware", fleet(1))
    whole = prompt("y" * 1024)
    run.place(whole)
    held = run.strategy.rank(whole, run.workers, 0.0).candidates[0].held_tokens
    assert held == whole.tokens - 1


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


def test_a_hot_prefix_spills_when_waiting_costs_more() -> None:
    """A short shared system prompt does not pin the fleet's traffic to one worker."""
    run = Run("prefixaware", fleet(4))
    system = "You are a helpful assistant. " * 40
    placed = Counter(
        run.place(prompt(system + f"question {number} " * 400)).name for number in range(200)
    )
    assert len(placed) == 4
    assert max(placed.values()) < 1.3 * 200 / 4
