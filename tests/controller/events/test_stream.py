"""No event twice, none out of order, and no doubt that a replay could resolve."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from controller.events.stream import (
    ApplyBatch,
    ClearEngine,
    ReplayRequest,
    Step,
    Stream,
    StreamPhase,
)

#: So large that a few dozen of them are more than may wait.
LARGE = bytes(8 << 20)


class Engine:
    """Publishes batches, restarts, and answers replays from a bounded buffer."""

    def __init__(self, buffered: int) -> None:
        self.process, self.next, self.buffered = 0, 0, buffered
        self.buffer: list[tuple[int, bytes]] = []
        self.all: list[bytes] = []
        """All that this process has published."""

    def publish(self) -> tuple[int, bytes]:
        """Publish one batch."""
        message = (self.next, b"%d:%d" % (self.process, self.next))
        self.next += 1
        self.buffer = [*self.buffer, message][-self.buffered :]
        self.all.append(message[1])
        return message

    def restart(self) -> None:
        """Become another process, which counts from 0 and has nothing buffered."""
        self.process, self.next, self.buffer, self.all = self.process + 1, 0, [], []


class Reader:
    """Acts on the stream's steps without sockets: applies, clears, and requests replays."""

    def __init__(self, stream: Stream, engine: Engine) -> None:
        self.stream, self.engine = stream, engine
        self.applied: list[bytes] = []
        """Batches since the last clear."""
        self.asks: list[ReplayRequest] = []
        self.now = 0.0

    def take(self, steps: Iterable[Step]) -> None:
        """Do what the stream says, and check the order."""
        for step in steps:
            if isinstance(step, ApplyBatch):
                assert step.payload not in self.applied, "applied twice"
                number = int(step.payload.split(b":")[1])
                before = int(self.applied[-1].split(b":")[1]) if self.applied else number - 1
                assert number == before + 1, "out of order"
                self.applied.append(step.payload)
            elif isinstance(step, ClearEngine):
                self.applied.clear()
            else:
                self.asks.append(step)

    def answer(self, *, hole: int | None = None, cut: bool = False) -> None:
        """Answer the first request in full, or with a hole, or cut off before the end."""
        ask = self.asks.pop(0)
        messages = [one for one in self.engine.buffer if one[0] >= ask.start]
        for place, (number, payload) in enumerate(messages):
            if place != hole:
                self.take(self.stream.replayed(ask.round, number, payload))
        if cut:
            self.take(self.stream.replay_failed(ask.round, self.now))
        else:
            self.take(self.stream.replay_ended(ask.round, self.now))

    def settle(self) -> None:
        """Let time pass, while every replay succeeds."""
        for _ in range(12):
            self.now += 400.0
            self.take(self.stream.tick(self.now))
            while self.asks:
                self.answer()


STEPS = st.one_of(
    st.sampled_from(
        ("publish",) * 6 + ("miss",) * 2 + ("restart", "answer", "answer", "cut", "tick", "break")
    ),
    st.integers(1, 5),
)


@settings(max_examples=400, deadline=None)
@example(["publish", "miss", "publish", 1, 1, 1, "miss", "publish"], True, 1000)
@example(["publish", "publish", "restart", "miss", "miss", "publish", 1], True, 3)
@given(st.lists(STEPS, max_size=60), st.booleans(), st.sampled_from((3, 1000)))
def test_any_history_is_applied_once_in_order_and_cured_by_replay(
    history: list[str | int], replays: bool, buffered: int
) -> None:
    """Through gaps, restarts, holes and failures; at the end, all that could be had has been
    applied."""
    engine = Engine(buffered)
    stream = Stream(replays=replays)
    reader = Reader(stream, engine)
    reader.take(stream.opened(0.0))
    heard = 0
    for step in history:
        reader.now += 0.5
        if step == "publish":
            # Without replay, a new process that happens to be at the next number goes unnoticed.
            assume(replays or heard == engine.process or engine.next != stream.live + 1)
            heard = engine.process
            reader.take(stream.heard(*engine.publish(), reader.now))
        elif step == "miss":
            engine.publish()
        elif step == "restart":
            engine.restart()
            stream.disconnected()
        elif step == "break":
            stream.disconnected()
        elif step == "tick":
            reader.take(stream.tick(reader.now))
        elif reader.asks:
            reader.answer(hole=step if isinstance(step, int) else None, cut=step == "cut")
    reader.settle()
    assume(replays or heard == engine.process or engine.next != stream.live + 1)
    reader.take(stream.heard(*engine.publish(), reader.now))
    reader.settle()
    assert not stream.blind
    assert stream.state is StreamPhase.LIVE
    assert reader.applied == engine.all[len(engine.all) - len(reader.applied) :]
    if replays and buffered == 1000 and stream.counts["hole in a replay"] <= 2:
        assert reader.applied == engine.all


def test_a_break_does_not_hide_what_is_missing() -> None:
    """A hole was passed over before the connection broke: replaying only from there on does not
    bring the missing batch."""
    engine = Engine(1000)
    stream = Stream(replays=True)
    reader = Reader(stream, engine)
    reader.take(stream.opened(0.0))
    reader.take(stream.heard(*engine.publish(), 1.0))
    engine.publish()
    reader.take(stream.heard(*engine.publish(), 1.0))
    for _ in range(3):
        reader.answer(hole=1)
    assert (stream.lost, reader.applied) == (True, engine.all[2:])
    stream.disconnected()
    reader.settle()
    assert (stream.blind, reader.applied) == (False, engine.all)


def test_a_restart_that_nobody_saw_is_told_by_the_message_before() -> None:
    """The new process is past our last number when it is heard; its replay starts with another
    message than the one applied last."""
    engine = Engine(100)
    reader = Reader(stream := Stream(replays=True), engine)
    for _ in range(3):
        reader.take(stream.heard(*engine.publish(), 0.0))
    engine.restart()
    for _ in range(5):
        engine.publish()
    reader.take(stream.heard(*engine.publish(), 10.0))
    assert reader.asks[0].start == 2
    reader.answer()
    reader.answer()
    assert reader.applied == engine.all
    assert stream.epoch == 1


def test_without_replay_a_gap_clears_and_goes_on() -> None:
    """Stale blocks cost more than forgotten ones."""
    engine = Engine(100)
    reader = Reader(stream := Stream(replays=False), engine)
    reader.take(stream.heard(*engine.publish(), 0.0))
    engine.publish()
    reader.take(stream.heard(*engine.publish(), 0.0))
    assert reader.applied == engine.all[2:]
    assert stream.counts == {"gap": 1, "gap without replay": 1}


def test_a_restarted_engine_that_is_idle_is_found_out_when_the_connection_is_back() -> None:
    """Its replay does not contain the message applied last, so what it held is gone, though it
    publishes nothing."""
    engine = Engine(100)
    reader = Reader(stream := Stream(replays=True), engine)
    reader.take(stream.heard(*engine.publish(), 0.0))
    engine.restart()
    stream.disconnected()
    reader.take(stream.opened(10.0))
    reader.answer()
    assert not reader.applied
    reader.answer()
    assert not stream.blind


def test_a_connection_that_is_back_ends_the_waiting() -> None:
    """A replay that failed while the engine was away is requested at once when it is back."""
    engine = Engine(100)
    reader = Reader(stream := Stream(replays=True), engine)
    reader.take(stream.heard(*engine.publish(), 0.0))
    stream.disconnected()
    for now in (10.0, 100.0, 1000.0):
        reader.take(stream.tick(now))
        reader.now = now
        reader.answer(cut=True)
    assert stream.blind
    engine.restart()
    reader.take(stream.opened(1001.0))
    reader.answer()
    assert (stream.lost, reader.applied) == (False, [])


def test_replays_keep_a_distance() -> None:
    """An engine publishes nothing while it replays."""
    engine = Engine(100)
    reader = Reader(stream := Stream(replays=True), engine)
    reader.take(stream.opened(0.0))
    reader.answer()
    engine.publish()
    reader.take(stream.heard(*engine.publish(), 0.1))
    assert not reader.asks
    assert stream.state is StreamPhase.GAP
    reader.take(stream.tick(10.0))
    reader.answer()
    assert reader.applied == engine.all


def test_what_waits_is_bounded() -> None:
    """A replay that never ends does not fill the memory."""
    stream, applied = Stream(replays=True), 0
    steps = [*stream.opened(0.0)]
    for number in range(100):
        steps += stream.heard(number, LARGE, 0.0)
        waiting = number + 1 - sum(isinstance(step, ApplyBatch) for step in steps)
        assert waiting * len(LARGE) <= 64 << 20
    applied = sum(isinstance(step, ApplyBatch) for step in steps)
    assert (stream.counts["overflow"], stream.lost, applied) == (1, True, 100)


def test_replays_that_overflow_are_tried_less_and_less() -> None:
    """Each one takes the engine's time, and clears what is known."""
    stream, requests = Stream(replays=True), 0
    numbers = itertools.chain([0], itertools.count(2))
    for now, number in zip(range(400), numbers, strict=False):
        steps = [*stream.tick(float(now)), *stream.heard(number, LARGE, float(now))]
        requests += any(isinstance(step, ReplayRequest) for step in steps)
    assert 2 < requests < 12


@pytest.mark.parametrize("replays", [True, False])
def test_what_a_snapshot_tells_of_another_process_is_dropped(replays: bool) -> None:
    """The engine counts from 0 again, and is heard before the connection is reported."""
    engine = Engine(100)
    reader = Reader(stream := Stream(replays=replays), engine)
    stream.resume((1000, 5, 2))
    reader.applied.append(b"9:999")
    reader.take(stream.heard(*engine.publish(), 0.0))
    reader.settle()
    assert reader.applied == engine.all
    assert stream.epoch == 3
