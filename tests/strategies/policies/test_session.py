"""`session`: a session stays on its worker; other requests use the strategy below."""

import pytest

from strategies.api import Other, Prompt, Seconds
from strategies.policies.session import Session, SessionOptions
from tests.strategies.workers import Stand, untold


def fleet() -> list[Stand]:
    """Return three workers; the later ones have more to do."""
    made = [untold(f"w{number}") for number in range(3)]
    for number, worker in enumerate(made):
        worker.load.book(0.0, float(number))
    return made


def over(name: str, spill: float | None = None) -> Session:
    """Return a session strategy over another one."""
    return Session(SessionOptions(Other(name), None if spill is None else Seconds(spill)))


def names(strategy: Session, bound: str | None) -> tuple[list[str], str]:
    """Return the order of workers, and the reason."""
    decision = strategy.rank(Prompt("m", 100, bound=bound), fleet(), 0.0)
    return [one.worker.name for one in decision.candidates], decision.reason


@pytest.mark.parametrize("below", ["leastload", "prefixaware"])
def test_without_a_session_it_is_as_the_strategy_below(below: str) -> None:
    """Requests without a session get the order and the reason of the strategy below."""
    order, reason = names(over(below), None)
    assert order == ["w0", "w1", "w2"]
    assert reason in {"load", "cold"}


def test_a_new_session_goes_where_it_costs_least() -> None:
    """A new session is bound to the cheapest worker."""
    assert names(over("leastload"), "") == (["w0", "w1", "w2"], "bind")


def test_a_session_stays_however_long_the_line() -> None:
    """Its worker comes first however much is booked there; the others follow in their order."""
    strategy = over("leastload")
    assert names(strategy, "w2") == (["w2", "w0", "w1"], "session")
    assert strategy.rank(Prompt("m", 1, bound="w2"), fleet(), 0.0).stays


def test_it_moves_when_that_is_worth_more_than_allowed() -> None:
    """It moves if staying costs more than `spill` seconds extra; here the queue costs some."""
    assert names(over("leastload", 1.9), "w2") == (["w0", "w1", "w2"], "spill")
    assert names(over("leastload", 9.0), "w2") == (["w2", "w0", "w1"], "session")
    assert not over("leastload", 9.0).rank(Prompt("m", 1, bound="w2"), fleet(), 0.0).stays


def test_what_it_holds_counts_for_staying() -> None:
    """A cached prompt outweighs a queue that is shorter than computing the prompt elsewhere."""
    strategy = over("prefixaware", 0.0)
    prompt = Prompt("m", 40_000, keys=range(1, 2500), bound="w1")
    cold = strategy.rank(prompt, fleet(), 0.0)
    assert (cold.reason, cold.candidates[0].worker.name) == ("spill", "w0")
    strategy.placed(prompt, fleet()[1], 0.0)
    warm = strategy.rank(prompt, fleet(), 0.0)
    assert (warm.reason, warm.candidates[0].worker.name) == ("session", "w1")


def test_a_lost_worker_s_session_goes_where_most_of_it_is() -> None:
    """The strategy below chooses, which knows who holds most of the session's prefix."""
    strategy = over("prefixaware")
    prompt = Prompt("m", 40_000, keys=range(1, 2500), bound="gone")
    strategy.placed(prompt, fleet()[2], 0.0)
    decision = strategy.rank(prompt, fleet(), 0.0)
    assert (decision.reason, decision.candidates[0].worker.name) == ("rebind", "w2")


def test_it_does_not_stand_over_itself() -> None:
    """`session` needs another strategy below it."""
    with pytest.raises(ValueError, match="another strategy"):
        SessionOptions(Other("session"))
