"""Demand: how busy the fleet is, how much of the prompts is held, and what follows from both."""

from math import log

import pytest

from strategies.base import Outcome, Prompt
from strategies.cost import Costs
from strategies.demand import (
    BOUND,
    IDLE_S,
    LEAST_PRICE,
    MOST_PRICE,
    MOST_TURNS,
    PRICE,
    SMOOTHED_S,
    Demand,
)
from strategies.load import KV_BACK_S, Load
from tests.strategies.placing import LONG, Run, Stand, fleet, prompt


def price(demand: Demand, workers: int = 8) -> float:
    """Return what a second of prefill costs others among so many workers."""
    return demand.price(workers)[0]


def seen(busy: float, reuse: float) -> Demand:
    """Return the demand of a fleet that has been like this for ten minutes."""
    demand = Demand()
    for tenths in range(1, 6_000):
        demand.arrived(busy, reuse, tenths / 10)
    return demand


def test_an_idle_fleet_charges_the_least() -> None:
    """In an idle fleet prefill delays no one, whatever share of the prompts is held."""
    assert price(seen(0.0, 0.9)) == pytest.approx(LEAST_PRICE)
    assert price(seen(0.0, 0.0)) == pytest.approx(LEAST_PRICE)


def test_prefill_costs_more_the_busier_the_fleet_is() -> None:
    """The price rises with the busy share, up to a bound."""
    prices = [price(seen(busy, 0.9)) for busy in (0.2, 0.5, 0.8, 0.95, 1.0)]
    assert prices == sorted(prices)
    assert prices[1] == pytest.approx(LEAST_PRICE + PRICE, rel=0.01)
    assert prices[-1] == MOST_PRICE


def test_who_is_bound_to_a_worker_waits_for_it() -> None:
    """Requests bound to a worker wait for it; others go elsewhere, more easily the more workers
    there are."""
    free, bound = seen(0.5, 0.0), seen(0.5, 0.9)
    assert price(bound) == price(bound, 64)
    assert price(free, 64) < price(free) < 0.6 * price(bound)
    assert price(free) == pytest.approx(LEAST_PRICE + PRICE * 0.5, rel=0.05)  # 0.5 ** 2 / 0.5
    # With only two workers, prompts that are not bound pay the same price.
    assert price(free, 2) == pytest.approx(price(bound, 2), rel=0.01)


def test_what_is_paid_for_those_that_are_bound() -> None:
    """All of the price if all are bound; none in a fleet where nothing is held, or that is idle."""
    assert seen(0.5, 0.9).price(8)[1] == pytest.approx(1.0, rel=0.01)
    assert seen(0.5, 0.0).price(8)[1] == pytest.approx(0.0, abs=0.05)
    half = 0.5 / BOUND  # then half of the requests are bound, and half of them meet it
    assert seen(0.5, half).price(8)[1] == pytest.approx(0.25 / (0.25 + 0.5 * 0.25), rel=0.02)
    assert seen(0.0, 0.9).price(8)[1] == 0.0


def test_a_cold_start_is_a_busy_time() -> None:
    """A fleet that has been busy since the start counts as busy after seconds, not after minutes;
    later, a busy time of that length hardly counts."""
    new, old = Demand(), seen(0.0, 0.9)
    for tenths in range(101):
        new.arrived(1.0, 0.9, tenths / 10)
        old.arrived(1.0, 0.9, 600 + tenths / 10)
    assert price(new) > LEAST_PRICE + 3 * PRICE
    assert price(old) < LEAST_PRICE + PRICE
    for _ in range(100):
        new.arrived(0.0, 0.9, 10.0 + 5 * SMOOTHED_S)
    assert price(new) < LEAST_PRICE + 0.1


@pytest.mark.parametrize(("given_s", "less"), [(0.0, 0.0), (4.0, 0.5), (10.0, 1.0), (40.0, 1.0)])
def test_prefill_is_cheaper_where_little_is_given(given_s: float, less: float) -> None:
    """A worker that is given less than half of what is usual among those that can take the request
    has few requests bound to it."""
    workers, costs = fleet(4), Costs()
    costs._demand = seen(0.5, 0.9)
    for worker in workers:
        worker.load.given_s, worker.load.given_at = 20.0, 600.0
    workers[0].load.given_s = given_s
    asked = prompt(LONG)
    ranked = {one.worker.name: one.cost for one in costs.rank(asked, workers, 600.0)}
    paid = [ranked[name].price / ranked[name].prefill for name in ("w0", "w1")]
    assert paid[0] == pytest.approx(paid[1] * less, rel=0.01, abs=0.01)


def test_turns_follow_what_is_asked_for_again() -> None:
    """No turns if nothing is held, more the more is held, up to a bound."""
    assert seen(0.5, 0.0).turns() == pytest.approx(0.0, abs=0.01)
    assert seen(0.5, 0.75).turns() == pytest.approx(3.0, rel=0.03)
    assert seen(0.5, 1.0).turns() == MOST_TURNS


def test_nothing_is_taken_for_granted_before_anything_came() -> None:
    """Initially half of each prompt is assumed to be held; the first prompts change that, and the
    busy share, only a little."""
    demand = Demand()
    assert demand.turns() == pytest.approx(1.0)
    for now in (1e6, 1e6 + 0.1):  # the clock may start at any value
        demand.arrived(1.0, 0.0, now)
    assert 0.5 < demand.turns() < 0.8
    assert price(demand) < LEAST_PRICE + 0.3


def test_prompts_count_alike_however_they_come() -> None:
    """A burst of cold prompts counts as much as the same prompts one by one; after a long gap they
    are forgotten."""
    burst, stream = Demand(), Demand()
    for number in range(40):
        burst.arrived(0.0, 0.0, 0.0)
        stream.arrived(0.0, 0.0, 0.01 * number)
    assert burst.turns() == pytest.approx(stream.turns(), rel=0.01) == pytest.approx(0.09, abs=0.01)
    burst.arrived(0.0, 1.0, 20 * SMOOTHED_S)
    assert burst.turns() > 1.0


def test_a_busy_moment_in_a_quiet_hour_is_one() -> None:
    """The busy share is smoothed over time, not over prompts: a burst of prompts in one busy moment
    hardly changes it."""
    burst = seen(0.0, 0.9)
    for number in range(100):
        burst.arrived(1.0, 0.9, 600.0 + number / 1e3)
    assert price(burst) == pytest.approx(LEAST_PRICE, rel=0.2)


def test_demand_stands_a_clock_that_goes_back() -> None:
    """If the clock goes back, nothing is forgotten and no observation gets extra weight."""
    demand = seen(0.5, 0.75)
    was = price(demand)
    for _ in range(10):
        demand.arrived(1.0, 0.75, 0.0)
    assert price(demand) == was
    demand.arrived(0.5, 0.75, 600.0 + SMOOTHED_S)
    assert price(demand) == pytest.approx(was, rel=0.02)


def test_how_full_a_worker_was_is_remembered_for_a_while() -> None:
    """Tokens booked just now hardly count in the average yet; tokens just released still do."""
    load = Load()
    booking = load.book(100.0, 0.1, 1_000)
    assert load.kv_tokens + load.kv_surplus(100.0) == pytest.approx(0.0)
    late = 100.0 + 10 * KV_BACK_S
    assert load.kv_tokens + load.kv_surplus(late) == pytest.approx(1_000, rel=0.001)
    load.release(booking, late)
    assert load.kv_tokens == 0
    assert load.kv_surplus(late) == pytest.approx(1_000, rel=0.001)
    assert load.kv_surplus(late + KV_BACK_S) == pytest.approx(368, rel=0.01)
    assert load.kv_surplus(late + 40 * KV_BACK_S) == pytest.approx(0.0, abs=1e-6)


def test_what_requests_have_in_common_fills_a_worker_once() -> None:
    """Shared tokens count once in the average too: fifty requests that share most of their tokens
    have not filled the worker."""
    load = Load()
    bookings = [load.book(0.0, 0.1, 1_000) for _ in range(50)]
    load.share(49 * 900.0, 0.0)
    late = 10 * KV_BACK_S
    used = load.kv_tokens - load.shared_tokens
    assert used == pytest.approx(5_900)
    assert used + load.kv_surplus(late) == pytest.approx(5_900, rel=0.001)
    for booking in bookings:
        load.release(booking, late)
    load.share(0.0, late)
    assert load.kv_surplus(late) == pytest.approx(5_900, rel=0.001)


@pytest.mark.parametrize(("used", "waits"), [(0.0, 0.0), (0.5, 0.0), (0.8, 0.8), (3.0, 1.6)])
def test_turns_wait_where_it_is_full(used: float, waits: float) -> None:
    """The home term grows once more than three fifths of the KV cache is in use, and is bounded
    where all of it is."""
    worker = Stand("w")
    room = worker.room_tokens
    assert room is not None
    worker.load.book(0.0, 0.0, int(used * room))
    worker.load.first_byte(next(iter(worker.load.pending)), 0.0)
    now = 40 * KV_BACK_S
    (choice,) = Costs().rank(Prompt("m", 1), [worker], now)
    assert choice.cost.home == pytest.approx(waits, abs=0.01)


def test_conversations_leave_a_worker_that_stays_full() -> None:
    """If later turns are expected, of two idle workers the one whose KV cache was full for the last
    minute is avoided."""
    run = Run("prefixaware", fleet(2))
    text = LONG[:16_000]
    crowded = run.workers[0].load
    room = run.workers[0].room_tokens
    assert room is not None
    for worker in run.workers:
        run.strategy.placed(prompt(text + "x"), worker, 0.0)
    for now in range(300):
        asked = prompt(text + "y" * 400)
        choice = run.strategy.rank(asked, run.workers, float(now)).candidates[0]
        run.strategy.placed(asked, choice.worker, float(now))
        run.strategy.settled(asked, choice, Outcome(ok=True), float(now))
        if now == 240:
            booking = crowded.book(float(now), 0.0, room)
    crowded.release(booking, 300.0)
    first, second = run.strategy.rank(prompt(text + "z" * 400), run.workers, 300.0).candidates
    assert first.worker.name == "w1"
    assert second.cost.home > 1.0 > first.cost.home


def test_demand_is_told_of_a_prompt_once() -> None:
    """A prompt counts as demand once, however often it is ranked and sent."""
    workers, costs = fleet(2), Costs()
    workers[0].load.book(0.0, 1000.0)
    demand, late = costs._demand, SMOOTHED_S * log(2.0)
    first, asked, other = (prompt(f"{word} " * 100) for word in ("first", "asked", "other"))
    costs.rank(first, workers[1:], 0.0)
    costs.placed(first, 0.0)
    costs.rank(asked, workers, late)
    costs.placed(asked, late)
    told = demand._busy, demand._prompts
    half = SMOOTHED_S / 2
    assert list(told) == pytest.approx([0.5 * half / (half + IDLE_S), 1.5])
    costs.placed(asked, late)
    costs.rank(asked, workers[:1], 2 * late)
    costs.placed(asked, 2 * late)
    costs.rank(other, workers, 2 * late)
    costs.placed(asked, 2 * late)
    assert (demand._busy, demand._prompts) == told
    costs.rank(other, workers[1:], 2 * late)
    costs.placed(other, 2 * late)
    assert demand._busy == pytest.approx(told[0] / 2)
