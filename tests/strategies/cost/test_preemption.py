"""Who gives way to a shorter prompt, and how long that one waits then."""

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from strategies.api import Candidate, Cost, Outcome, Prompt
from strategies.cost.booking import Booking
from strategies.cost.cost import Costs, held_tokens
from strategies.cost.load import Load
from strategies.cost.preemption import (
    ahead,
    before,
    computes_from,
    drop,
    gives_way,
    promised,
)
from tests.strategies.workers import LONG, Run, Stand, fleet, prompt, untold

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


def test_the_step_that_the_worker_is_in_is_waited_for() -> None:
    """If the prompt that it computes gives way."""
    step, preempts, charge = terms(booked(LONG_S)[0], 1.0, 1.0)
    assert (0.0 < step < waits(LONG_S, now=1.0), preempts, charge > 0.0) == (True, 1, True)
    both = terms(booked(LONG_S, LONG_S)[0], 1.0, 1.0)
    assert both == pytest.approx((step, 2, 2 * charge))
    behind, _, _ = terms(booked(LONG_S, SHORT_S)[0], 1.0, 1.0)
    assert behind == pytest.approx(step + waits(SHORT_S))


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


def test_who_cannot_be_dropped_is_waited_for() -> None:
    """Such as another process's, or an answer in one piece; those behind it give way still."""
    load, _ = booked(LONG_S, may=False)
    behind = load.book(0.0, LONG_S, since=0.0)
    wait, preempts, _ = terms(load, 1.0, 1.0)
    assert (wait, preempts) == pytest.approx((waits(LONG_S, now=1.0), 1))
    assert ahead(load, NONE, 1.0, 1.0)[1] == [behind]


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


def test_what_another_one_there_counts_on_does_not_give_way() -> None:
    """The other, booked as short, would have to compute it in its place."""
    long, twin = (Prompt("m", 1000, (1, 2, 3, 4, 5)) for _ in range(2))
    load = Load()
    first, second = load.book(0.0, LONG_S, since=0.0), load.book(0.0, 0.1, since=0.0)
    computes_from(first, long, Candidate(untold(), Cost(), 2 * 16))
    computes_from(second, twin, Candidate(untold(), Cost(), 4 * 16))
    assert ahead(load, (9,), 1.0, 1.0)[1] == []
    load.release(second, 1.0)
    assert ahead(load, (9,), 1.0, 1.0)[1] == [first]


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


def test_many_that_begin_alike_are_looked_through_once() -> None:
    """Not once for each of them: a flood of long prompts must not make decisions slow."""
    looked = 0

    class Keys(tuple[int, ...]):
        """Counts how often a key is looked at."""

        def __getitem__(self, place: Any) -> Any:
            nonlocal looked
            looked += 1
            return super().__getitem__(place)

    load, count = Load(), 200
    for number in range(count):
        booking = load.book(0.0, LONG_S, since=0.0)
        keys = Keys((1, 2, number + 3))
        computes_from(booking, Prompt("m", 1000, keys), Candidate(untold(), Cost(), 2 * 16))
    looked = 0
    assert len(ahead(load, (9,), 1.0, 0.0)[1]) == count
    assert count <= looked < 10 * count


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


def test_who_has_to_wait_for_it_has_a_price() -> None:
    """Each of them waits as long as its prefill takes."""
    prompt = Prompt("m", 10_000)

    def cost(worker: Stand) -> tuple[Cost, int]:
        (one,) = Costs().rank(prompt, [worker], 0.0)
        return one.cost, one.preempts

    idle, _ = cost(untold())
    busy = untold()
    busy.load.book(0.0, 20.0, since=0.0)
    busy.load.promises = [(100.0, 100.0), (0.0, 0.25)]
    there, preempts = cost(busy)
    assert (there.wait, preempts) == pytest.approx((waits(0.25), 1))
    busy.load.pending.clear()
    one, preempts = cost(busy)
    assert (one.wait, preempts) == pytest.approx((waits(0.25), 0))
    assert one.price - idle.price >= idle.prefill
    assert there.price - idle.price == pytest.approx(2 * (one.price - idle.price))


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


def test_who_waited_behind_others_has_computed_nothing() -> None:
    """However long ago it was sent."""
    worker = untold()
    worker.load.book(0.0, 100.0)
    behind = worker.load.book(0.0, 100.0, since=0.0)
    assert drop(behind, Candidate(worker, Cost(prefill=100.0), 700), 60_000, 50.0) == 700
    assert worker.load.wait(50.0) == pytest.approx(waits(100.0, now=50.0))


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
def test_a_strategy_believes_what_is_kept_and_no_more(name: str) -> None:
    """Of a preempted prompt its first blocks, besides what the worker held of it before; the next
    prompt finds them there."""
    run = Run(name, fleet(1))
    (worker,) = run.workers
    first, longer = prompt(LONG), prompt(LONG + "and so on " * 4_000)

    def held(asked: Prompt) -> int:
        return run.strategy.rank(asked, run.workers, 0.0).candidates[0].held_tokens

    run.place(first, book=False)
    run.strategy.settled(first, Candidate(worker, Cost(), 0), Outcome(ok=True), 0.0)
    had = held(longer)
    for kept, more in ((0, 0), (had + 4_000, 4_000), (had + 1_000, 4_000)):
        asked = replace(longer)
        run.place(asked, book=False)
        assert held(asked) > had + 9_000, "it counts at once"
        outcome = Outcome(ok=False, kept_tokens=kept)
        run.strategy.settled(asked, Candidate(worker, Cost(), had), outcome, 0.0)
        assert had + more - 600 < held(longer) <= had + more, "in whole blocks"
    assert worker.load.shared_tokens == 0.0


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
