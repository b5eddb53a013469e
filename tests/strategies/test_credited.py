"""How much of a prompt a worker is believed to hold."""

from strategies.api import Candidate, Cost, Outcome
from tests.strategies.placing import LONG, Run, fleet, prompt


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
