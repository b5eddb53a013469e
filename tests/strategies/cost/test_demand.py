"""Demand: how busy the fleet is, how much of the prompts is held, and what follows from both."""

import pytest

from strategies.api import Prompt
from strategies.cost.cost import Costs, Demand
from strategies.cost.load import Load
from tests.strategies.workers import Stand, fleet, prompt

#: Seconds after which nothing of what was smoothed is left, and for which nearly all of it is.
LONG_AFTER_S, SOON_S = 2_000.0, 1.0


def seen(busy: float, reuse: float) -> Demand:
    """Return the demand of a fleet that has been like this for ten minutes."""
    demand = Demand()
    for tenths in range(1, 6_000):
        demand.arrived(busy, reuse, tenths / 10)
    return demand


def test_prefill_costs_more_the_busier_the_fleet_is() -> None:
    """It always costs something, as siblings may come next; and the price is bounded."""
    prices = [seen(busy, 0.9).price() for busy in (0.0, 0.2, 0.5, 0.8, 1.0)]
    assert 0.0 < prices[0] < prices[1]
    assert prices == sorted(prices)
    assert prices[3] > 2 * prices[2]
    assert prices[4] < 100.0


def test_a_cold_start_is_a_busy_time() -> None:
    """A fleet that has been busy since the start counts as busy after seconds, not after minutes;
    later, a busy time of that length hardly counts."""
    new, old = Demand(), seen(0.0, 0.9)
    for tenths in range(101):
        new.arrived(1.0, 0.9, tenths / 10)
        old.arrived(1.0, 0.9, 600 + tenths / 10)
    assert new.price() > seen(0.7, 0.9).price()
    assert old.price() < seen(0.5, 0.9).price()
    for _ in range(100):
        new.arrived(0.0, 0.9, LONG_AFTER_S)
    assert new.price() == pytest.approx(seen(0.0, 0.9).price())


def test_turns_follow_what_is_asked_for_again() -> None:
    """No turns if nothing is held, more the more is held, up to a bound."""
    assert seen(0.5, 0.0).turns() == pytest.approx(0.0, abs=0.01)
    assert seen(0.5, 0.75).turns() == pytest.approx(3.0, rel=0.03)
    assert 5.0 < seen(0.5, 1.0).turns() < 20.0


def test_prompts_count_alike_however_they_come() -> None:
    """A burst of cold prompts counts as much as the same prompts one by one; after a long gap they
    are forgotten."""
    burst, stream = Demand(), Demand()
    for number in range(40):
        burst.arrived(0.0, 0.0, 0.0)
        stream.arrived(0.0, 0.0, 0.01 * number)
    assert burst.turns() == pytest.approx(stream.turns(), rel=0.01) == pytest.approx(0.09, abs=0.01)
    burst.arrived(0.0, 1.0, LONG_AFTER_S)
    assert burst.turns() > 1.0


def test_demand_stands_a_clock_that_goes_back() -> None:
    """If the clock goes back, nothing is forgotten and no observation gets extra weight."""
    demand = seen(0.5, 0.75)
    was = demand.price()
    for _ in range(10):
        demand.arrived(1.0, 0.75, 0.0)
    assert demand.price() == was
    demand.arrived(0.5, 0.75, 645.0)
    assert demand.price() == pytest.approx(was, rel=0.02)


def test_how_full_a_worker_was_is_remembered_for_a_while() -> None:
    """Tokens booked just now hardly count in the average yet; tokens just released still do."""
    load = Load()
    booking = load.book(100.0, 0.1, 1_000)
    assert load.kv_tokens + load.kv_surplus(100.0) == pytest.approx(0.0)
    late = 100.0 + LONG_AFTER_S
    assert load.kv_tokens + load.kv_surplus(late) == pytest.approx(1_000, rel=0.001)
    load.release(booking, late)
    assert load.kv_tokens == 0
    assert load.kv_surplus(late) == pytest.approx(1_000, rel=0.001)
    assert 950 < load.kv_surplus(late + SOON_S) < 1_000
    assert load.kv_surplus(late + LONG_AFTER_S) == pytest.approx(0.0, abs=1e-6)


def test_turns_wait_where_it_is_full() -> None:
    """The home term grows once much of the KV cache is in use, and is bounded if all of it is;
    it is in proportion to how long requests stay."""

    def home(used: float, times: float = 1.0) -> float:
        worker = Stand("w")
        assert worker.room_tokens is not None
        worker.load.book(0.0, 0.0, int(used * worker.room_tokens))
        worker.load.first_byte(next(iter(worker.load.pending)), 0.0)
        worker.load.stay_s *= times
        (choice,) = Costs().rank(Prompt("m", 1), [worker], LONG_AFTER_S)
        return choice.cost.home

    homes = [home(used) for used in (0.0, 0.5, 0.8, 0.9, 1.0, 3.0)]
    assert homes[:2] == [0.0, 0.0]
    assert home(0.9, 5.0) == pytest.approx(5.0 * home(0.9))
    assert 0.1 < homes[2] < homes[3] < homes[4] == pytest.approx(homes[5], rel=0.01)


def test_demand_is_told_of_a_prompt_once() -> None:
    """A prompt counts as demand once, however often it is ranked and sent."""
    workers, costs = fleet(2), Costs()
    workers[0].load.book(0.0, 1000.0)
    first, asked, other = (prompt(f"{word} " * 100) for word in ("first", "asked", "other"))

    def price(now: float) -> float:
        """Return what a second of prefill costs there now."""
        (one,) = costs.rank(other, workers[1:], now)
        return one.cost.price / one.cost.prefill

    costs.rank(first, workers[1:], 0.0)
    costs.placed(first, 0.0)
    costs.rank(asked, workers, 30.0)
    costs.placed(asked, 30.0)
    told = price(30.0)
    assert told > seen(0.0, 0.5).price()
    for again in (30.0, 60.0):
        costs.placed(asked, again)
        costs.rank(asked, workers[:1], again)
        costs.placed(asked, again)
        assert price(again) == told
    costs.rank(other, workers[1:], 60.0)
    costs.placed(other, 60.0)
    assert price(60.0) < told
