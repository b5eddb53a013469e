"""Demand: how busy the fleet is, how much of the prompts is held, and what follows from both."""

import pytest

from strategies.base import Outcome, Prompt
from strategies.cost import Costs
from strategies.demand import (
    LEAST_PRICE,
    MOST_PRICE,
    MOST_TURNS,
    PRICE,
    SMOOTHED_S,
    Demand,
)
from strategies.load import KV_BACK_S, Load
from tests.strategies.test_choice import LONG, Run, Stand, fleet, prompt


def seen(busy: float, reuse: float) -> Demand:
    """Return the demand of a fleet that has been like this for ten minutes."""
    demand = Demand()
    for tenths in range(1, 6_000):
        demand.arrived(busy, reuse, tenths / 10)
    return demand


def test_an_idle_fleet_charges_the_least() -> None:
    """In an idle fleet prefill delays no one, whatever share of the prompts is held."""
    assert seen(0.0, 0.9).price(8) == pytest.approx(LEAST_PRICE)
    assert seen(0.0, 0.0).price(8) == pytest.approx(LEAST_PRICE)


def test_prefill_costs_more_the_busier_the_fleet_is() -> None:
    """The price rises with the busy share, up to a bound."""
    prices = [seen(busy, 0.9).price(8) for busy in (0.2, 0.5, 0.8, 0.95, 1.0)]
    assert prices == sorted(prices)
    assert prices[1] == pytest.approx(LEAST_PRICE + PRICE, rel=0.01)
    assert prices[-1] == MOST_PRICE


def test_who_is_bound_to_a_worker_waits_for_it() -> None:
    """Requests bound to a worker wait for it; others go elsewhere, more easily the more workers
    there are."""
    free, bound = seen(0.5, 0.0), seen(0.5, 0.9)
    assert bound.price(8) == bound.price(64)
    assert free.price(64) < free.price(8) < 0.6 * bound.price(8)
    assert free.price(8) == pytest.approx(LEAST_PRICE + PRICE * 0.5, rel=0.05)  # 0.5 ** 2 / 0.5
    # With only two workers, prompts that are not bound pay the same price.
    assert free.price(2) == pytest.approx(bound.price(2), rel=0.01)


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
    assert demand.price(8) < LEAST_PRICE + 0.1


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
    assert burst.price(8) == pytest.approx(LEAST_PRICE, rel=0.2)


def test_demand_stands_a_clock_that_goes_back() -> None:
    """If the clock goes back, nothing is forgotten and no observation gets extra weight."""
    demand = seen(0.5, 0.75)
    was = demand.price(8)
    for _ in range(10):
        demand.arrived(1.0, 0.75, 0.0)
    assert demand.price(8) == was
    demand.arrived(0.5, 0.75, 600.0 + SMOOTHED_S)
    assert demand.price(8) == pytest.approx(was, rel=0.02)


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
