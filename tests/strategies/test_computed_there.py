"""A prompt is hardly held where most of it is being computed, if half of the workers do that."""

import math
from collections.abc import Sequence

import pytest

from strategies.base import TOKEN_ENDS, Candidate, Cost, Decision, Prompt
from strategies.following import OWN_READY_S
from strategies.latebinding import READY_S, READY_TOKENS, LateBinding, why_held
from strategies.preemption import MOSTLY, computes_most
from tests.strategies.placing import Run, Stand, fleet, prompt

BLOCK = TOKEN_ENDS[1]

COMMON = tuple(range(8))
#: The common beginning, and two blocks of its own.
ASKED = (*COMMON, 100, 101)
#: Tokens of it where the common beginning is computed.
HELD = BLOCK * len(COMMON)


def of(keys: tuple[int, ...], more: int = 0) -> Prompt:
    """Return a prompt of these blocks, and so many tokens that are in none."""
    return Prompt("m", BLOCK * len(keys) + more, keys)


def computing(keys: tuple[int, ...] = COMMON, held_blocks: int = 0) -> Stand:
    """Return a worker that computes these blocks, of which it has held some before."""
    stand = Stand("a")
    booking = stand.load.book(0.0, 1.0, uncached=READY_TOKENS + 1)
    booking.keys, booking.held_blocks = keys, held_blocks
    return stand


@pytest.mark.parametrize(
    ("keys", "held_blocks", "most"),
    [
        (COMMON, 0, True),
        (COMMON, 2, True),
        (COMMON, 3, False),
        (COMMON[:7], 0, False),
        ((*COMMON[:7], 55), 0, False),
        ((*COMMON, 55, 56), 0, True),
        ((), 0, False),
    ],
    ids=["all", "less", "half", "too short", "another end", "longer", "nothing"],
)
def test_most_of_it(keys: tuple[int, ...], held_blocks: int, *, most: bool) -> None:
    """Three quarters of it, of which the worker holds at most one when it begins."""
    assert MOSTLY == 0.75
    assert computes_most(computing(keys, held_blocks).load, of(ASKED)) == most


@pytest.mark.parametrize(("common", "most"), [(0.7, False), (0.8, True)])
def test_most_of_its_tokens(common: float, *, most: bool) -> None:
    """Three quarters of the blocks of a long text are less than half of it: the last are longer."""
    text = "what a request begins with " * 10_000
    shared = int(common * len(text))
    asked, other = prompt(text), prompt(text[:shared] + "and how another one goes on" * 1_000)
    stand = computing(tuple(other.keys))
    assert computes_most(stand.load, asked) == most
    same = sum(one == two for one, two in zip(asked.keys, other.keys, strict=False))
    assert same > MOSTLY * len(asked.keys)


@pytest.mark.parametrize(("held", "most"), [(0.2, True), (0.3, False)])
def test_what_it_computes_of_a_text(held: float, *, most: bool) -> None:
    """A quarter of it has more than a quarter of its blocks: the first are shorter."""
    asked = prompt("what a request begins with " * 10_000)
    blocks = asked.blocks_in(held * asked.tokens)
    assert computes_most(computing(tuple(asked.keys), blocks).load, asked) == most
    assert blocks > 0.25 * len(asked.keys)


def test_what_has_no_blocks_counts() -> None:
    """Images, and all but the first of several prompts, are computed for this one alone."""
    assert computes_most(computing().load, of(COMMON, 2 * BLOCK))
    assert not computes_most(computing().load, of(COMMON, 3 * BLOCK))


def test_a_short_prompt() -> None:
    """Of one with fewer than four blocks, all have to be computed there; or it has none."""
    assert not computes_most(computing((1, 2, 3)).load, of((), BLOCK - 1))
    for blocks in (1, 2, 3):
        keys = COMMON[:blocks]
        assert computes_most(computing(keys).load, of(keys))
        assert not computes_most(computing(keys[:-1]).load, of(keys))
        assert not computes_most(computing((*keys[:-1], 55)).load, of(keys))
        assert not computes_most(computing(keys, 1).load, of(keys))


def test_nothing_is_known_of_a_prompt_without_keys() -> None:
    """As of one that no strategy looks at."""
    assert not computes_most(computing(()).load, of((), 10_000))
    assert not computes_most(computing().load, of((), 10_000))


def test_it_need_not_be_the_first_in_the_queue() -> None:
    """Another prompt may be computed before; once its own is computed, nothing is."""
    stand = Stand("a")
    stand.load.book(0.0, 1.0)
    booking = stand.load.book(0.0, 1.0)
    booking.keys = COMMON
    assert computes_most(stand.load, of(ASKED))
    stand.load.first_byte(booking, 1.0)
    assert not computes_most(stand.load, of(ASKED))


@pytest.mark.parametrize(("keys", "ready_s"), [(ASKED, OWN_READY_S), ((77,) * 10, READY_S)])
def test_it_is_held_if_that_takes_long(keys: tuple[int, ...], ready_s: float) -> None:
    """It waits there in any case, and the others of its kind are done no sooner elsewhere."""

    def held(wait: float, room: float = 0.0) -> bool:
        choice = Candidate(computing(), Cost(wait=wait, prefill=0.1, room=room), HELD)
        return LateBinding.must_hold(of(keys), Decision([choice], "prefix"), 0.0)

    assert not held(ready_s)
    assert held(ready_s + 0.01)
    assert held(ready_s, room=0.1)


def test_not_before_those_that_are_held_for_it() -> None:
    """Where more comes than is computed, those with least need go first, in whatever order they
    came."""
    there = computing()
    choice = Candidate(there, Cost(wait=OWN_READY_S, prefill=0.1), HELD)
    asked, decision = of(ASKED), Decision([choice], "prefix")
    assert not LateBinding.must_hold(asked, decision, 0.0)
    there.load.promised_s, there.load.promises = 0.01, [(9.0, 0.01)]
    assert LateBinding.must_hold(asked, decision, 0.0)


def among(held: Sequence[int], aside: int = 0) -> bool:
    """Whether it is held if the first of the workers computes it, and they hold so many tokens."""
    first = Candidate(computing(), Cost(wait=OWN_READY_S, prefill=0.1), held[0])
    others = [Candidate(Stand(f"{n}"), Cost(wait=9.0), tokens) for n, tokens in enumerate(held[1:])]
    decision = Decision([first, *others], "prefix", aside=aside)
    holds = LateBinding.must_hold(of(ASKED), decision, 0.0)
    assert not holds or why_held(of(ASKED), decision, 0.0) == "held"
    return holds


def test_half_of_the_workers_hold_as_much() -> None:
    """If fewer do, more of them would come to compute it."""
    assert not among([HELD] * 4 + [0] * 4)
    assert among([HELD] * 4 + [0] * 5)
    assert not among([HELD] * 2)


def test_most_of_it_counts_as_as_much() -> None:
    """Events tell of the engine's blocks, which end elsewhere than those that were sent."""
    most = math.ceil(MOSTLY * of(ASKED).tokens)
    assert not among([HELD + 80, most, 0, 0])
    assert not among([most, HELD + 80, 0, 0])
    assert among([HELD + 80, most - 1, 0, 0])
    assert not among([most - 1, most - 1, 0, 0])


def test_workers_that_rest_are_not_counted() -> None:
    """As where workers take turns: those are compared that may get it."""
    assert among([HELD, HELD, 0, 0, 0, 0])
    assert not among([HELD, HELD, 0, 0, 0, 0], aside=2)
    assert among([HELD, 0, 0, HELD], aside=1)


def test_what_nobody_is_known_to_hold() -> None:
    """A strategy that looks at no cache has no requests that are alike."""
    assert among([0] * 4)
    workers = fleet(4)
    strategy = Run("leastload", workers).strategy
    asked = of(ASKED)
    for stand in workers:
        booking = stand.load.book(0.0, 1.0, asked.tokens, uncached=READY_TOKENS + asked.tokens)
        booking.keys = asked.keys
    decision = strategy.rank(asked, workers, 0.0)
    assert READY_S < decision.candidates[0].cost.wait <= OWN_READY_S
    assert LateBinding.must_hold(asked, decision, 0.0)


def test_nobody_gives_way_for_it_to_wait_as_long() -> None:
    """If others are dropped for it, it is sent only where it then waits for little more."""
    there = computing()
    asked = of(ASKED)
    before = Candidate(there, Cost(wait=OWN_READY_S, prefill=0.1), HELD, preempts=1)
    assert LateBinding.must_hold(asked, Decision([before], "prefix"), 0.0)


@pytest.mark.parametrize("strategy", ["prefixaware", "kvaware"])
def test_a_fleet_that_starts_with_one_prompt_for_all(strategy: str) -> None:
    """Once all workers compute it, none of those that come meanwhile is held, and they go round."""
    workers = fleet(4)
    run = Run(strategy, workers)
    common = "what all requests begin with " * 700
    for n in range(16):
        asked = prompt(f"{common} {n}")
        decision = run.strategy.rank(asked, workers, 0.01 * n)
        choice = decision.candidates[0]
        if n < len(workers):
            choice = next(one for one in decision.candidates if one.worker is workers[n])
        else:
            assert not LateBinding.must_hold(asked, decision, 0.01 * n)
        load = choice.worker.load
        lacks = asked.tokens - choice.held_tokens
        booking = load.book(0.01 * n, choice.cost.prefill, asked.tokens, uncached=lacks)
        booking.keys = asked.keys
        booking.held_blocks = asked.blocks_in(choice.held_tokens)
        load.turn = n
        run.strategy.placed(asked, choice.worker, 0.01 * n)
    assert sorted(worker.load.in_flight for worker in workers) == [4, 4, 4, 4]
