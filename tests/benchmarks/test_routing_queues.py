"""Peers that hold requests: when, in which order, and where they go then."""

from collections.abc import Callable, Sequence

import pytest

from benchmarks.routing.columns import SMALL
from benchmarks.routing.drive import Drive
from benchmarks.routing.fleet import Fleet, Seat
from benchmarks.routing.knowing import (
    FlowAffinity,
    FlowScorers,
    Holding,
    Parked,
    QueuedDynamo,
    first_come,
    full,
    shortest,
)
from benchmarks.routing.work import Talk, Turn, Work
from strategies.base import Decision, Prompt, Strategy
from tests.benchmarks.peers import KEYS, prompt, queue, seats, sent, warm

BUDGET = SMALL.max_num_batched_tokens
Order = Callable[[Prompt, Decision], float]


def test_dynamo_holds_once_every_worker_is_beyond_the_threshold() -> None:
    """Sixteen times what a step may compute, and a token more, on all of them."""
    fleet = seats(2)
    peer, line = QueuedDynamo(fleet), Parked()

    def holds() -> bool:
        return line.must_hold(prompt(), peer.rank(prompt(), fleet, 0.0), 0.0)

    peer.pending["w0"] = 16 * BUDGET + 1
    for pending, held in ((0, False), (16 * BUDGET, False), (16 * BUDGET + 1, True)):
        peer.pending["w1"] = pending
        assert holds() is held


@pytest.mark.parametrize("rule", [FlowScorers, FlowAffinity])
def test_flow_control_holds_while_the_fleet_is_full(rule: type[Holding]) -> None:
    """Five requests wait on each worker, or twice as many on half of them."""
    fleet = seats(2)
    peer = rule(fleet)
    queue(fleet[0], 9)
    assert peer.rank(prompt(), fleet, 0.0).reason == "peer"
    queue(fleet[1], 1)
    assert peer.rank(prompt(), fleet, 0.0).reason == "saturated"


def test_a_full_kv_cache_counts_as_a_queue_does() -> None:
    """At 80 % of it a worker is full; each counts by the worse of both."""
    (seat,) = seats(1)
    queue(seat, 0, int(0.79 * SMALL.kv_tokens))
    assert not full([seat])
    (seat,) = seats(1)
    queue(seat, 0, int(0.81 * SMALL.kv_tokens))
    assert full([seat])
    (other,) = seats(1)
    queue(other, 4)
    assert not full([seat, other]), "1.01 and 0.8"


def held(line: Parked, peer: Holding, item: str, asked: Prompt) -> None:
    """Put a request into the queue."""
    line.enter(item, asked, peer.rank(asked, peer.seats, 0.0), 0.0)


@pytest.mark.parametrize(
    ("order", "names"),
    [(first_come, ["long", "short", "cached"]), (shortest, ["cached", "short", "long"])],
)
def test_the_order_of_the_queue(order: Order, names: list[str]) -> None:
    """As they came, or by the tokens that even the best holder lacks."""
    fleet = seats(2)
    warm(fleet[1])
    peer, line = QueuedDynamo(fleet), Parked(order)
    held(line, peer, "long", prompt((1, 2, 3), 9_000))
    held(line, peer, "short", prompt((4,), 600))
    held(line, peer, "cached", prompt())
    gone = []
    while released := line.release(lambda asked: peer.rank(asked, fleet, 0.0), 0.0, []):
        gone.append(released[0].item)
    assert gone == names
    assert len(line) == 0


def test_nobody_bypasses_the_queue() -> None:
    """While one waits, others do too, although there may be room by now."""
    fleet = seats(2)
    peer, line = QueuedDynamo(fleet), Parked()
    decision = peer.rank(prompt(), fleet, 0.0)
    assert not line.must_hold(prompt(), decision, 0.0)
    held(line, peer, "first", prompt())
    assert line.must_hold(prompt(), decision, 0.0)


def test_the_queue_waits_for_room() -> None:
    """The first goes as soon as some worker has room, and only then."""
    fleet = seats(2)
    peer, line = QueuedDynamo(fleet, threshold=0.0), Parked()
    asked = prompt()
    for seat in fleet:
        sent(peer, seat, asked if seat is fleet[0] else prompt())
    held(line, peer, "first", prompt((7,), 600))
    assert line.release(lambda one: peer.rank(one, fleet, 0.0), 0.0, []) is None
    peer.computed(asked, fleet[0])
    released = line.release(lambda one: peer.rank(one, fleet, 0.0), 0.0, [])
    assert released is not None
    assert released[1].candidates[0].worker is fleet[0]


def test_it_is_decided_anew_where_a_held_request_goes() -> None:
    """By what workers hold when it leaves the queue."""
    fleet = seats(2)
    peer, line = QueuedDynamo(fleet, weight=16.0), Parked()
    held(line, peer, "one", prompt())
    warm(fleet[1])
    released = line.release(lambda one: peer.rank(one, fleet, 0.0), 0.0, [])
    assert released is not None
    first, second = released[1].candidates
    assert (first.worker, first.held_tokens) == (fleet[1], len(KEYS) * 512)
    assert (second.worker, second.held_tokens) == (fleet[0], 0)


@pytest.mark.parametrize(("order", "sessions"), [(first_come, [0, 1, 2]), (shortest, [0, 2, 1])])
def test_the_queue_in_a_run(order: Order, sessions: list[int]) -> None:
    """Two long prompts and a short one reach a single worker at about the same time."""

    def make(seats: Sequence[Seat]) -> Strategy:
        return QueuedDynamo(seats, threshold=0.0)

    turns = (Turn((), 30_000, 2), Turn((), 30_000, 2), Turn((), 100, 2))
    work = Work("three", [Talk(0.01 * n, n, (turn,)) for n, turn in enumerate(turns)])
    done = Drive(Fleet(SMALL, 1), make, Parked(order)).run(work)
    assert [placed.asked.talk.session for placed in done] == sessions
