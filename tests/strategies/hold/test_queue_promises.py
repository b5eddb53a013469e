"""What workers are told of the requests that would go to them."""

from math import inf

import pytest

from strategies.api import Decision, Prompt
from strategies.cost.cost import Costs
from strategies.hold.queue import Entry, Queue
from tests.strategies.hold.desk import MANY, Desk, Stand

#: Longer than any request waits before it goes first.
LONG = 60.0


def test_those_that_wait_count_where_they_would_go() -> None:
    """New requests see them as queued there, and choose a free worker even if it lacks the prefix.

    If they did not count, one hot prefix would keep all requests waiting for one worker while the
    others idle.
    """
    desk = Desk(Stand("a", 1.0), Stand("b", 4.0))
    assert [desk.come(str(number), 2) for number in range(4)] == [True] * 4
    assert [worker.load.promised_s for worker in desk.workers] == [6.0, 2.0]


def test_a_promise_has_its_place_in_the_order() -> None:
    """By which it is compared with newcomers: the same at any time."""
    desk = Desk(Stand("a", 1000.0))
    load = desk.workers[0].load
    desk.enter("long", 8)
    desk.now = 10.0
    desk.enter("short", 2)
    assert [seconds for _, seconds in sorted(load.promises)] == [2.0, 8.0]
    before = sorted(load.promises)
    desk.now = 11.0
    assert desk.released() == []
    assert sorted(load.promises) == before
    first = desk.enter("first", 9, first=True)
    assert min(load.promises) == (-inf, 9.0)
    desk.queue.leave(first)
    assert sorted(load.promises) == before


def test_promises_are_bounded() -> None:
    """A decision compares a request with all that is promised, so few are, however many wait and
    whether or not any worker is about to be free."""
    desk = Desk(Stand("a", 5000.0))
    promised = []
    for number in range(1000):
        desk.enter(str(number), 1 + number)
        assert desk.release() is None
        promised.append(len(desk.workers[0].load.promises))
    assert promised[:20] == list(range(1, 21))
    assert max(promised) < 300
    assert 1.0 in [seconds for _, seconds in desk.workers[0].load.promises], "the shortest counts"


def test_those_behind_one_that_was_released_are_promised_again() -> None:
    """Even if no worker is ready any more once that one is booked."""
    busy, free = Stand("a", 50.0), Stand("b", 10.0)
    desk = Desk(busy, free)
    for one in desk.workers:
        one.load.uncached = 10 * MANY
    for name in ("b", "b", "a", "a"):
        assert desk.come(name, 4, model=name)
    desk.now, free.load.uncached = 10.0, 0
    assert desk.release() == "b"
    free.load.book(desk.now, 4.0, uncached=10 * MANY)
    assert desk.release() is None
    assert [len(one.load.promises) for one in desk.workers] == [2, 1]
    assert [one.load.promised_s for one in desk.workers] == [8.0, 4.0]


def test_only_the_promise_of_who_leaves_is_taken_back() -> None:
    """Not those of others, nor any if it has none: one behind another that was just released."""
    desk = Desk(Stand("a", 10.0))
    load = desk.workers[0].load
    for name, tokens in (("short", 2), ("long", 8), ("longest", 9)):
        assert desk.come(name, tokens)
    entries = {entry.item: entry for entry in desk.queue}
    desk.free()
    assert desk.release() == "short"
    assert load.promises == []
    desk.queue.leave(entries["longest"])
    assert (load.promises, load.promised_s) == ([], 0.0)
    new = desk.enter("new", 4)
    assert load.promised_s == 4.0
    desk.queue.leave(entries["long"])
    assert load.promised_s == 4.0
    desk.queue.leave(new)
    assert (load.promises, load.promised_s) == ([], 0.0)


def test_who_is_let_go_is_promised_nothing() -> None:
    """Another pool may have the workers by then, and is not to lose what it promises there."""
    worker = Stand("a", 100.0)
    before, after = Desk(worker), Desk(worker)
    assert [before.come(str(number), 4) for number in range(3)] == [True] * 3
    gone = before.queue.let_go()
    assert [entry.item for entry in gone] == ["0", "1", "2"]
    assert len(before.queue) == 0
    assert (worker.load.promises, worker.load.promised_s) == ([], 0.0)
    assert after.come("new", 8)
    for entry in gone:
        before.queue.leave(entry)
    assert worker.load.promises == [(8.0, 8.0)]


@pytest.mark.parametrize(("each", "large", "small"), [(10_000, 50_000, 10_000), (1000, 1600, 600)])
def test_small_prompts_do_not_take_the_room_that_a_large_one_waits_for(
    each: int, large: int, small: int
) -> None:
    """Once a large prompt has waited for long, it goes before all others."""
    worker, costs = Stand("a"), Costs()
    worker.room_tokens = 10 * each
    running = [worker.load.book(0.0, 0.0, each) for _ in range(10)]
    for booking in running:
        worker.load.first_byte(booking, 0.0)
    queue: Queue[str] = Queue()
    now = 0.0

    def decide(prompt: Prompt) -> Decision:
        return Decision(costs.rank(prompt, [worker], now), "load")

    def rank(entry: Entry[str]) -> Decision:
        return decide(entry.prompt)

    def come(name: str, tokens: int) -> None:
        prompt = Prompt("m", tokens, answer_tokens=0)
        decision = decide(prompt)
        assert queue.must_hold(decision, now), f"{name} finds room"
        queue.enter(name, prompt, decision, now)

    come("large", large)
    for number in range(5):
        now += 1.0
        come(f"small{number}", small)
        assert queue.release(rank, now, [worker.load]) is None
    now += LONG
    released = queue.release(rank, now, [worker.load])
    assert released is not None
    assert released[0].item == "large"
    for entry in queue:
        queue.leave(entry)
    assert worker.load.promised_s == 0.0
