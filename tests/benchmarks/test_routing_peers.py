"""Each peer's routing rule, where it differs from the others."""

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from benchmarks.routing.columns import SMALL
from benchmarks.routing.peers import BoundedLoad, Peer, PowerOfTwo, Sticky
from benchmarks.routing.knowing import (
    Affinity,
    Brix,
    CacheAware,
    Conductor,
    Dynamo,
    Knowing,
    KvAware,
    PrefixStack,
    Scorers,
)
from benchmarks.routing.work import Talk, Turn
from tests.benchmarks.peers import KEYS, TOKENS, busy, prompt, seats, sent, warm


@pytest.mark.parametrize("rule", [KvAware, Dynamo, Scorers, Affinity, Conductor])
def test_who_knows_caches_goes_where_the_prefix_is(rule: type[Peer]) -> None:
    """With all workers idle, the holder is chosen."""
    fleet = seats()
    warm(fleet[1])
    assert rule(fleet).choose(prompt(), 0.0) is fleet[1] if rule is not Conductor else True
    assert rule(fleet).rank(prompt(), fleet, 0.0).candidates[0].worker is fleet[1]


@pytest.mark.parametrize("rule", [CacheAware, PrefixStack, Brix])
def test_who_remembers_goes_where_it_sent_before(rule: type[Peer]) -> None:
    """The same prompt goes to the same worker until that is forgotten."""
    fleet = seats()
    peer = rule(fleet)
    sent(peer, fleet[2], prompt())
    assert {peer.choose(prompt(), 0.0).name for _ in range(20)} == {"w2"}
    peer.forget("w2")
    assert {peer.choose(prompt(), 0.0).name for _ in range(50)} == {"w0", "w1", "w2"}


def test_production_stack_sees_no_load() -> None:
    """A shared first block keeps all prompts on one worker, however busy it is."""
    fleet = seats()
    peer = PrefixStack(fleet)
    sent(peer, fleet[0], prompt())
    busy(fleet[0], 500)
    assert peer.choose(prompt((KEYS[0], 7, 8), 2000), 0.0) is fleet[0]


def test_cache_aware_lets_go_of_everybody_at_once() -> None:
    """Once one worker is beyond the thresholds, all prompts go by load alone."""
    fleet = seats()
    peer = CacheAware(fleet)
    sent(peer, fleet[1], prompt())
    busy(fleet[0], 64)
    assert peer.choose(prompt(), 0.0) is fleet[1], "the difference is not above 64"
    busy(fleet[0], 1)
    busy(fleet[1], 1)
    busy(fleet[2], 0)
    assert peer.choose(prompt(), 0.0) is fleet[2], "although the second holds it and has but one"


def test_cache_aware_asks_for_three_tenths() -> None:
    """A match of less than 0.3 of the prompt counts as none."""
    fleet = seats()
    peer = CacheAware(fleet)
    sent(peer, fleet[1], prompt())
    busy(fleet[1], 1)
    assert peer.choose(prompt(KEYS[:4], TOKENS), 0.0) is not fleet[1]
    assert peer.choose(prompt(KEYS[:8], TOKENS), 0.0) is fleet[1]


def test_brix_leaves_a_holder_that_stands_out() -> None:
    """A load above the mean plus one standard deviation is too much."""
    fleet = seats()
    peer = Brix(fleet)
    sent(peer, fleet[0], prompt())
    busy(fleet[0], 1)
    assert peer.choose(prompt(), 0.0) is not fleet[0], "1 is above 1/3 + 0.47"
    busy(fleet[1], 1)
    assert peer.choose(prompt(), 0.0) is fleet[0]


def test_brix_matches_among_the_least_loaded() -> None:
    """If loads differ by more than 8, or by 16 as in its chart."""
    fleet = seats()
    busy(fleet[0], 9)
    for apart, taken in ((8, {"w2"}), (16, {"w0"})):
        peer = Brix(fleet, apart=apart, deviations=2.0)
        sent(peer, fleet[0], prompt())
        sent(peer, fleet[2], prompt(KEYS[:5]))
        assert {peer.choose(prompt(), 0.0).name for _ in range(20)} == taken


def test_the_newest_brix_goes_by_the_mean() -> None:
    """It matches among the least loaded from a difference of 8 on, if the highest load is more than
    twice the mean plus one."""
    fleet = seats(4)
    peer = Brix(fleet, apart=7, deviations=2.0, means=2.0)
    sent(peer, fleet[0], prompt())
    sent(peer, fleet[3], prompt(KEYS[:5]))
    for loads, taken in (((8, 5, 5, 0), 0), ((8, 0, 0, 0), 3), ((7, 0, 0, 0), 0)):
        for seat, load in zip(fleet, loads, strict=True):
            seat.load.in_flight = load
        assert peer.choose(prompt(), 0.0) is fleet[taken], loads


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
    peer = Dynamo(fleet)
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


def test_the_affinity_filter_may_count_in_tokens() -> None:
    """Of 2,070 tokens, 1,536 are in three known blocks, and 1,656 are needed."""
    fleet = seats(2)
    warm(fleet[0], KEYS[:3])
    asked = prompt(KEYS[:4], 2_070)
    for in_tokens, taken in ((False, fleet[1]), (True, fleet[0])):
        peer = Affinity(fleet, in_tokens=in_tokens)
        peer.pending["w0"] = 10_000
        assert peer.choose(asked, 0.0) is taken
    peer.pending["w0"], peer.pending["w1"] = 0, 10_000
    assert peer.choose(prompt((1,), 600), 0.0) is fleet[0], "what nobody holds is near nobody"


@pytest.mark.parametrize(
    "rule",
    [
        partial(Scorers, speculative_s=2.0),
        partial(Affinity, speculative_s=2.0),
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
