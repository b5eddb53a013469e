"""`poweroftwo` takes the better of two workers drawn at random."""

from strategies.base import NoOptions
from strategies.poweroftwo import PowerOfTwo
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
