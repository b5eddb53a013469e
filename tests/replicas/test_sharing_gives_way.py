"""A request gives way to one of another process: who is asked, and when that has an effect."""

from time import monotonic

import pytest

from router.replicas.sockets import Line, Wiring
from strategies.api import Outcome
from tests.replicas.wired import Process, play, until, wiring

__all__ = ["wiring"]


def test_one_gives_way_to_a_request_of_another_process(wiring: Wiring) -> None:
    """The process that sent it takes it back. It is asked once, and the booking counts everywhere
    until it has done so."""

    async def script(one: Process, two: Process, three: Process) -> None:
        number, long = one.book("long")
        await until(lambda: (two.flying, three.flying) == ([1, 0], [1, 0]))
        (theirs,) = two.theirs
        assert theirs.since == long.since
        short = two.send("short")
        two.sharing.give_way([theirs], short)
        assert (theirs.since, two.flying) == (None, [1, 0])
        await until(lambda: len(one.asked) == 1)
        assert one.asked == [long]
        one.sharing.ended(number, Outcome(ok=False, kept_tokens=1), monotonic())
        await until(lambda: (two.flying, three.flying) == ([0, 0], [1, 0]))
        assert (one.flying, three.asked) == ([1, 0], [])
        # It is known no more.
        two.sharing.give_way([theirs], short)
        two.send("last", worker=1)
        await until(lambda: one.flying == [1, 1])
        assert len(one.asked) == 1

    play(wiring, 3, script)


@pytest.mark.parametrize("why", ["", "ended", "begun", "soon done", "stuck", "own end"])
def test_one_that_would_not_give_way_by_now_goes_on(wiring: Wiring, why: str) -> None:
    """What the process knows that sent it counts, at the moment when it is asked."""

    async def script(one: Process, two: Process) -> None:
        number, _ = one.book("long", 48.0 if why == "soon done" else 0.0)
        await until(lambda: two.flying == [1, 0])
        short, theirs = two.send("short"), two.theirs
        if why == "ended":
            two.end(short)
        elif why == "begun":
            two.sharing.began(short, monotonic())
        elif why == "stuck":
            one.fleet.pools[0].workers[0].load.late_until = monotonic() + 60.0
        elif why == "own end":  # the news of it crosses the other's
            del one.sharing._open[number]
        two.sharing.give_way(theirs, short)
        two.send("next", worker=1)
        await until(lambda: one.flying[1] == 1)
        assert len(one.asked) == (not why)

    play(wiring, 2, script)


def test_one_whose_process_does_not_listen_is_not_asked(wiring: Wiring) -> None:
    """It may be asked later."""

    async def script(one: Process, two: Process) -> None:
        one.book("long")
        await until(lambda: two.flying == [1, 0])
        short, theirs = two.send("short"), two.theirs
        two.sharing._outboxes[0].line = Line.LOST
        two.sharing.give_way(theirs, short)
        assert theirs[0].since is not None
        two.sharing._outboxes[0].line = Line.OPEN
        two.sharing.give_way(theirs, short)
        await until(lambda: len(one.asked) == 1)

    play(wiring, 2, script)


def test_who_may_give_way_is_told_again_as_it_is_by_then(wiring: Wiring) -> None:
    """Not as it was when the request was sent."""

    async def script(one: Process, two: Process) -> None:
        _, first = one.book("first")
        one.book("second")
        await until(lambda: two.flying == [2, 0])
        assert all(booking.since for booking in two.theirs)
        first.since = None
        one.sharing.anew()
        await until(lambda: [booking.since is None for booking in two.theirs] == [True, False])

    play(wiring, 2, script)
