"""Which requests are held until a worker is about to be free, and which are sent at once."""

import pytest

from strategies.base import Candidate, Cost, Decision, Prompt
from strategies.held import LOOK_S
from strategies.latebinding import (
    JOINED_LEAST,
    JOINED_TOKENS,
    READY_EACH,
    READY_S,
    READY_TOKENS,
    LateBinding,
)
from strategies.loads import Loading
from strategies.preemption import STEP_S
from tests.strategies.desk import ANY, MANY, Desk, Stand


def test_only_a_queue_is_waited_for_here() -> None:
    """A worker that is free, or is about to be, gets its request at once."""
    assert not Desk(Stand("a")).come("r", 5)
    assert not Desk(Stand("a", READY_S)).come("r", 5)
    assert Desk(Stand("a", READY_S + 0.1)).come("r", 5)


def test_what_one_step_computes_is_not_waited_for() -> None:
    """Bookings that one engine step computes do not cause a hold, however long the step takes:
    prompts sent one by one would waste it."""
    desk = Desk(Stand("a"))
    load = desk.workers[0].load
    for _ in range(4):
        load.book(0.0, 1.0, uncached=READY_TOKENS // 4)
    assert not desk.come("r", 1)
    more = load.book(0.0, 0.1, uncached=1)
    assert desk.come("r", 1)
    assert desk.released() == []
    assert desk.come("s", 1), "who is held is before it"
    load.release(more, 0.0)
    assert desk.released() == ["r"]
    load.first_byte(next(iter(load.pending)), 1.0)
    assert load.uncached == READY_TOKENS * 3 // 4 + MANY


@pytest.mark.parametrize(
    ("wait", "preempts", "held"),
    [
        (READY_S + STEP_S, 1, False),
        (READY_S + STEP_S + 0.01, 1, True),
        (READY_S + STEP_S, 0, True),
        (READY_S, 0, False),
    ],
)
def test_the_end_of_a_step_is_not_waited_for_here(
    wait: float, preempts: int, *, held: bool
) -> None:
    """A prompt that others give way to is sent at once, even if the worker has to end its step
    first: only then do they give way."""
    worker = Stand("a", 100.0)
    prompt, choice = Prompt(ANY, 1), Candidate(worker, Cost(wait, 1.0), preempts=preempts)
    assert LateBinding.must_hold(prompt, Decision([choice], "load"), 0.0) is held
    full = Candidate(worker, Cost(wait, 1.0, room=0.1), preempts=preempts)
    assert LateBinding.must_hold(prompt, Decision([full], "load"), 0.0)


def test_who_comes_before_those_that_are_held_is_not() -> None:
    """One step's worth may be sent past held requests that need more, not past others."""
    desk = Desk(Stand("a"))
    load = desk.workers[0].load
    load.book(0.0, 5.0, uncached=READY_TOKENS)
    wait = Cost(5.0, 1.0)
    decision = Decision([Candidate(desk.workers[0], wait)], "load")
    for need, seconds, held in ((1.1, 9.0, False), (1.0, READY_S, False), (0.9, 0.1, True)):
        load.promises.append((need, seconds))
        assert desk.binding.must_hold(Prompt(ANY, 1), decision, 0.0) is held


def test_a_step_among_many_answers_takes_more_prompts() -> None:
    """Where many requests decode, a longer queue is sent before any is held."""
    desk = Desk(Stand("a"))
    load = desk.workers[0].load
    decoding = READY_TOKENS // READY_EACH * 2
    for _ in range(decoding):
        load.first_byte(load.book(0.0, 0.1, uncached=1), 0.0)
    load.book(0.0, 1.0, uncached=READY_EACH * decoding)
    assert not desk.come("r", 1)
    more = load.book(0.0, 1.0, uncached=1)
    assert desk.come("r", 1)
    load.release(more, 0.0)
    assert desk.released() == ["r"]


@pytest.mark.parametrize(
    ("own", "booked", "held"),
    [
        (JOINED_LEAST, JOINED_TOKENS - JOINED_LEAST, False),
        (JOINED_LEAST, JOINED_TOKENS - JOINED_LEAST + 1, True),
        (JOINED_LEAST - 1, READY_TOKENS + 1, True),
        (JOINED_TOKENS - READY_TOKENS - 1, READY_TOKENS + 1, False),
        (JOINED_TOKENS - READY_TOKENS, READY_TOKENS + 1, True),
    ],
)
def test_short_prompts_share_a_step(own: int, booked: int, *, held: bool) -> None:
    """A prompt of some length joins those that are booked if all of them are few tokens; what its
    worker holds of it does not count. If it was held before, it is released then."""
    worker = Stand("a")
    load = worker.load
    load.book(0.0, 5.0, uncached=booked)
    prompt = Prompt(ANY, own + 5_000)
    busy = Decision([Candidate(worker, Cost(5.0, 1.0), held_tokens=5_000)], "prefix")
    binding: LateBinding[str] = LateBinding()
    assert binding.must_hold(prompt, busy, 0.0) is held
    entered = binding.enter("r", prompt, busy, 0.0)
    released = binding.release(lambda _: busy, LOOK_S, [load])
    assert (released is None) is held
    assert released is None or released[0] is entered


def test_what_has_to_be_loaded_fills_a_step_too() -> None:
    """A prompt that a worker holds on a slower tier does not join others as a short one."""
    worker = Stand("a")
    worker.load.book(0.0, 5.0, uncached=READY_TOKENS + 1)
    prompt, cost = Prompt(ANY, JOINED_LEAST + 9_000), Cost(5.0, 1.0)
    held = Candidate(worker, cost, held_tokens=9_000)
    assert not LateBinding.must_hold(prompt, Decision([held], "prefix"), 0.0)
    loads = Candidate(worker, cost, held_tokens=9_000, loading=Loading(1.0, 9_000, 0))
    assert LateBinding.must_hold(prompt, Decision([loads], "l1"), 0.0)


def test_a_full_cache_is_waited_for_too() -> None:
    """A request is held if no worker has room for it in its KV cache."""
    decision = Decision([Candidate(Stand("a"), Cost(room=0.1))], "load")
    assert LateBinding.must_hold(Prompt(ANY, 1), decision, 0.0)
