"""Router processes that tell each other which requests they have in flight."""

import asyncio
import os
from contextlib import ExitStack
from time import monotonic

import pytest
from msgspec.structs import replace

from router.replicas.messages import Batch, Booked, GiveWay, Resync, decode, encode
from router.replicas.sockets import MAX_DATAGRAM_BYTES, Wiring
from strategies.api import Outcome
from strategies.policies.prefix_aware import PrefixAware
from tests.fleet.fleets import choice, prompt, worker
from tests.replicas.wired import Peer, Process, play, until, wiring

__all__ = ["wiring"]

LONG = "long " * 12_000


def test_each_hears_of_all(wiring: Wiring) -> None:
    """Every process hears when a request is sent, when its prompt is computed and when it ends."""

    async def script(one: Process, two: Process, three: Process) -> None:
        first, second = one.send(worker=1), two.send(worker=1)
        await until(lambda: (one.flying, two.flying, three.flying) == ([0, 1], [0, 1], [0, 2]))
        three_load = three.fleet.pools[0].workers[1].load
        assert three_load.decoding == 0
        one.sharing.began(first, 0.5)
        await until(lambda: three_load.decoding == 1)
        freed = three.freed
        one.end(first)
        await until(lambda: three.flying == [0, 1])
        assert three.freed > freed
        two.end(second)
        await until(lambda: three.flying == [0, 0])
        assert [len(process.sharing.mirror) for process in (one, two, three)] == [0, 0, 0]

    play(wiring, 3, script)


def test_all_hear_that_a_request_is_preempted_and_resumed(wiring: Wiring) -> None:
    """It leaves its worker there too, which keeps the part of its prompt that was computed; what is
    found when it is resumed corrects nobody's beliefs."""
    text = "the quick brown fox " * 4_000

    async def script(one: Process, two: Process) -> None:
        worker, strategy = two.fleet.pools[0].workers[0], two.fleet.pools[0].strategy
        assert isinstance(strategy, PrefixAware)
        asked = prompt(text)

        def held() -> int:
            return strategy.rank(asked, [worker], 0.0).candidates[0].held_tokens

        number = one.send(text)
        await until(lambda: two.flying == [1, 0])
        assert held() > asked.tokens - 300
        one.sharing.ended(number, Outcome(ok=False, kept_tokens=asked.tokens // 2), 1.0)
        await until(lambda: two.flying == [0, 0])
        assert asked.tokens // 2 - 300 < held() <= asked.tokens // 2
        assert (worker.load.uncached, worker.load.decoding) == (0, 0)
        pool, resumed = one.fleet.pools[0], replace(asked, resumed=True)
        number = one.sharing.booked(pool, resumed, choice(one.fleet, 0, held=10_000), 1.0)
        one.sharing.ended(number, Outcome(ok=True, cached_tokens=0, answer_tokens=1), 2.0)
        one.send(worker=1)
        await until(lambda: two.flying == [0, 1])
        assert held() > asked.tokens - 300

    play(wiring, 2, script)


def test_one_letter_for_all_that_happens_at_once(wiring: Wiring) -> None:
    """All news of one moment is one letter, unless it grows too large."""

    async def script(one: Process) -> None:
        with ExitStack() as stack:
            peer = Peer(stack, wiring, 2)
            await peer.joins()
            peer.letters.clear()
            for _ in range(20):
                one.send()
            await until(lambda: peer.flying == [20, 0])
            assert len(peer.letters) == 1
            for number in range(20):
                one.send(f"{number} is long " * 500_000)
            await until(lambda: peer.flying == [40, 0])
            assert len(peer.letters) > 1
            before = len(peer.letters)
            await peer.joins()  # and is told everything again
            await until(lambda: peer.flying == [40, 0])
            assert len(peer.letters) > before + 1
            assert MAX_DATAGRAM_BYTES / 8 < max(map(len, peer.letters)) < MAX_DATAGRAM_BYTES / 2

    play(wiring, 1, script, beat_s=3600.0)


def test_one_that_comes_later(wiring: Wiring) -> None:
    """It is told once what is in flight, however much that is, and may send before it has heard of
    the others."""

    async def script(one: Process, two: Process) -> None:
        for _ in range(400):
            one.send(LONG, worker=1)
        one.end(1)
        one.sharing.began(3, 0.5)
        late = Process(wiring, 2)
        try:
            assert late.send() == 1
            late.sharing.begin()
            await until(lambda: late.flying == [0, 399] and two.flying == [1, 399])
            assert [worker.load.decoding for worker in late.fleet.workers] == [0, 1]
            one.end(2)
            await until(lambda: late.flying == [0, 398])
            late.end(1)
            await until(lambda: two.flying == [0, 398])
        finally:
            late.sharing.close()

    play(wiring, 2, script)


def test_one_that_has_gone(wiring: Wiring) -> None:
    """Its requests end, and nothing is written to it until its successor speaks."""

    async def script(one: Process, two: Process) -> None:
        with ExitStack() as stack:
            old, new = (Peer(stack, wiring, 2, pid) for pid in (7, 8))
            await old.joins(2)
            old.book(0)
            old.book(1)
            await until(lambda: (one.flying, two.flying) == ([1, 0], [1, 0]))
            old.book(0, number=2)  # read when it is known to have ended
            for process in (one, two):
                process.sharing.gone(2, pid=7)
            assert (one.flying, two.flying) == ([0, 0], [0, 0])
            old.read()
            number = one.send()
            await until(lambda: two.flying == [1, 0])
            assert old.read() == []
            await new.joins(2)
            await until(lambda: new.flying == [1, 0])
            one.end(number)
            new.book(0)
            await until(lambda: (one.flying, new.flying) == ([1, 0], [0, 0]))
            one.sharing.gone(2, pid=7)  # arrives late, and is about its predecessor
            assert one.flying == [1, 0]
            one.sharing.gone(2, pid=8)
            assert one.flying == [0, 0]

    play(wiring, 2, script)


@pytest.mark.parametrize("most", [1 << 24, 1 << 14])
def test_one_that_does_not_read(wiring: Wiring, most: int) -> None:
    """What it missed is sent later, or all again if that is too much; others hear at once."""

    async def script(one: Process, two: Process) -> None:
        with ExitStack() as stack:
            frozen = Peer(stack, wiring, 2)
            await frozen.joins(2)
            for number in range(1, 1001):
                one.send(LONG)
                if number > 50:
                    one.end(number - 50)
            await until(lambda: two.flying == [50, 0])
            await asyncio.sleep(0.2)  # long enough for some retries, which fail
            await until(lambda: frozen.flying == [50, 0])  # although there is no further news
            one.end(1000)
            await until(lambda: frozen.flying == [49, 0])

    play(wiring, 2, script, max_waiting_bytes=most)


def test_one_that_hangs(wiring: Wiring) -> None:
    """Its requests stop counting when it was silent for long, and count again when it speaks."""

    async def script(one: Process) -> None:
        with ExitStack() as stack:
            peer = Peer(stack, wiring, 2)
            await peer.joins()
            peer.book(0)
            await until(lambda: one.flying == [1, 0])
            await until(lambda: one.flying == [0, 0])
            peer.read()
            peer.write(0)
            await until(lambda: Resync(asks=True) in peer.read())
            peer.write(0, Resync(asks=False))
            peer.book(0)
            peer.book(0, number=2)
            await until(lambda: one.flying == [2, 0])

    play(wiring, 1, script, beat_s=0.02, silent_s=0.2)


def test_a_sign_of_life_is_enough(wiring: Wiring) -> None:
    """Heartbeats suffice: an answer may take minutes without any news."""

    async def script(one: Process) -> None:
        with ExitStack() as stack:
            peer = Peer(stack, wiring, 2)
            await peer.joins()
            peer.book(0)
            one.send()
            await until(lambda: (one.flying, peer.flying) == ([1, 0], [1, 0]))
            peer.letters.clear()
            for _ in range(25):
                await asyncio.sleep(0.1)
                peer.write(0)
                assert (one.flying, peer.read()) == ([1, 0], [])
            assert len(peer.letters) > 1  # it gives signs of life itself

    play(wiring, 1, script, beat_s=0.1, silent_s=2.0)


def test_what_was_written_to_one_before(wiring: Wiring) -> None:
    """A letter left over from before may come from a process that ended, so it is dropped."""
    booked = Booked(1, 0.0, "p", "w0", 10, 10, False, 1.0, 0, 0, 0, 1.0, ())
    os.write(wiring.wires(1).outboxes[0], encode(Batch(1, 7, [booked])))

    async def script(one: Process, two: Process) -> None:
        one.send()
        await until(lambda: two.flying == [1, 0])
        assert one.flying == [0, 0]

    play(wiring, 2, script)


def test_nobody_is_told_by_one_that_has_ended(wiring: Wiring) -> None:
    """A closed process reports nothing: requests may end after its sockets are closed."""

    async def script(one: Process, two: Process) -> None:
        number = one.send()
        await until(lambda: two.flying == [1, 0])
        one.sharing.close()
        one.end(number)
        one.send()
        one.sharing.gone(1, pid=7)  # its supervisor may still report this
        two.send(worker=1)
        await asyncio.sleep(0.05)
        assert two.flying == [1, 0]

    play(wiring, 2, script)


def test_what_cannot_be_read_stops_nothing(
    wiring: Wiring, caplog: pytest.LogCaptureFixture
) -> None:
    """An unreadable letter, perhaps of another release, is logged and skipped."""

    async def script(one: Process, two: Process) -> None:
        os.write(wiring.wires(0).outboxes[1], b"\xc1 is no message")
        one.send()
        await until(lambda: two.flying == [1, 0])
        assert "cannot be read" in caplog.text

    play(wiring, 2, script)


def test_a_reload_that_one_process_has_before_another(wiring: Wiring) -> None:
    """Requests to a worker that the other did not know yet are reported again after its reload."""

    def join(process: Process) -> None:
        pool = process.fleet.pools[0]
        pool.change(pool.models, [*pool.workers, worker("w2", "m")])
        process.fleet.replace([pool])

    async def script(one: Process, two: Process) -> None:
        join(one)
        for _ in range(3):
            one.send(worker=2)
        one.send(worker=1)
        await until(lambda: two.flying == [0, 1])
        join(two)
        two.sharing.anew()
        await until(lambda: two.flying == [0, 1, 3])
        two.send(worker=2)
        await until(lambda: one.flying == [0, 0, 1])

    play(wiring, 2, script)


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
        two.sharing.give_way(theirs, short)
        if why == "own end":  # the news of it crosses the other's
            one.end(number)
        two.send("next", worker=1)
        await until(lambda: one.flying[1] == 1)
        assert len(one.asked) == (not why)

    play(wiring, 2, script)


def test_one_whose_process_does_not_listen_is_not_asked(wiring: Wiring) -> None:
    """It may be asked later."""

    async def script(one: Process) -> None:
        with ExitStack() as stack:
            peer = Peer(stack, wiring, 2)
            peer.book(0, since=monotonic())
            await until(lambda: one.flying == [1, 0])
            short, (booking,) = one.send("short"), one.theirs
            one.sharing.give_way([booking], short)
            assert booking.since is not None
            await peer.joins()
            await until(lambda: peer.flying == [1, 0])
            peer.book(0, since=monotonic())
            await until(lambda: one.flying == [1, 0])
            one.sharing.give_way(one.theirs, short)
            await until(lambda: GiveWay(1, short) in peer.read())

    play(wiring, 1, script)


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


@pytest.mark.parametrize("resumed", [False, True])
def test_what_was_preempted_is_told_as_such(wiring: Wiring, *, resumed: bool) -> None:
    """Otherwise the others would learn from its cached tokens, of which much is estimated."""

    async def script(one: Process) -> None:
        with ExitStack() as stack:
            peer = Peer(stack, wiring, 2)
            asked = replace(prompt("text"), resumed=resumed)
            one.sharing.booked(one.fleet.pools[0], asked, choice(one.fleet, 0), 0.0)
            await peer.joins()
            await until(lambda: peer.flying == [1, 0])
            told = [news for data in peer.letters for news in decode(data).news]
            assert [news.resumed for news in told if isinstance(news, Booked)] == [resumed]

    play(wiring, 1, script)
