"""What it costs that a worker's KV cache has little room."""

import pytest

from strategies.api import Prompt
from strategies.cost.cost import Costs
from tests.strategies.placing import Run, Stand, fleet, prompt


def test_a_full_cache_repels() -> None:
    """With all else equal, the worker with free KV blocks is chosen."""
    run = Run("leastload", fleet(2))
    booking = run.workers[0].load.book(0.0, 0.0, 390_000)
    run.workers[0].load.first_byte(booking, 0.0)
    run.workers[1].load.turn = 9
    assert run.place(prompt("x" * 4000)).name == "w1"


def test_a_full_worker_is_waited_for_only_if_it_is_worth_it() -> None:
    """On a worker without room in its KV cache, waiting for another request to end costs time."""
    run = Run("leastload", fleet(2))
    full = run.workers[0]
    full.load.first_byte(full.load.book(0.0, 0.0, 399_000), 0.0)
    first, second = run.strategy.rank(prompt("x" * 40_000), run.workers, 0.0).candidates
    assert (first.worker.name, first.cost.room) == ("w1", 0.0)
    assert second.cost.room > 1.0
    few, more, all_ = (
        Costs().rank(Prompt("m", tokens, answer_tokens=0), [full], 0.0)[0].cost.room
        for tokens in (2_000, 21_000, 390_000)
    )
    assert 0.0 < few < more < all_ == full.load.stay_s, "at most until all others have left"


@pytest.mark.parametrize("running", [0, 3])
def test_what_never_fits_does_not_wait_for_room(running: int) -> None:
    """The worker will refuse a prompt larger than its KV cache, so the sooner the better."""
    one = Stand("w0", room_tokens=8_000)
    for _ in range(running):
        one.load.book(0.0, 0.0, 2_000)
    (choice,) = Costs().rank(Prompt("m", 8_100, answer_tokens=256), [one], 0.0)
    assert choice.cost.room == 0.0
    if not running:  # no request is running whose end could make room for the answer
        (choice,) = Costs().rank(Prompt("m", 7_900, answer_tokens=256), [one], 0.0)
        assert choice.cost.room == 0.0


def test_what_requests_have_in_common_takes_room_once() -> None:
    """Ten questions about one long document fit where ten documents would not."""
    run = Run("prefixaware", fleet(1))
    document = "long document " * 20_000
    for number in range(10):
        run.place(prompt(document + f"question {number} " * 100))
    choice = run.strategy.rank(prompt(document + "another"), run.workers, 0.0).candidates[0]
    assert run.workers[0].load.kv_tokens > 400_000
    assert choice.cost.room == 0.0


@pytest.mark.parametrize("strategy", ["prefixaware", "kvaware"])
def test_what_a_request_has_in_common_with_those_under_way_takes_no_room(strategy: str) -> None:
    """A prefix of more than half of the KV cache is stored once, however many requests share it; a
    prompt that shares nothing with it waits for room."""
    (worker,) = workers = fleet(1)
    worker.kv_tokens = worker.room_tokens = 100_000
    run = Run(strategy, workers)
    for number in range(3):
        asked = prompt("x" * 240_000 + f"question {number}")
        assert run.strategy.rank(asked, workers, 0.0).candidates[0].cost.room == 0.0
        run.place(asked)
    other = prompt("y" * 240_000)
    assert run.strategy.rank(other, workers, 0.0).candidates[0].cost.room > 0.0


def test_who_does_not_tell_its_room_has_the_least() -> None:
    """Its cache is taken to be as full as if it were the smallest in the pool."""
    workers = [Stand("w0", room_tokens=room) for room in (None, 100_000, 300_000)]
    for number, worker in enumerate(workers):
        worker.name = f"w{number}"
    ranked = {one.worker.name: one.cost for one in Costs().rank(Prompt("m", 1_000), workers, 0.0)}
    assert ranked["w0"].decode == ranked["w1"].decode > 2 * ranked["w2"].decode > 0.0
    (alone,) = Costs().rank(Prompt("m", 1_000), workers[:1], 0.0)
    assert alone.cost.decode == 0.0
