"""Router processes that tell each other which requests they have in flight."""

import asyncio
import os
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from router.replicas import replication as sharing
from router.replicas import sockets as wires
from router.replicas.messages import Booked, Letter, encode
from router.replicas.sockets import Wiring
from strategies.api import Outcome
from strategies.policies.prefix_aware import PrefixAware
from tests.replicas.wired import Process, play, until, wiring
from tests.router.fleets import choice, prompt

__all__ = ["wiring"]


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


@pytest.mark.parametrize("resumed", [False, True])
def test_what_was_preempted_is_told_as_such(wiring: Wiring, *, resumed: bool) -> None:
    """Otherwise the others would learn from its cached tokens, of which much is estimated."""

    async def script(one: Process, two: Process) -> None:
        asked = replace(prompt("text"), resumed=resumed)
        one.sharing.booked(one.fleet.pools[0], asked, choice(one.fleet, 0), 0.0)
        await until(lambda: two.flying == [1, 0])
        (theirs,) = two.sharing.mirror._open[0].values()
        assert theirs.prompt.resumed == resumed

    play(wiring, 2, script)


def test_one_letter_for_all_that_happens_at_once(
    wiring: Wiring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All news of one moment is one letter, unless it grows too large."""
    letters: list[bytes] = []
    write = wires.Outbox.write

    def counted(self: wires.Outbox, data: bytes) -> None:
        letters.append(data)
        write(self, data)

    begin = wires.Outbox.begin

    def begun(self: wires.Outbox, told: Sequence[bytes]) -> None:
        letters.extend(told)
        begin(self, told)

    async def script(one: Process, two: Process) -> None:
        monkeypatch.setattr(sharing, "BEAT_S", 3600.0)
        monkeypatch.setattr(wires.Outbox, "write", counted)
        for _ in range(20):
            one.send()
        await until(lambda: two.flying == [20, 0])
        assert len(letters) == 1
        for number in range(20):
            one.send(f"{number} is long " * 500_000)
        assert len(letters) > 1
        one.sharing._flush()
        monkeypatch.setattr(wires.Outbox, "begin", begun)
        one.sharing._open_line(one.sharing._outboxes[1])
        assert len(letters) > 3
        assert wires.LARGEST / 8 < max(map(len, letters)) < wires.LARGEST / 2
        await until(lambda: two.flying == [40, 0])

    play(wiring, 2, script)


def test_one_that_comes_later(wiring: Wiring) -> None:
    """It is told once what is in flight, and may send before it has heard of the others."""

    async def script(one: Process, two: Process) -> None:
        for _ in range(100):
            one.send(worker=1)
        one.end(1)
        one.sharing.began(3, 0.5)
        late = Process(wiring, 2)
        try:
            assert late.send() == 1
            late.sharing.begin()
            await until(lambda: late.flying == [0, 99] and two.flying == [1, 99])
            assert [worker.load.decoding for worker in late.fleet.workers] == [0, 1]
            one.end(2)
            await until(lambda: late.flying == [0, 98])
            late.end(1)
            await until(lambda: two.flying == [0, 98])
        finally:
            late.sharing.close()

    play(wiring, 2, script)


def test_one_that_has_gone(wiring: Wiring) -> None:
    """Its requests end, and nothing waits for it until its successor speaks."""

    async def script(one: Process, two: Process, three: Process) -> None:
        three.send()
        three.send()
        three.sharing.close()
        for process in (one, two):
            process.sharing.gone(2, three.pid)
        assert (one.flying, two.flying) == ([0, 0], [0, 0])
        number = one.send()
        await until(lambda: two.flying == [1, 0])
        assert not one.sharing._outboxes[2].behind
        again = Process(wiring, 2)
        try:
            again.pid = 2
            again.sharing.begin()
            await until(lambda: again.flying == [1, 0])
            one.end(number)
            again.send(worker=1)
            await until(lambda: (one.flying, again.flying) == ([0, 1], [0, 0]))
            one.sharing.gone(2, three.pid)  # arrives late, and is about its predecessor
            assert one.flying == [0, 1]
            one.sharing.gone(2, again.pid)
            assert one.flying == [0, 0]
        finally:
            again.sharing.close()

    play(wiring, 3, script)


@pytest.mark.parametrize("most", [1 << 20, 1 << 13])
def test_one_that_does_not_read(wiring: Wiring, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """What it missed is sent later, or all again if that is too much; others hear at once."""
    monkeypatch.setattr(wires, "MOST_WAITING", most)

    async def script(one: Process, two: Process, three: Process) -> None:
        loop, frozen = asyncio.get_running_loop(), three.sharing._inbox._end.fileno()
        loop.remove_reader(frozen)
        for number in range(1, 1001):
            one.send()
            if number % 10 == 0:
                one.sharing._flush()
            if number > 50:
                one.end(number - 50)
        await until(lambda: two.flying == [50, 0])
        assert three.flying == [0, 0]
        loop.add_reader(frozen, three.sharing._hear)
        await until(lambda: three.flying == [50, 0])  # although there is no further news
        one.end(1000)
        await until(lambda: three.flying == [49, 0])
        await until(lambda: not one.sharing._outboxes[2].behind)

    play(wiring, 3, script)


def test_nobody_waits_for_one_that_does_not_read(
    wiring: Wiring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that reads hears the news at once."""
    monkeypatch.setattr(sharing, "AGAIN_S", 3600.0)

    async def script(one: Process, two: Process, three: Process) -> None:
        asyncio.get_running_loop().remove_reader(three.sharing._inbox._end.fileno())
        while not one.sharing._outboxes[2].behind:
            one.send()
            one.sharing._flush()
        one.send(worker=1)
        await until(lambda: two.flying[1] == 1)

    play(wiring, 3, script)


def test_more_is_under_way_than_may_wait(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the other process reads, it hears of all of them, and none of them stays."""
    monkeypatch.setattr(wires, "MOST_WAITING", 1 << 14)

    async def script(one: Process, two: Process, three: Process) -> None:
        loop, frozen = asyncio.get_running_loop(), three.sharing._inbox._end.fileno()
        loop.remove_reader(frozen)
        for _ in range(3_000):
            one.send()
            one.sharing._flush()
        await asyncio.sleep(0.2)  # long enough for some retries, which fail
        loop.add_reader(frozen, three.sharing._hear)
        await until(lambda: three.flying == [3_000, 0])
        for number in range(1, 3_001):
            one.end(number)
        await until(lambda: (two.flying, three.flying) == ([0, 0], [0, 0]))
        assert len(three.sharing.mirror) == 0

    play(wiring, 3, script)


def test_one_that_hangs(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its requests stop counting when it was silent for long, and count again when it speaks."""
    monkeypatch.setattr(sharing, "BEAT_S", 0.02)
    monkeypatch.setattr(sharing, "SILENT_S", 0.2)

    async def script(one: Process, two: Process) -> None:
        first, mine = one.send(), two.send(worker=1)
        await until(lambda: (one.flying, two.flying) == ([0, 1], [1, 0]))
        one.sharing._timers["beat"].cancel()
        await until(lambda: two.flying == [0, 0])
        one.send()
        await until(lambda: two.flying == [2, 0])
        one.end(first)
        two.end(mine)
        await until(lambda: (one.flying, two.flying) == ([0, 0], [1, 0]))

    play(wiring, 2, script)


def test_a_sign_of_life_is_enough(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats suffice: an answer may take minutes without any news."""
    monkeypatch.setattr(sharing, "BEAT_S", 0.02)
    monkeypatch.setattr(sharing, "SILENT_S", 0.5)

    async def script(one: Process, two: Process) -> None:
        one.send()
        await until(lambda: two.flying == [1, 0])
        heard = two.sharing._heard[0]
        await asyncio.sleep(0.7)
        assert two.sharing._heard[0] > heard
        assert two.flying == [1, 0]

    play(wiring, 2, script)


def test_what_was_written_to_one_before(wiring: Wiring) -> None:
    """A letter left over from before may come from a process that ended, so it is dropped."""
    booked = Booked(1, 0.0, "p", "w0", 10, 10, False, 1.0, 0, 0, 0, 1.0, ())
    os.write(wiring.wires(1).outboxes[0], encode(Letter(1, 7, [booked])))

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
        one.sharing.gone(1, two.pid)  # its supervisor may still report this
        assert one.sharing._news == []

    play(wiring, 2, script)
