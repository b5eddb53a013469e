"""The rules of smg, Ray Serve and Preble, where they differ from the others."""

import pytest

from benchmarks.routing.columns import SMALL
from benchmarks.routing.peers import Peer
from benchmarks.routing_preble import Preble, Share
from benchmarks.routing_ray import RayPrefix
from benchmarks.routing_smg import LeastLoad, SmgEvents, SmgTrees, allowed, expected_waits
from simulator.strides import Job
from strategies.base import FREE, Candidate, Outcome
from tests.benchmarks.peers import KEYS, TOKENS, busy, prompt, queue, seats, sent, warm

DONE = Outcome(ok=True, first_byte_s=1.0, answer_tokens=101)


def test_expected_waits_add_a_queue_and_pressure() -> None:
    """Uncached tokens that wait or are computed, at 2,000 per second, and 0.15 s x k / (1 - k)."""
    idle, queued, full = fleet = seats()
    warm(queued)
    queue(queued, 2, TOKENS, KEYS)
    full.engine.add(Job(0, (), SMALL.kv_tokens // 2, 100), 0.0)
    while full.engine.prefilling:
        full.engine.advance(full.engine.due)
    waits = expected_waits(fleet)
    assert waits[0] == 0.0
    used = queued.engine.usage
    tokens = TOKENS - SMALL.max_num_batched_tokens + 2 * 100
    assert waits[1] == pytest.approx(tokens / 2_000 + 0.15 * used / (1 - used))
    assert waits[2] == pytest.approx(0.15, rel=0.01)
    assert LeastLoad(fleet).choose(prompt(), 0.0) is idle


def test_who_has_a_match_may_be_too_busy() -> None:
    """By half the mean and by 64; then all that are not too busy are left, whoever matches."""
    assert allowed([True, False], [200, 0]) == [False, True]
    assert allowed([True, False], [100, 0]) == [True, False], "twice the mean, but by 50"
    assert allowed([True, False], [400, 260]) == [True, False], "by 70, but 1.2 times the mean"
    assert allowed([True, True, False], [200, 10, 0]) == [False, True, False], "the other match"
    assert allowed([True, False, False], [200, 10, 0]) == [False, True, True]
    assert allowed([False, False], [1000, 0]) == [True, True], "without a match nobody is too busy"


@pytest.mark.parametrize("rule", [SmgTrees, SmgEvents])
def test_all_that_hold_most_are_compared(rule: type[Peer]) -> None:
    """The one with the least expected wait, until that is too busy."""
    fleet = seats()
    peer = rule(fleet)
    for seat in fleet[:2]:
        warm(seat)
        sent(peer, seat, prompt())
    queue(fleet[0], 1)
    assert peer.choose(prompt(), 0.0) is fleet[1], "the third has no queue either, but no match"
    busy(fleet[0], 101)
    busy(fleet[1], 101)
    assert peer.choose(prompt(), 0.0) is fleet[1], "two thirds of all are not too busy"
    busy(fleet[1], 300)
    assert peer.choose(prompt(), 0.0) is fleet[0], "the other match"


def test_trees_ask_for_three_tenths_and_events_for_any_match() -> None:
    """A match of a fifth."""
    fleet = seats(2)
    few = KEYS[:4]
    for rule, taken in ((SmgTrees, "w1"), (SmgEvents, "w0")):
        peer = rule(fleet)
        warm(fleet[0], few)
        sent(peer, fleet[0], prompt(few))
        queue(fleet[0], 1)
        assert peer.choose(prompt(), 0.0).name == taken
        while fleet[0].engine.running:
            fleet[0].engine.advance(fleet[0].engine.due)


def test_ray_sees_no_load_unless_told_to() -> None:
    """By default the difference of queues is unlimited."""
    fleet = seats(2)
    for apart, requests, taken in ((float("inf"), 500, "w0"), (20.0, 500, "w1"), (20.0, 20, "w0")):
        peer = RayPrefix(fleet, apart=apart)
        sent(peer, fleet[0], prompt())
        fleet[0].load.in_flight = requests
        assert {peer.choose(prompt(), 0.0).name for _ in range(10)} == {taken}


def test_ray_sends_what_it_does_not_know_where_it_sent_least() -> None:
    """Also a match of less than a tenth, however busy that worker is; ties go by load."""
    fleet = seats()
    peer = RayPrefix(fleet)
    sent(peer, fleet[0], prompt())
    sent(peer, fleet[1], prompt(KEYS[:1], 600))
    busy(fleet[2], 9)
    assert peer.choose(prompt((1, 2), 1_100), 0.0) is fleet[2]
    assert peer.choose(prompt((KEYS[0], 5, 6), TOKENS), 0.0) is fleet[2], "a twentieth"
    sent(peer, fleet[2], prompt((8,), 600))
    assert peer.choose(prompt((1, 2), 1_100), 0.0) is fleet[1], "as little, and idle"
    busy(fleet[1], 1)
    assert peer.choose(prompt((KEYS[0], 5, 6), 5_000), 0.0) is fleet[0], "of two matches, the idle"


def test_preble_exploits_more_than_half() -> None:
    """Otherwise load decides, of which the holder has more."""
    fleet = seats(2)
    warm(fleet[0])
    peer = Preble(fleet)
    sent(peer, fleet[0], prompt())
    assert peer.choose(prompt(), 0.0) is fleet[0]
    assert peer.choose(prompt(KEYS, 2 * 20 * 512 - 1), 0.0) is fleet[0]
    sent(peer, fleet[0], prompt((1,), 60_000))
    assert peer.choose(prompt(KEYS, 2 * 20 * 512), 0.0) is fleet[1], "no more cached than not"


def test_preble_exploits_the_least_loaded_holder() -> None:
    """Of those that hold most, and of no others."""
    fleet = seats()
    peer = Preble(fleet)
    for seat, tokens in zip(fleet, (9_000, 600), strict=False):
        warm(seat)
        sent(peer, seat, prompt((1,), tokens))
    assert {peer.choose(prompt(), 0.0).name for _ in range(10)} == {"w1"}


def test_preble_moves_load_from_the_busiest_to_the_idlest() -> None:
    """Once it has seen fifty requests per worker, and one has 1.5 times the load of another."""
    fleet = seats(2)
    for seat in fleet:
        warm(seat, (1,))
    warm(fleet[0])
    peer = Preble(fleet)
    for _ in range(99):
        sent(peer, fleet[0], prompt((1,), 600))
    assert peer.choose(prompt(), 0.0) is fleet[0], "too few to tell"
    sent(peer, fleet[1], prompt((1,), 600))
    for others, taken in ((60, 1), (67, 0)):  # 99 are 1.65 times as many as 60
        while peer._given < 99 + others:
            sent(peer, fleet[1], prompt((1,), 600))
        assert peer.choose(prompt(), 0.0) is fleet[taken]


def test_prebles_load_is_that_of_three_minutes() -> None:
    """Prefill, and answers at the pace that was seen."""
    fleet = seats(1)
    share = Share(fleet[0])
    share.paces.extend([0.01] * 3)
    share.give(0.0, 2.0, 100, KEYS)
    share.give(100.0, 1.0, 100, KEYS[:1])
    assert share.load(180.0) == pytest.approx(3.0 + 2.0)
    assert share.load(181.0) == pytest.approx(1.0 + 1.0)
    assert dict(share.uses) == {KEYS[0]: 1}


def test_preble_counts_what_would_be_evicted() -> None:
    """The seconds to compute it again, for each request of the last minutes that used it."""
    (seat,) = seats(1)
    warm(seat)
    share = Share(seat)
    share.give(0.0, 1.0, 10, KEYS)
    share.give(0.0, 1.0, 10, KEYS)
    free = seat.engine.cache.capacity - len(KEYS)
    assert share.lost(free) == 0.0
    assert share.lost(free + 3) == pytest.approx(3 * 2 * SMALL.prefill_seconds(512, 0))


def test_preble_learns_how_fast_workers_decode() -> None:
    """A hundred tokens after the first one, in two seconds."""
    fleet = seats(1)
    peer, asked = Preble(fleet), prompt()
    sent(peer, fleet[0], asked)
    before = peer._shares["w0"].paces[-1]
    peer.settled(asked, Candidate(fleet[0], FREE), DONE, 3.0)
    assert before != peer._shares["w0"].paces[-1] == pytest.approx(0.02)
