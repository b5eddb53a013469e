"""Who gives way to a shorter prompt, and how long that one waits then."""

from collections.abc import Sequence
from math import exp, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from strategies import preemption
from strategies.base import Candidate, Cost, Outcome, Prompt
from strategies.booking import Booking
from strategies.cost import Costs, held_tokens
from strategies.kvaware import KvAware
from strategies.load import AGING, BACK_S, Load
from strategies.pace import MARGIN
from strategies.preemption import (
    ANYWHERE_S,
    GAIN_S,
    LATER,
    STEP_S,
    ahead,
    before,
    computes_from,
    drop,
    gives_way,
    promised,
)
from strategies.prefixaware import SLACK, PrefixAware, capacity_of
from tests.strategies.placing import LONG, Run, fleet, prompt
from tests.strategies.untold import Stand

#: Shorter and longer than what gives way to a prompt of one second.
SHORT_S, LONG_S = GAIN_S, GAIN_S + 8.0
#: A prompt without keys shares nothing with others.
NONE: Sequence[int] = ()

_bookings = st.lists(st.tuples(st.floats(0.01, 30.0), st.booleans(), st.booleans()), max_size=6)


def booked(*seconds: float, may: bool = True) -> tuple[Load, list[Booking]]:
    """A worker's load with prompts that all came at 0, and may be preempted or not."""
    load = Load()
    return load, [load.book(0.0, each, since=0.0 if may else None) for each in seconds]


def terms(load: Load, prefill_s: float, now: float) -> tuple[float, int, float]:
    """The wait of a prompt that hardly shares anything, how many it preempts, and how many wait for
    it."""
    wait, preempts, later = before(load, load.wait(now), NONE, 1, prefill_s, now=now)
    return wait, preempts, later / LATER


@pytest.mark.parametrize(
    ("came", "left_s", "now", "gives"),
    [
        (0.0, 1.0 + GAIN_S + 0.01, 0.0, True),
        (0.0, 1.0 + GAIN_S - 0.01, 0.0, False),
        (None, 1000.0, 0.0, False),
        (-10.0, 1.0 + GAIN_S + 10 * AGING + 0.01, 0.0, True),
        (-10.0, 1.0 + GAIN_S + 10 * AGING - 0.01, 0.0, False),
        (0.0, 1.0 + GAIN_S + 10 * AGING - 0.01, 10.0, False),
    ],
)
def test_who_gives_way(came: float | None, left_s: float, now: float, *, gives: bool) -> None:
    """A prompt that has clearly more to go; each second since it came makes up for some of that,
    and it must be one that can be dropped."""
    booking = Load().book(0.0, 1000.0, since=came)
    assert gives_way(booking, left_s, NONE, 1.0 + GAIN_S, now, aging=AGING) is gives


@pytest.mark.parametrize(
    ("held", "more", "gives"),
    [(1, 0.01, True), (1, -0.01, False), (0, ANYWHERE_S + 0.01, True), (0, 0.01, False)],
)
def test_one_that_could_go_elsewhere_waits_longer(held: int, more: float, *, gives: bool) -> None:
    """Nothing of it lies on this worker."""
    load, bookings = booked(1.0 + GAIN_S + more)
    wait, preempts, _ = before(load, load.wait(0.0), NONE, held, 1.0, now=0.0)
    assert preempts == gives
    assert wait == (0.0 if gives else pytest.approx(load.wait(0.0)))
    assert ahead(load, NONE, held, 1.0, 0.0)[1] == bookings * gives


@pytest.mark.parametrize(
    ("seconds", "now", "wait", "who"),
    [
        ((LONG_S,), 1.0, STEP_S, [0]),
        ((LONG_S,), 0.0, 0.0, [0]),
        ((SHORT_S, LONG_S), 0.5, SHORT_S - 0.5, [1]),
        ((LONG_S, LONG_S), 1.0, STEP_S, [0, 1]),
        ((LONG_S, SHORT_S), 1.0, STEP_S + SHORT_S, [0]),
        ((SHORT_S, LONG_S), SHORT_S + 3.0, 3.0, [1]),
        ((LONG_S,), LONG_S - 2.0, 2.0, []),
        ((SHORT_S, SHORT_S), 0.5, 2 * SHORT_S - 0.5, []),
    ],
    ids=["first", "not begun", "second", "both", "others stay", "late", "nearly done", "none"],
)
def test_how_long_it_waits(
    seconds: tuple[float, ...], now: float, wait: float, who: list[int]
) -> None:
    """For the step that the worker is in, if the prompt that it computes gives way, and for those
    that stay; not for those that it has not begun to compute."""
    load, bookings = booked(*seconds)
    assert terms(load, 1.0, now) == pytest.approx((wait, len(who), len(who)))
    assert ahead(load, NONE, 1, 1.0, now)[1] == [bookings[place] for place in who]


def test_who_cannot_be_dropped_is_waited_for() -> None:
    """Such as another process's, or an answer in one piece; those behind it give way still."""
    load, _ = booked(LONG_S, may=False)
    behind = load.book(0.0, LONG_S, since=0.0)
    assert terms(load, 1.0, 1.0) == pytest.approx((LONG_S - 1.0, 1, 1))
    assert ahead(load, NONE, 1, 1.0, 1.0)[1] == [behind]


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
    computes_from(booking, long, Candidate(Stand(), Cost(), 3 * 16))
    assert ahead(load, keys, 1, 1.0, 1.0)[1] == [booking] * gives
    computes_from(booking, long, Candidate(Stand(), Cost(), 5 * 16))
    assert ahead(load, keys, 1, 1.0, 1.0)[1] == [booking]


def test_what_another_one_there_counts_on_does_not_give_way() -> None:
    """The other, booked as short, would have to compute it in its place."""
    long, twin = (Prompt("m", 1000, (1, 2, 3, 4, 5)) for _ in range(2))
    load = Load()
    first, second = load.book(0.0, LONG_S, since=0.0), load.book(0.0, 0.1, since=0.0)
    computes_from(first, long, Candidate(Stand(), Cost(), 2 * 16))
    computes_from(second, twin, Candidate(Stand(), Cost(), 4 * 16))
    assert ahead(load, (9,), 1, 1.0, 1.0)[1] == []
    load.release(second, 1.0)
    assert ahead(load, (9,), 1, 1.0, 1.0)[1] == [first]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_what_any_other_counts_on_does_not_give_way(prompts: list[tuple[int, int, int]]) -> None:
    """However many there are: none goes whose next block another one counts on."""
    load, bookings = Load(), []
    for branch, shared, held in prompts:  # (Keys are chained: prompts that differ stay so.)
        keys = tuple(n if n < shared else 100 * (branch + 1) + n for n in range(6))
        booking = load.book(0.0, LONG_S, since=0.0)
        computes_from(booking, Prompt("m", 1000, keys), Candidate(Stand(), Cost(), held * 16))
        bookings.append(booking)
    stays = [
        any(
            other.held_blocks > one.held_blocks < len(one.keys)
            and other.keys[one.held_blocks] == one.keys[one.held_blocks]
            for other in bookings
        )
        for one in bookings
    ]
    over = ahead(load, (9,), 1, 1.0, 0.0)[1]
    assert over == [one for one, stay in zip(bookings, stays, strict=True) if not stay]


def test_many_that_begin_alike_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each of them: a flood of long prompts must not make decisions slow."""
    looked = []
    counted_on = preemption._counted_on

    def counted(load: Load, at: int) -> set[int]:
        looked.append(at)
        return counted_on(load, at)

    monkeypatch.setattr(preemption, "_counted_on", counted)
    load = Load()
    for number in range(50):
        booking = load.book(0.0, LONG_S, since=0.0)
        keys = (1, 2, number + 3)
        computes_from(booking, Prompt("m", 1000, keys), Candidate(Stand(), Cost(), 2 * 16))
    assert len(ahead(load, (9,), 1, 1.0, 0.0)[1]) == 50
    assert looked == [2]


@pytest.mark.parametrize(("now", "wait"), [(0.5, 1.0), (2.0, 0.0), (4.0, 1.0)])
def test_those_that_stay_may_end_sooner_than_predicted(now: float, wait: float) -> None:
    """Who gives way is the same; one that stays is late only after all of its prediction."""
    load, (_, long) = booked(3.0, LONG_S)
    left, over = ahead(load, NONE, 1, 5.0, now, sooner=0.5)
    assert left == pytest.approx(wait)
    assert over == [long]


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
    wait, count, later = terms(load, prefill_s, now)
    assert count == later == len(ahead(load, NONE, 1, prefill_s, now)[1])
    assert wait == pytest.approx(ahead(load, NONE, 1, prefill_s, now)[0])
    if count:
        assert 0.0 <= wait < whole
    else:
        assert wait == pytest.approx(whole)


def test_waiting_counts_less_where_much_waits() -> None:
    """As the worker's load says, for what is pending there and for what is held."""
    now, came, need = 100.0, 90.0, 2.0
    left = need + GAIN_S + 5 * AGING
    for aging, gives in ((AGING, False), (AGING / 3, True)):
        load = Load()
        load.aging = aging
        load.book(now, left, since=came)
        load.promises = [(need + 5 * AGING + aging * came, 8.0)]
        assert terms(load, need, now) == ((0.0, 1, 2) if gives else (left + 8.0, 0, 0))


def test_promised_work_is_waited_for_only_if_it_comes_first() -> None:
    """Held prompts with more need come later: they wait for this one instead."""
    load, now = Load(), 10.0
    least = -inf  # one that lacks room comes before all
    need = 1.0 + AGING * now
    load.promises = [(need + 0.01, 8.0), (need, 0.5), (need - 1.0, 2.0), (least, 4.0)]
    assert promised(load, 1.0, now) == (6.5, 1)
    assert terms(load, 1.0, now) == (6.5, 0, 1)
    load.book(now, LONG_S, since=now)
    assert terms(load, 1.0, now) == pytest.approx((6.5, 1, 2))


def test_a_worker_that_holds_some_of_it_lets_it_go_first() -> None:
    """Where it would gain less, it does if it cannot as well go elsewhere."""
    asked, worker = Prompt("m", 10_000), Stand()
    alone = worker.pace.prefill(10_000, 0)
    worker.load.book(0.0, alone + GAIN_S + ANYWHERE_S / 2, since=0.0)
    ranked = [Costs().rank(asked, [worker], 0.0, {worker.name: held})[0] for held in (0, 16)]
    assert [one.preempts for one in ranked] == [0, 1]


def test_who_has_to_wait_for_it_has_a_price() -> None:
    """Each of them waits as long as its prefill takes."""
    prompt = Prompt("m", 10_000)

    def cost(worker: Stand) -> tuple[Cost, int]:
        (one,) = Costs().rank(prompt, [worker], 0.0)
        return one.cost, one.preempts

    idle, _ = cost(Stand())
    busy = Stand()
    busy.load.book(0.0, 20.0, since=0.0)
    busy.load.promises = [(100.0, 100.0), (0.0, 0.25)]
    there, preempts = cost(busy)
    assert preempts == 1
    assert there.wait == pytest.approx(0.25)
    assert there.price - idle.price == pytest.approx(2 * LATER * idle.prefill)
    busy.load.pending.clear()
    promised_only, preempts = cost(busy)
    assert (promised_only.wait, preempts) == (0.25, 0)
    assert promised_only.price - idle.price == pytest.approx(LATER * idle.prefill)


@pytest.mark.parametrize(
    ("spent", "held", "kept"),
    [(0.0, 0, 0), (2.0, 0, None), (2.0, 50_000, None), (1000.0, 50_000, 59_999)],
)
def test_what_it_has_computed_is_kept(spent: float, held: int, kept: int | None) -> None:
    """All that it held, and as many tokens as it has most likely computed since it began, with half
    a step more; never the last one, whose logits are the answer's."""
    worker = Stand()
    booking = worker.load.book(0.0, 100.0, 60_100, uncached=60_000 - held, since=0.0)
    found = drop(booking, Candidate(worker, Cost(prefill=100.0), held), 60_000, spent)
    if kept is None:
        took = worker.pace.curve.seconds(found - held, held)
        assert took == pytest.approx(spent + STEP_S / MARGIN / 2, rel=0.001)
    else:
        assert found == kept
    share = (found - held) / (60_000 - held)
    assert worker.load.given_s == pytest.approx(share * 100.0 * exp(-spent / BACK_S))
    assert (worker.load.in_flight, worker.load.kv_tokens, worker.load.uncached) == (0, 0, 0)


def test_who_waited_behind_others_has_computed_nothing() -> None:
    """However long ago it was sent."""
    worker = Stand()
    worker.load.book(0.0, 100.0)
    behind = worker.load.book(0.0, 100.0, since=0.0)
    assert drop(behind, Candidate(worker, Cost(prefill=100.0), 700), 60_000, 50.0) == 700
    assert worker.load.wait(50.0) == pytest.approx(50.0)


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
    """How much of it the worker held was an estimate, which says nothing about its capacity."""
    found = []
    for resumed in (False, True):
        run = Run(name, fleet(1))
        (worker,), strategy = run.workers, run.strategy
        assert isinstance(strategy, PrefixAware | KvAware)
        tree = strategy._tree if isinstance(strategy, PrefixAware) else strategy._shadow
        shadow = tree.join(worker.name)
        shadow.capacity.hear(capacity_of(worker), told=worker.kv_tokens is not None)
        shadow.capacity.scale, shadow.full = 1.0, True
        for _ in range(10):
            asked = replace(prompt(LONG), resumed=resumed)
            run.place(asked, book=False)
            report = Outcome(ok=True, cached_tokens=SLACK + 1)
            run.strategy.settled(asked, Candidate(worker, Cost(), 0), report, 0.0)
        found.append(shadow.capacity.scale)
    assert found[0] > found[1] == 1.0


def test_a_resumed_prompt_is_no_demand() -> None:
    """It was counted when it came first."""
    costs, workers = Costs(), fleet(2)
    asked = prompt(LONG)
    costs.rank(asked, workers, 0.0)
    costs.placed(asked, 0.0)
    told = costs._demand._busy, costs._demand._prompts
    resumed = replace(asked, resumed=True)
    workers[0].load.book(0.0, 100.0)
    costs.rank(resumed, workers, 60.0)
    costs.placed(resumed, 60.0)
    assert (costs._demand._busy, costs._demand._prompts) == told
