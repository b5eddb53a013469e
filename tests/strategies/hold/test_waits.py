"""Requests that are held in the router count where more copies of a prefix are wanted."""

import pytest

from strategies.api import Candidate, Cost, Decision
from strategies.hold.queue import Queue
from strategies.policies.prefix_aware import PrefixAware, PrefixAwareOptions
from strategies.policies.session import Session, SessionOptions
from strategies.prefix.tree import NOT_WANTED, PrefixTree
from tests.strategies.prefix.tries import LARGE, ONE, keys
from tests.strategies.workers import prompt, untold


def test_those_that_wait_count_as_those_that_run() -> None:
    """Three who wait for a prefix that one worker is computing make it wanted on more workers."""
    tree = PrefixTree(LARGE)
    tree.insert(keys(ONE), "a")
    assert tree.match(keys(ONE)).wanted(4) == NOT_WANTED
    over = [tree.wait(keys(ONE)) for _ in range(3)]
    wanted = tree.match(keys(ONE)).wanted(4)
    assert wanted.blocks == 4
    assert wanted.tokens == pytest.approx(4.0)
    for one in over:
        one()
    assert tree.match(keys(ONE)).wanted(4) == NOT_WANTED


@pytest.mark.parametrize("sessions", [False, True])
def test_strategies_hear_of_those_that_are_held(
    monkeypatch: pytest.MonkeyPatch, *, sessions: bool
) -> None:
    """From when they are held until they are released, or have gone."""
    below = PrefixAware(PrefixAwareOptions())
    monkeypatch.setattr("strategies.policies.session.make", lambda *_: below)
    over = Session(SessionOptions()) if sessions else below
    queue: Queue[str] = Queue(over.waits)
    worker, asked = untold(), prompt("words " * 100)
    busy = Decision([Candidate(worker, Cost(wait=9.0, prefill=1.0))], "cold")
    first, second = (queue.enter(name, asked, busy, 0.0) for name in "ab")
    assert below.tree.root.users == 2
    queue.leave(first)
    queue.leave(first)
    assert below.tree.root.users == 1
    free = Decision([Candidate(worker, Cost())], "cold")
    assert queue.release(lambda _: free, 40.0, [worker.load]) == (second, free)
    assert below.tree.root.users == 0
