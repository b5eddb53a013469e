"""`poweroftwo` takes the better of two workers drawn at random."""

from strategies.api import Candidate, Cost, Decision, NoOptions, Prompt
from strategies.explain import words
from strategies.policies.power_of_two import PowerOfTwo
from tests.strategies.placing import fleet, prompt


def test_of_two_drawn_the_one_with_less_to_do_is_taken() -> None:
    """The busiest worker is never first: whichever it is drawn with has less to do."""
    workers = fleet(4)
    workers[0].load.book(0.0, 9.0)
    strategy = PowerOfTwo(NoOptions())
    firsts = [strategy.rank(prompt("x"), workers, 0.0).candidates for _ in range(100)]
    assert all(found[0].worker.name != "w0" for found in firsts)
    assert len({found[0].worker.name for found in firsts}) == 3
    assert all(len(found) == 4 for found in firsts)


def test_a_cheaper_one_may_not_have_been_drawn() -> None:
    """Only the two drawn are compared, and the explanation says so; of two, both always are."""
    workers = fleet(3)
    for worker in workers[:2]:
        worker.load.book(0.0, 9.0)
    strategy, told = PowerOfTwo(NoOptions()), prompt("x")
    found = [strategy.rank(told, workers, 0.0) for _ in range(100)]
    firsts = [(one, one.candidates[0].worker.name) for one in found]
    busy = [words(told, one) for one, name in firsts if name != "w2"]
    assert busy
    assert all("drawn" in said and "least" not in said for said in busy)
    assert "is least loaded" in words(told, strategy.rank(told, workers[:2], 0.0))


def test_a_session_that_moves_is_told_what_was_compared() -> None:
    """How much more its worker costs is against the two that were drawn."""
    ranked = [
        Candidate(worker, Cost(wait=wait))
        for worker, wait in zip(fleet(3), (1.0, 3.0, 0.0), strict=True)
    ]
    moves = Decision(ranked, "spill", drawn=True)
    said = words(Prompt("m", 100, bound="w1"), moves)
    assert said.startswith("The session moves to w0: w1 costs 2.000 s more.")
