"""Requests that are held in the router count where more copies of a prefix are wanted."""

from collections.abc import Callable

import pytest
from hypothesis import given

from strategies.api import Candidate, Cost, Decision, Other, Prompt
from strategies.hold.queue import Queue
from strategies.policies.prefix_aware import PrefixAware, PrefixAwareOptions
from strategies.policies.session import Session, SessionOptions
from strategies.prefix.tree import NOT_WANTED, PrefixTree
from tests.strategies.prefix.tries import APART, LARGE, ONE, OTHER, PROMPTS, STEPS, keys, nodes
from tests.strategies.prefix.tries import Prompt as Asked
from tests.strategies.workers import Run, Stand, fleet, prompt, untold


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


def test_those_that_wait_for_something_else_make_it_wanted_less() -> None:
    """A prefix is wanted on as large a share of the workers as it has of all requests."""
    tree = PrefixTree(LARGE)
    for _ in range(2):
        tree.insert(keys(ONE), "a")
    assert tree.match(keys(ONE)).wanted(4) != NOT_WANTED
    for _ in range(4):
        tree.wait(keys(APART))
    assert tree.match(keys(ONE)).wanted(4) == NOT_WANTED


@given(STEPS, PROMPTS, PROMPTS)
def test_nothing_is_left_of_who_waited(
    steps: list[tuple[str, Asked]], first: Asked, second: Asked
) -> None:
    """Whatever was sent meanwhile, which splits what they waited for, or forgotten."""
    tree = PrefixTree(LARGE)
    over: list[Callable[[], None]] = []
    placements = []
    for number, (worker, asked) in enumerate(steps):
        if number % 3 == 1:
            over.append(tree.wait(keys(first)))
            over.append(tree.wait(keys(second)))
        if number % 7 == 5:
            tree.forget(worker)
        placements.append(tree.insert(keys(asked), worker))
    for one in over:
        one()
    for placement in placements:
        tree.close(placement)
    assert {node.users for node in nodes(tree.root)} == {0}


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


def test_a_strategy_need_not_want_to_know() -> None:
    """One without `waits`, below `session` too."""
    over = Session(SessionOptions(Other("leastload")))
    for waits in (None, over.waits):
        queue: Queue[str] = Queue(waits)
        busy = Decision([Candidate(Stand("w"), Cost(wait=9.0))], "load")
        queue.leave(queue.enter("a", Prompt("m", 10), busy, 0.0))
        assert len(queue) == 0


@pytest.mark.parametrize("name", ["prefixaware", "kvaware"])
@pytest.mark.parametrize(("wait", "cheaper"), [(0, False), (6, True)])
def test_a_copy_is_cheaper_the_more_wait_for_it(name: str, wait: int, *, cheaper: bool) -> None:
    """A worker that lacks the prefix is charged less if many wait for who is computing it."""
    workers = fleet(4)
    run = Run(name, workers)
    long = prompt("a long prefix that all have " * 2_000)
    holder = run.place(long)
    strategy = run.strategy

    def price() -> float:
        ranked = strategy.rank(long, workers, 0.1).candidates
        return next(one.cost.price for one in ranked if one.worker.name != holder.name)

    was = price()
    for _ in range(wait):
        strategy.waits(long)
    assert (price() < 0.9 * was) is cheaper


def test_two_that_diverge_are_counted_apart() -> None:
    """What two have in common is counted twice, the rest once."""
    tree = PrefixTree(LARGE)
    tree.insert(keys(ONE), "a")
    tree.insert(keys(OTHER), "a")
    tree.wait(keys(ONE))
    tree.wait(keys(OTHER))
    users = {len(node.keys) + node.at: node.users for node in nodes(tree.root)}
    assert users == {0: 4, 2: 4, 4: 2}
