"""Who gives way to a shorter prompt, and how long that one waits then."""

from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from strategies.api import Candidate, Cost, Outcome, Prompt
from strategies.cost.cost import Costs, held_tokens
from strategies.cost.load import Booking, Load
from strategies.cost.preemption import (
    ahead,
    before,
    computes_from,
    drop,
    gives_way,
    promised,
)
from tests.strategies.workers import LONG, Run, fleet, prompt, untold

#: What does not give way to a prompt of one second, and what does, in seconds.
SHORT_S, LONG_S = 1.2, 10.0
#: A prompt without keys shares nothing with others.
NONE: Sequence[int] = ()

_bookings = st.lists(st.tuples(st.floats(0.01, 30.0), st.booleans(), st.booleans()), max_size=6)


def booked(*seconds: float, may: bool = True) -> tuple[Load, list[Booking]]:
    """A worker's load with prompts that all came at 0, and may be preempted or not."""
    load = Load()
    return load, [load.book(0.0, each, since=0.0 if may else None) for each in seconds]


def terms(load: Load, prefill_s: float, now: float) -> tuple[float, int, float]:
    """The wait of a prompt that shares nothing, how many it preempts, and what it is charged for
    those that wait for it."""
    return before(load, load.wait(now), NONE, prefill_s, now)


def waits(*seconds: float, now: float = 0.0) -> float:
    """The wait for prompts that all came at 0."""
    return booked(*seconds)[0].wait(now)


def gives(came: float | None, left_s: float, prefill_s: float, now: float) -> bool:
    """Whether a prompt that came then and has so much to go gives way to one that comes now."""
    booking = Load().book(0.0, 1000.0, since=came)
    return gives_way(booking, left_s, NONE, prefill_s, now)


def test_who_gives_way() -> None:
    """A prompt that has more to go; each second since it came makes up for some of that, and it
    must be one that can be dropped. One that has waited for very long gives way to none."""
    assert gives(0.0, 2.0, 1.0, 0.0)
    assert not gives(0.0, 0.9, 1.0, 0.0)
    assert not gives(None, 1000.0, 1.0, 0.0)
    assert not gives(-100.0, 2.0, 1.0, 0.0)
    assert not gives(0.0, 2.0, 1.0, 100.0)
    assert gives(-10.0, 1000.0, 1.0, 0.0)
    assert not gives(-100.0, 1000.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("seconds", "now", "stay", "who"),
    [
        ((LONG_S,), 0.0, (), [0]),
        ((SHORT_S, LONG_S), 0.5, (SHORT_S,), [1]),
        ((SHORT_S, LONG_S), SHORT_S + 3.0, (SHORT_S,), [1]),
        ((LONG_S,), LONG_S - 1.0, (LONG_S,), []),
        ((SHORT_S, SHORT_S), 0.5, (SHORT_S, SHORT_S), []),
    ],
    ids=["not begun", "second", "late", "nearly done", "none"],
)
def test_how_long_it_waits(
    seconds: tuple[float, ...], now: float, stay: tuple[float, ...], who: list[int]
) -> None:
    """For those that stay; not for those that the worker has not begun to compute."""
    load, bookings = booked(*seconds)
    wait, preempts, _ = terms(load, 1.0, now)
    assert wait == pytest.approx(waits(*stay, now=now))
    assert preempts == len(who)
    assert ahead(load, NONE, 1.0, now)[1] == [bookings[place] for place in who]


def test_promised_work_is_waited_for_only_if_it_comes_first() -> None:
    """Held prompts with more need come later: they wait for this one instead."""
    load, now, least = Load(), 0.0, -inf  # one that lacks room comes before all
    load.promises = [(1.01, 8.0), (1.0, 0.5), (0.1, 2.0), (least, 4.0)]
    wait = waits(6.5)
    assert promised(load, 1.0, now) == pytest.approx((wait, 1))
    alone, preempts, charge = terms(load, 1.0, now)
    assert (alone, preempts) == pytest.approx((wait, 0))
    load.book(now, LONG_S, since=now)
    assert terms(load, 1.0, now) == pytest.approx((wait, 1, 2 * charge))


@pytest.mark.parametrize(
    ("keys", "gives"),
    [
        ((), True),
        ((1, 2, 3), True),
        ((1, 2, 9), True),
        ((1, 2, 8, 9), True),
        ((1, 2, 3, 4), False),
        ((1, 2, 3, 4, 5, 6), False),
    ],
)
def test_who_is_short_because_of_it_does_not_go_first(
    keys: tuple[int, ...], *, gives: bool
) -> None:
    """A prompt that goes on from blocks that another one is about to compute waits for them; not
    one that shares only what is there already."""
    long = Prompt("m", 1000, (1, 2, 3, 4, 5))
    load, (booking,) = booked(LONG_S)
    computes_from(booking, long, Candidate(untold(), Cost(), 3 * 16))
    assert ahead(load, keys, 1.0, 1.0)[1] == [booking] * gives
    computes_from(booking, long, Candidate(untold(), Cost(), 5 * 16))
    assert ahead(load, keys, 1.0, 1.0)[1] == [booking]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_what_any_other_counts_on_does_not_give_way(prompts: list[tuple[int, int, int]]) -> None:
    """However many there are: none goes whose next block another one counts on."""
    load, bookings = Load(), []
    for branch, shared, held in prompts:  # (Keys are chained: prompts that differ stay so.)
        keys = tuple(n if n < shared else 100 * (branch + 1) + n for n in range(6))
        booking = load.book(0.0, LONG_S, since=0.0)
        computes_from(booking, Prompt("m", 1000, keys), Candidate(untold(), Cost(), held * 16))
        bookings.append(booking)
    stays = [
        any(
            other.held_blocks > one.held_blocks < len(one.keys)
            and other.keys[one.held_blocks] == one.keys[one.held_blocks]
            for other in bookings
        )
        for one in bookings
    ]
    over = ahead(load, (9,), 1.0, 0.0)[1]
    assert over == [one for one, stay in zip(bookings, stays, strict=True) if not stay]


@given(_bookings, st.floats(0.0, 5.0), st.floats(0.0, 40.0))
def test_what_is_told_is_what_is_done(
    given_: list[tuple[float, bool, bool]], prefill_s: float, now: float
) -> None:
    """As many are preempted as the cost says; the wait is never longer than in the whole queue, and
    the same if nobody gives way."""
    load = Load()
    for seconds, may, stream in given_:
        load.book(0.0, seconds, stream=stream, since=0.0 if may else None)
    whole = load.wait(now)
    wait, count, charge = terms(load, prefill_s, now)
    assert count == len(ahead(load, NONE, prefill_s, now)[1])
    assert (charge > 0.0) == (count > 0)
    assert wait == pytest.approx(ahead(load, NONE, prefill_s, now)[0])
    if count:
        assert 0.0 <= wait <= whole
    else:
        assert wait == pytest.approx(whole)


@pytest.mark.parametrize(
    ("spent", "held", "kept"),
    [(0.0, 0, 0), (2.0, 0, None), (2.0, 50_000, None), (1000.0, 50_000, 59_999)],
)
def test_what_it_has_computed_is_kept(spent: float, held: int, kept: int | None) -> None:
    """All that it held, and as many tokens as it has most likely computed since it began, with half
    a step more; never the last one, whose logits are the answer's."""
    worker = untold()
    booking = worker.load.book(0.0, 100.0, 60_100, uncached=60_000 - held, since=0.0)
    found = drop(booking, Candidate(worker, Cost(prefill=100.0), held), 60_000, spent)
    if kept is None:
        took = worker.pace.curve.seconds(found - held, held)
        assert spent < took < spent + 1.0
    else:
        assert found == kept
    share = (found - held) / (60_000 - held)
    assert worker.load.given_lately(spent) <= share * 100.0 + 1e-9
    assert (worker.load.given_lately(spent) > 0.0) == (share > 0.0)
    assert (worker.load.in_flight, worker.load.kv_tokens, worker.load.uncached) == (0, 0, 0)


@given(
    st.integers(0, 40),
    st.integers(0, 15),
    st.sampled_from([range(0, 1 << 20, 16), (*range(0, 64, 4), *range(64, 4096, 32))]),
    st.sampled_from([1.0, 0.25, 0.3]),
    st.integers(0, 2000),
)
def test_blocks_within_tokens(
    count: int, more: int, ends: range | tuple[int, ...], unit: float, tokens: int
) -> None:
    """They are the whole blocks among the first tokens, and at most those that the prompt has."""
    prompt = Prompt("m", int(ends[count] * unit) + more, [0] * count, ends, unit)
    found = prompt.blocks_in(tokens)
    assert 0 <= found <= count
    assert ends[found] * unit <= tokens
    assert found == count or ends[found + 1] * unit > tokens
    assert held_tokens(prompt, found) <= tokens


@pytest.mark.parametrize("name", ["prefixaware", "kvaware"])
def test_a_resumed_prompt_corrects_nothing(name: str) -> None:
    """How much of it the worker held was an estimate: fewer cached tokens say nothing of others."""
    for resumed in (False, True):
        run = Run(name, fleet(1))
        (worker,), strategy = run.workers, run.strategy
        older = prompt("another one " * 2_000)
        for asked in (older, prompt(LONG), replace(prompt(LONG), resumed=resumed)):
            choice = strategy.rank(asked, run.workers, 0.0).candidates[0]
            run.place(asked, book=False)
            strategy.settled(asked, choice, Outcome(ok=True, cached_tokens=0), 0.0)
        left = strategy.rank(older, run.workers, 0.0).candidates[0].held_tokens
        assert (left > 0) is resumed, worker


def test_a_resumed_prompt_is_no_demand() -> None:
    """It was counted when it came first."""
    costs, workers = Costs(), fleet(2)
    asked, other = prompt(LONG), prompt("another one " * 100)

    def price(now: float) -> float:
        """Return what a second of prefill costs on a worker that has nothing to do."""
        (one,) = costs.rank(other, workers[1:], now)
        return one.cost.price / one.cost.prefill

    costs.rank(asked, workers, 0.0)
    costs.placed(asked, 0.0)
    before = price(60.0)
    resumed = replace(asked, resumed=True)
    workers[0].load.book(0.0, 100.0)
    costs.rank(resumed, workers, 60.0)
    costs.placed(resumed, 60.0)
    assert price(60.0) == before
