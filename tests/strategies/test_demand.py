"""How busy the fleet is, how much of what comes is bound, and what follows from both."""

import pytest

from strategies.demand import LEAST_PRICE, MOST_PRICE, MOST_TURNS, PRICE, Demand
from strategies.load import KV_BACK_S, Load
from tests.strategies.test_choice import LONG, Run, fleet, prompt


def seen(busy: float, reuse: float) -> Demand:
    """Return a fleet that was like this for long."""
    demand = Demand()
    for now in range(1, 600):
        demand.look(busy, reuse, float(now))
    return demand


def test_an_idle_fleet_charges_the_least() -> None:
    """Whatever comes, nobody waits."""
    assert seen(0.0, 0.9).price(8) == pytest.approx(LEAST_PRICE)
    assert seen(0.0, 0.0).price(8) == pytest.approx(LEAST_PRICE)


def test_prefill_costs_more_the_busier_the_fleet_is() -> None:
    """Up to a bound."""
    prices = [seen(busy, 0.9).price(8) for busy in (0.2, 0.5, 0.8, 0.95, 1.0)]
    assert prices == sorted(prices)
    assert prices[1] == pytest.approx(LEAST_PRICE + PRICE, rel=0.01)
    assert prices[-1] == MOST_PRICE


def test_who_is_bound_to_a_worker_waits_for_it() -> None:
    """Who is not goes elsewhere, the easier the more workers there are."""
    free, bound = seen(0.5, 0.0), seen(0.5, 0.9)
    assert bound.price(8) == bound.price(64)
    assert free.price(64) < free.price(8) < 0.6 * bound.price(8)
    # Of two workers, one of which is busy, the other is as often the wrong one.
    assert free.price(2) == pytest.approx(bound.price(2), rel=0.01)


def test_turns_follow_what_is_asked_for_again() -> None:
    """None where nothing is, many where all is, and no more than that."""
    assert seen(0.5, 0.0).turns() == pytest.approx(0.0, abs=1e-4)
    assert seen(0.5, 0.75).turns() == pytest.approx(3.0, rel=0.01)
    assert seen(0.5, 1.0).turns() == MOST_TURNS


def test_how_full_a_worker_was_is_remembered_for_a_while() -> None:
    """What has just come hardly counts yet, and what has just gone still does."""
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


def test_conversations_leave_a_worker_that_stays_full() -> None:
    """Where turns follow: both are idle now, and one had no room to spare for a minute."""
    run = Run("prefixaware", fleet(2))
    text = LONG[:16_000]
    crowded = run.workers[0].load
    room = run.workers[0].room_tokens
    assert room is not None
    for worker in run.workers:
        run.strategy.placed(prompt(text + "x"), worker, 0.0)
    for now in range(300):
        run.strategy.rank(prompt(text + "y" * 400), run.workers, float(now))
        if now == 240:
            booking = crowded.book(float(now), 0.0, room)
    crowded.release(booking, 300.0)
    first, second = run.strategy.rank(prompt(text + "z" * 400), run.workers, 300.0).candidates
    assert first.worker.name == "w1"
    assert second.cost.home > 1.0 > first.cost.home
