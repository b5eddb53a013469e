"""Which held request is released next, and when."""

import pytest

from strategies.base import Prompt
from strategies.held import LONGEST_S
from strategies.load import AGING
from tests.strategies.desk import ANY, Desk, Stand


def test_the_shortest_goes_first() -> None:
    """Each is released when the one before it is about to be done."""
    desk = Desk(Stand("a", 10.0))
    assert [desk.come(name, tokens) for name, tokens in (("long", 8), ("short", 2))] == [True] * 2
    assert desk.released() == []
    desk.now = 9.9
    assert desk.released() == ["short"]
    desk.now = 11.9
    assert desk.released() == ["long"]
    assert len(desk.binding) == 0


@pytest.mark.parametrize(("waited", "first"), [(6.1, "long"), (5.9, "short")])
def test_waiting_makes_up_for_length(waited: float, first: str) -> None:
    """Otherwise a stream of short requests would starve a long one."""
    done = 8 / AGING
    desk = Desk(*(Stand(name, done) for name in ("a", "b")))
    desk.come("long", 8)
    desk.now = waited / AGING
    desk.come("short", 2)
    desk.now = done
    assert desk.released()[0] == first


def test_nobody_is_held_for_ever() -> None:
    """After `LONGEST_S` a request joins the worker's queue."""
    desk = Desk(Stand("a", 1000.0))
    desk.come("r", 5)
    desk.now = LONGEST_S - 1
    assert desk.released() == []
    desk.now = LONGEST_S
    assert desk.released() == ["r"]


def test_who_is_held_again_is_not_held_longer() -> None:
    """It has the place in its line that it came with, whoever was held meanwhile."""
    desk = Desk(Stand("a", 1000.0))
    desk.now, prompt = LONGEST_S - 1, Prompt(ANY, 5)
    for name, since in (("new", None), ("second", 0.2), ("first", 0.1)):
        desk.binding.enter(name, prompt, desk.rank(prompt), desk.now, since=since)
    assert [held.item for held in desk.binding] == ["first", "second", "new"]
    assert desk.released() == []
    desk.now = LONGEST_S + 0.3
    assert desk.released() == ["first", "second"]


def test_who_leaves_is_not_released() -> None:
    """A request whose client left is never released; leaving twice changes nothing."""
    desk = Desk(Stand("a", 10.0))
    prompt = Prompt(ANY, 5)
    held = desk.binding.enter("r", prompt, desk.rank(prompt), 0.0)
    desk.binding.leave(held, 0.0)
    desk.binding.leave(held, 0.0)
    assert desk.workers[0].load.promised_s == 0.0
    desk.now = 20.0
    assert desk.released() == []


def test_no_workers_are_not_too_few() -> None:
    """While none can be reached, nothing is sent and nothing promised anew: how much waiting counts
    stays as it was."""
    desk = Desk(Stand("a", 1000.0))
    assert desk.come("r", 5)
    desk.now = LONGEST_S
    assert desk.binding.release(desk.rank, desk.now, []) is None
    assert desk.decided == 1
    load = desk.workers[0].load
    assert (load.promised_s, load.aging) == (5.0, AGING)
    assert desk.released() == ["r"]


def test_nobody_is_let_go_without_room() -> None:
    """However long a request was held, it stays while no worker can take it (`rank` returns
    None)."""
    desk = Desk(Stand("a", 1.0))
    assert desk.come("r", 2)
    loads = [worker.load for worker in desk.workers]
    desk.now = LONGEST_S
    assert desk.binding.release(lambda _: None, desk.now, loads) is None
    assert len(desk.binding) == 1
    assert desk.released() == ["r"]
