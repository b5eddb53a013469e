"""What workers are told of the requests that would go to them."""

import pytest

from strategies.api import Decision, Prompt
from strategies.cost.cost import Costs
from strategies.hold.queue import Entry, Queue
from tests.strategies.hold.desk import Desk, Stand

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
