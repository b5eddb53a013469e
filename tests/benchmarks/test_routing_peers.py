"""Each peer's routing rule, where it differs from the others; and the queue that some have."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from benchmarks.routing.columns import SMALL
from benchmarks.routing.drive import Drive, Fleet, Seat
from benchmarks.routing.knowing import (
    Affinity,
    Conductor,
    Dynamo,
    Holding,
    Knowing,
    KvAware,
    Parked,
    Scorers,
    first_come,
    full,
    shortest,
)
from benchmarks.routing.peers import (
    BoundedLoad,
    Brix,
    Peer,
    PowerOfTwo,
    RayPrefix,
    SmgTrees,
    Sticky,
    allowed,
    expected_waits,
)
from benchmarks.routing.strides import Job
from benchmarks.routing.workloads import Talk, Turn, Work
from strategies.api import Decision, Prompt, Strategy
from strategies.hold.queue import Wait
from tests.benchmarks.peers import KEYS, TOKENS, busy, prompt, queue, seats, sent, warm

BUDGET = SMALL.max_num_batched_tokens
Order = Callable[[Prompt, Decision], float]


@pytest.mark.parametrize(
    "rule", [KvAware, partial(Dynamo, weight=1.0), Scorers, Affinity, Conductor]
)
def test_who_knows_caches_goes_where_the_prefix_is(rule: Callable[..., Peer]) -> None:
    """With all workers idle, the holder is chosen."""
    fleet = seats()
    warm(fleet[1])
    assert rule(fleet).rank(prompt(), fleet, 0.0).candidates[0].worker is fleet[1]


@pytest.mark.parametrize("rule", [SmgTrees, RayPrefix, Brix])
def test_who_remembers_goes_where_it_sent_before(rule: type[Peer]) -> None:
    """The same prompt goes to the same worker until that is forgotten."""
    fleet = seats()
    peer = rule(fleet)
    sent(peer, fleet[2], prompt())
    assert {peer.choose(prompt(), 0.0).name for _ in range(20)} == {"w2"}
    peer.forget("w2")
    assert {peer.choose(prompt(), 0.0).name for _ in range(50)} == {"w0", "w1", "w2"}


def test_brix_matches_among_the_least_loaded() -> None:
    """If loads differ by more than 16."""
    fleet = seats()
    peer = Brix(fleet)
    sent(peer, fleet[0], prompt())
    sent(peer, fleet[2], prompt(KEYS[:5]))
    for requests, taken in ((16, {"w0"}), (1, {"w2"})):
        busy(fleet[0], requests)
        assert {peer.choose(prompt(), 0.0).name for _ in range(20)} == taken


def test_kv_aware_multiplies() -> None:
    """The score is (new + active tokens) x (requests + 1): three requests outweigh half a
    prompt."""
    fleet = seats(2)
    warm(fleet[0], KEYS[:10])
    peer = KvAware(fleet)
    assert peer.choose(prompt(), 0.0) is fleet[0]
    busy(fleet[0], 3)
    assert peer.choose(prompt(), 0.0) is fleet[1]


def test_dynamo_counts_shared_blocks_once() -> None:
    """A worker running the same prefix needs no more blocks than an idle one."""
    fleet, asked = seats(2), prompt()
    peer = Dynamo(fleet, weight=1.0)
    sent(peer, fleet[0], asked)
    peer.computed(asked, fleet[0])
    same, other = peer.score(prompt((*KEYS, 999)), 0.0), peer.score(prompt((5, 6, 7)), 0.0)
    assert same[0] == same[1]
    assert other[0] - other[1] == 20 * 512


def test_dynamo_weighs_prefill() -> None:
    """With a weight of 8 a cached prefix outweighs many more active blocks."""
    fleet = seats(2)
    warm(fleet[0])
    many = tuple(range(1000, 1030))
    choices = {}
    for weight in (1.0, 8.0):
        peer = Dynamo(fleet, weight=weight)
        other = prompt(many, 30 * 512)
        sent(peer, fleet[0], other)
        peer.computed(other, fleet[0])
        choices[weight] = peer.choose(prompt(), 0.0).name
    assert choices == {1.0: "w1", 8.0: "w0"}


def test_the_affinity_filter_gives_way_after_18_seconds() -> None:
    """A holder is chosen until it is 18 s of prefill behind the best other worker."""
    fleet = seats(2)
    warm(fleet[0])
    peer = Affinity(fleet)
    peer.pending["w0"] = int(17.9 * SMALL.prefill_tokens_per_s)
    assert peer.choose(prompt(), 0.0) is fleet[0]
    peer.pending["w0"] = int(18.1 * SMALL.prefill_tokens_per_s)
    assert peer.choose(prompt(), 0.0) is fleet[1]


@pytest.mark.parametrize(
    "rule",
    [
        Scorers,
        Affinity,
        partial(Dynamo, weight=8.0, predicted_s=2.0),
    ],
)
def test_placements_may_count_before_their_events(rule: Callable[..., Knowing]) -> None:
    """For two seconds, what was sent counts as held, whatever the cache holds."""
    fleet, asked = seats(2), prompt()
    peer = rule(fleet)
    sent(peer, fleet[1], asked)
    assert peer.held(asked, 1.9) == [0, 20 * 512]
    assert peer.held(asked, 2.1) == [0, 0]


def test_sessions_stick() -> None:
    """Whatever the prompt, and however busy the worker is."""
    fleet = seats()
    peer = Sticky(fleet)
    peer.about(Talk(0.0, 7, (Turn((), 1, 1),)))
    first = peer.choose(prompt(), 0.0)
    busy(first, 100)
    assert peer.choose(prompt(()), 0.0) is first
    peer.about(Talk(0.0, 8, (Turn((), 1, 1),)))
    assert peer.choose(prompt(), 0.0) is not first


def test_bounded_load_walks_on() -> None:
    """The owner is left for the next worker once it has more than 1.25 times the mean load."""
    fleet = seats()
    peer = BoundedLoad(fleet)
    owner = peer.choose(prompt(), 0.0)
    assert peer.choose(prompt((KEYS[0], 1)), 0.0) is owner, "the first block decides"
    busy(owner, 1)
    assert peer.choose(prompt(), 0.0) is owner, "2 is above 1.25 x 2/3, but so is 1 elsewhere"
    busy(owner, 3)
    assert peer.choose(prompt(), 0.0) is not owner


def test_power_of_two_avoids_the_busiest() -> None:
    """It could only be chosen without being compared with another, which never happens."""
    fleet = seats()
    busy(fleet[0], 10)
    peer = PowerOfTwo(fleet)
    taken = Counter(peer.choose(prompt(), 0.0).name for _ in range(60))
    assert taken.keys() == {"w1", "w2"}


def test_expected_waits_add_a_queue_and_pressure() -> None:
    """Uncached tokens that wait or are computed, at 2,000 per second, and 0.15 s x k / (1 - k)."""
    _, queued, busiest = fleet = seats()
    warm(queued)
    queue(queued, 2, TOKENS, KEYS)
    busiest.engine.add(Job(0, (), SMALL.kv_tokens // 2, 100), 0.0)
    while busiest.engine.prefilling:
        busiest.engine.advance(busiest.engine.due)
    waits = expected_waits(fleet)
    assert waits[0] == 0.0
    used = queued.engine.usage
    tokens = TOKENS - SMALL.max_num_batched_tokens + 2 * 100
    assert waits[1] == pytest.approx(tokens / 2_000 + 0.15 * used / (1 - used))
    assert waits[2] == pytest.approx(0.15, rel=0.01)


def test_who_has_a_match_may_be_too_busy() -> None:
    """By half the mean and by 64; then all that are not too busy are left, whoever matches."""
    assert allowed([True, False], [200, 0]) == [False, True]
    assert allowed([True, False], [100, 0]) == [True, False], "twice the mean, but by 50"
    assert allowed([True, False], [400, 260]) == [True, False], "by 70, but 1.2 times the mean"
    assert allowed([True, True, False], [200, 10, 0]) == [False, True, False], "the other match"
    assert allowed([True, False, False], [200, 10, 0]) == [False, True, True]
    assert allowed([False, False], [1000, 0]) == [True, True], "without a match nobody is too busy"


def test_smg_compares_all_that_hold_most() -> None:
    """The one with the least expected wait, until that is too busy."""
    fleet = seats()
    peer = SmgTrees(fleet)
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


def test_dynamo_holds_once_every_worker_is_beyond_the_threshold() -> None:
    """Sixteen times what a step may compute, and a token more, on all of them."""
    fleet = seats(2)
    peer, line = Dynamo(fleet, weight=1.0, threshold=16.0), Parked()

    def holds() -> bool:
        return line.must_hold(peer.rank(prompt(), fleet, 0.0), 0.0)

    peer.pending["w0"] = 16 * BUDGET + 1
    for pending, held in ((0, False), (16 * BUDGET, False), (16 * BUDGET + 1, True)):
        peer.pending["w1"] = pending
        assert holds() is held


def test_flow_control_holds_while_the_fleet_is_full() -> None:
    """Five requests wait on each worker, or twice as many on half of them."""
    fleet = seats(2)
    peer = Scorers(fleet)
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
    line.enter(item, asked, peer.rank(asked, peer.seats, 0.0), 0.0, wait=Wait(0.0, 0.0))


@pytest.mark.parametrize(
    ("order", "names"),
    [(first_come, ["long", "short", "cached"]), (shortest, ["cached", "short", "long"])],
)
def test_the_order_of_the_queue(order: Order, names: list[str]) -> None:
    """As they came, or by the tokens that even the best holder lacks."""
    fleet = seats(2)
    warm(fleet[1])
    peer, line = Dynamo(fleet, weight=1.0), Parked(order)
    held(line, peer, "long", prompt((1, 2, 3), 9_000))
    held(line, peer, "short", prompt((4,), 600))
    held(line, peer, "cached", prompt())
    gone = []
    while released := line.release(lambda asked: peer.rank(asked.prompt, fleet, 0.0), 0.0, []):
        gone.append(released[0].item)
    assert gone == names
    assert len(line) == 0


def test_nobody_bypasses_the_queue() -> None:
    """While one waits, others do too, although there may be room by now."""
    fleet = seats(2)
    peer, line = Dynamo(fleet, weight=1.0), Parked()
    decision = peer.rank(prompt(), fleet, 0.0)
    assert not line.must_hold(decision, 0.0)
    held(line, peer, "first", prompt())
    assert line.must_hold(decision, 0.0)


def test_the_queue_waits_for_room() -> None:
    """The first goes as soon as some worker has room, and only then."""
    fleet = seats(2)
    peer, line = Dynamo(fleet, weight=1.0), Parked()
    asked = prompt()
    for seat in fleet:
        sent(peer, seat, asked if seat is fleet[0] else prompt())
    held(line, peer, "first", prompt((7,), 600))
    assert line.release(lambda one: peer.rank(one.prompt, fleet, 0.0), 0.0, []) is None
    peer.computed(asked, fleet[0])
    released = line.release(lambda one: peer.rank(one.prompt, fleet, 0.0), 0.0, [])
    assert released is not None
    assert released[1].candidates[0].worker is fleet[0]


def test_it_is_decided_anew_where_a_held_request_goes() -> None:
    """By what workers hold when it leaves the queue."""
    fleet = seats(2)
    peer, line = Dynamo(fleet, weight=16.0), Parked()
    held(line, peer, "one", prompt())
    warm(fleet[1])
    released = line.release(lambda one: peer.rank(one.prompt, fleet, 0.0), 0.0, [])
    assert released is not None
    first, second = released[1].candidates
    assert (first.worker, first.held_tokens) == (fleet[1], len(KEYS) * 512)
    assert (second.worker, second.held_tokens) == (fleet[0], 0)


@pytest.mark.parametrize(("order", "sessions"), [(first_come, [0, 1, 2]), (shortest, [0, 2, 1])])
def test_the_queue_in_a_run(order: Order, sessions: list[int]) -> None:
    """Two long prompts and a short one reach a single worker at about the same time."""

    def make(seats: Sequence[Seat]) -> Strategy:
        return Dynamo(seats, weight=1.0)

    turns = (Turn((), 30_000, 2), Turn((), 30_000, 2), Turn((), 100, 2))
    work = Work("three", [Talk(0.01 * n, n, (turn,)) for n, turn in enumerate(turns)])
    done = Drive(Fleet(SMALL, 1), make, Parked(order)).run(work)
    assert [placed.asked.talk.session for placed in done] == sessions
