"""Which held requests are decided anew, and what the new decision changes."""

from strategies.base import Candidate, Cost, Decision, Prompt
from strategies.held import LOOK_S
from strategies.latebinding import COMPARED, DECIDED_ANEW, JOINED_TOKENS, READY_EACH
from tests.strategies.desk import ANY, MANY, Desk, Stand


def test_one_that_has_become_short_goes_first() -> None:
    """As its prefix was computed for another meanwhile; until then it is promised for less."""
    worker = Stand("a", 10.0)
    desk = Desk(worker)
    assert desk.come("short", 4)
    assert desk.come("long", 8)
    long = next(held.prompt for held in desk.binding if held.item == "long")

    def rank(prompt: Prompt) -> Decision:
        seconds = 2.0 if prompt is long else float(prompt.tokens)
        return Decision([Candidate(worker, Cost(worker.load.wait(desk.now), seconds))], "load")

    desk.now = LOOK_S
    assert desk.binding.release(rank, desk.now, [worker.load]) is None
    assert worker.load.promised_s == 6.0
    desk.now = 10.0
    released = desk.binding.release(rank, desk.now, [worker.load])
    assert released is not None
    assert released[0].item == "long"


def test_one_that_no_worker_takes_is_not_tried_again_at_once() -> None:
    """It would use up the decisions that others are due for."""
    desk = Desk(Stand("a", 1000.0), Stand("idle"))
    desk.workers[0].load.uncached = 10 * MANY
    assert desk.come("r", 4, model="a")
    tried: list[Prompt] = []
    for now, often in ((LOOK_S, 1), (1.5 * LOOK_S, 1), (2.0 * LOOK_S, 2)):
        loads = [worker.load for worker in desk.workers]
        assert desk.binding.release(tried.append, now, loads) is None
        assert len(tried) == often


def test_those_that_were_due_longest_come_first() -> None:
    """Where a look cannot decide on all that are due, the next ones do not begin anew."""
    many = [Stand(f"b{number}") for number in range(COMPARED // DECIDED_ANEW)]
    desk = Desk(Stand("a", 1000.0), *many)
    desk.workers[0].load.uncached = 10 * MANY
    for number in range(4 * DECIDED_ANEW):
        assert desk.come(str(number), 1 + number, model="a")
    looked: set[int] = set()

    def rank(prompt: Prompt) -> Decision:
        looked.add(prompt.tokens)
        return desk.rank(prompt)

    loads = [worker.load for worker in desk.workers]
    for times in range(1, 5):
        desk.now += 2.0 * LOOK_S
        assert desk.binding.release(rank, desk.now, loads) is None
        assert len(looked) == times * DECIDED_ANEW


def test_where_many_decode_a_worker_is_ready_for_more() -> None:
    """One step is worth what is booked there, although that is more than prompts may be joined
    to."""
    worker = Stand("a")
    load = worker.load
    for _ in range(JOINED_TOKENS // READY_EACH + 1):
        load.first_byte(load.book(0.0, 0.0, uncached=0), 0.0)
    load.book(0.0, 1000.0, uncached=JOINED_TOKENS)
    desk = Desk(worker)
    prompt = Prompt(ANY, 1)
    desk.binding.enter("r", prompt, desk.rank(prompt), 0.0)
    desk.now = LOOK_S
    assert desk.released() == ["r"]
