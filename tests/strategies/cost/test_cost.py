"""What little room in a KV cache costs, and what a prompt costs the answers on its worker."""

import pytest

from strategies.api import Cost, Prompt
from strategies.cost.cost import Costs
from strategies.cost.prefill import Loading
from tests.strategies.workers import Run, Stand, fleet, prompt


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


def costs_of(workers: list[Stand], prompt: Prompt) -> list[Cost]:
    """Return what the prompt costs on each of these workers."""
    found = {one.worker.name: one.cost for one in Costs().rank(prompt, workers, 0.0)}
    return [found[worker.name] for worker in workers]


def test_each_answer_counts_for_as_long_as_the_prompt_takes() -> None:
    """Twice as many, or twice the prompt, are twice as much; and what the KV cache holds slows
    them."""
    none, few, many = workers = [Stand("none"), Stand("few"), Stand("many")]
    for worker, count in ((few, 5), (many, 10)):
        worker.load.decoding, worker.load.kv_tokens = count, 20_000 * count
    idle, some, more = costs_of(workers, Prompt("m", 4_000, answer_tokens=200))
    stalled = some.price - idle.price
    assert stalled > 0.0
    assert abs(more.price - idle.price - 2 * stalled) < 1e-9
    assert idle.decode < some.decode < more.decode
    assert none.load.decoding == 0
    idle_long, some_long, _ = costs_of(workers, Prompt("m", 40_000, answer_tokens=200))
    assert some_long.price - idle_long.price > 10 * stalled


def test_loading_stalls_as_computing_does() -> None:
    """Answers wait for a prompt that takes long only because it is loaded."""
    workers = [Stand("computes"), Stand("loads")]
    for worker in workers:
        worker.load.decoding = 10
    held = {"computes": 900, "loads": 900}
    loading = {"loads": Loading(7.0)}
    found = Costs().rank(Prompt("m", 1_000), workers, 0.0, held, loading=loading)
    shares = [one.cost.price / one.cost.prefill for one in found]
    assert abs(shares[0] - shares[1]) < 1e-9


def test_what_has_no_answer_slows_none() -> None:
    """Such as a text to be embedded: it leaves once it is computed. But answers wait for it."""
    workers = [Stand("full"), Stand("empty")]
    workers[0].load.decoding, workers[0].load.kv_tokens = 10, 300_000
    full, empty = costs_of(workers, Prompt("m", 1_000, answer_tokens=0))
    assert full.decode == empty.decode == 0.0
    assert full.price > empty.price
    assert full.total > empty.total
