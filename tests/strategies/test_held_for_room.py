"""Requests that are held until a worker's KV cache has room for them."""

import pytest

from strategies.base import Candidate, Cost, Decision, Prompt
from strategies.cost import Costs
from strategies.held import AREA_S, LACKING_S, Held
from strategies.latebinding import LateBinding
from strategies.load import AGING
from tests.strategies.desk import ANY, Stand


def test_a_worker_that_tells_no_room_has_as_little_as_any() -> None:
    """What a prompt takes of its KV cache is then a share of the least that others report."""
    silent, small, large = Stand("a"), Stand("b"), Stand("c")
    small.room_tokens, large.room_tokens = 10_000, 50_000
    full = Cost(prefill=0.1, room=1.0)
    for others, share in (((small, large), 0.5), ((large,), 0.1), ((), 0.0)):
        choices = [Candidate(one, full) for one in (silent, *others)]
        held = LateBinding[str]().enter("r", Prompt(ANY, 5_000), Decision(choices, "cold"), 0.0)
        assert held.need(0.0, AGING)[1] == pytest.approx(0.1 + share * AREA_S)


def test_who_needs_much_of_a_full_cache_comes_later() -> None:
    """Prompts that lack room are sorted by what they take of the KV cache too, not by their prefill
    alone; so are those that they are promised before."""
    worker = Stand("a")
    worker.room_tokens = 10_000
    binding: LateBinding[str] = LateBinding()

    def come(name: str, tokens: int, prefill_s: float, room_s: float) -> Held[str]:
        cost = Cost(prefill=prefill_s, room=room_s)
        choice = Candidate(worker, cost, held_tokens=tokens - 1)
        return binding.enter(name, Prompt(ANY, tokens), Decision([choice], "prefix"), 0.0)

    large, small = come("large", 5_000, 0.1, 1.0), come("small", 500, 0.2, 1.0)
    waits = come("waits", 5_000, 0.3, 0.0)
    assert sorted((large, small, waits), key=lambda held: held.need(1.0, AGING)) == [
        waits,
        small,
        large,
    ]
    assert large.need(1.0, AGING)[1] == pytest.approx(0.1 + 0.5 * AREA_S - AGING)
    needs = [need for need, _ in worker.load.promises]
    assert needs == pytest.approx([0.1 + 0.5 * AREA_S, 0.2 + 0.05 * AREA_S, 0.3])


@pytest.mark.parametrize(("each", "large", "small"), [(10_000, 50_000, 10_000), (1000, 1600, 600)])
def test_small_prompts_do_not_take_the_room_that_a_large_one_waits_for(
    each: int, large: int, small: int
) -> None:
    """Once a large prompt has waited long, new requests see its room as taken, and it goes before
    all others."""
    worker, costs = Stand("a"), Costs()
    worker.room_tokens = 10 * each
    running = [worker.load.book(0.0, 0.0, each) for _ in range(10)]
    for booking in running:
        worker.load.first_byte(booking, 0.0)
    binding: LateBinding[str] = LateBinding()
    now = 0.0

    def rank(prompt: Prompt) -> Decision:
        return Decision(costs.rank(prompt, [worker], now), "load")

    def come(name: str, tokens: int) -> None:
        prompt = Prompt("m", tokens, answer_tokens=0)
        decision = rank(prompt)
        assert binding.must_hold(prompt, decision, now), f"{name} finds room"
        binding.enter(name, prompt, decision, now)

    come("large", large)
    now = LACKING_S
    assert binding.release(rank, now, [worker.load]) is None
    for number, booking in enumerate(running[: -(-large // each)]):
        assert binding.release(rank, now, [worker.load]) is None
        now += 1.0
        worker.load.release(booking, now)
        come(f"small{number}", small)
    released = binding.release(rank, now, [worker.load])
    assert released is not None
    assert released[0].item == "large"
    binding.leave(released[0], now)
    for held in binding:
        binding.leave(held, now)
    assert (worker.load.promised_s, worker.load.promised_tokens) == (0.0, 0)


def test_those_that_go_before_all_others_go_in_order_of_arrival() -> None:
    """However short the later ones are: room stays reserved for the first."""
    worker, binding = Stand("a"), LateBinding[str]()
    for name, since, seconds in (("short", 1.0, 0.1), ("long", 0.0, 9.0), ("next", 2.0, 5.0)):
        choice = Candidate(worker, Cost(prefill=seconds, room=1.0))
        binding.enter(name, Prompt(ANY, 5), Decision([choice], "cold"), 20.0, since=since)
    now = 2.0 + LACKING_S
    in_order = sorted(binding, key=lambda held: held.need(now, AGING))
    assert [held.item for held in in_order] == ["long", "short", "next"]
