"""What held requests are promised of the workers, and how long that counts."""

from math import inf

from strategies.base import Candidate, Cost, Decision, Prompt
from strategies.held import LACKING_S, LONGEST_S
from strategies.load import AGING
from tests.strategies.desk import ANY, MANY, Desk, Stand


def test_what_is_promised_has_an_order() -> None:
    """Each held request is promised with its need, by which it is compared with newcomers: the same
    at any time, and least for one that lacks room after a long wait."""
    desk = Desk(Stand("a", 1000.0))
    load = desk.workers[0].load
    assert desk.come("long", 8)
    desk.now = 10.0
    assert desk.come("short", 2)
    assert sorted(load.promises) == [(2.0 + AGING * 10.0, 2.0), (8.0, 8.0)]
    assert load.promised_s == 10.0
    full = Decision([Candidate(desk.workers[0], Cost(room=1.0, prefill=4.0))], "load")
    since = desk.now - LACKING_S
    held = desk.binding.enter("lacks", Prompt(ANY, 4), full, desk.now, since=since)
    assert min(load.promises) == (-inf, 4.0)
    desk.binding.leave(held, desk.now)
    assert sorted(load.promises) == [(2.0 + AGING * 10.0, 2.0), (8.0, 8.0)]
    desk.now = 20.0
    for one in list(desk.binding):
        desk.binding.leave(one, desk.now)
    assert (load.promises, load.promised_s) == ([], 0.0)


def test_those_held_count_where_they_would_go() -> None:
    """New requests see held ones as queued, and choose a free worker even if it lacks the prefix.

    If they did not count, one hot prefix would keep all requests waiting for one worker while the
    others idle.
    """
    desk = Desk(Stand("a", 1.0), Stand("b", 4.0))
    assert [desk.come(str(number), 2) for number in range(4)] == [True] * 4
    promised = [worker.load.promised_s for worker in desk.workers]
    assert promised == [6.0, 2.0]


def test_a_release_takes_the_promise_with_it() -> None:
    """Once a request is released, its prefill is no longer promised."""
    desk = Desk(Stand("a", 1.0))
    desk.come("r", 2)
    desk.now = 1.0
    assert desk.released() == ["r"]
    assert desk.workers[0].load.promised_s == 0.0


def test_those_behind_one_that_was_released_are_promised_again() -> None:
    """Even if no worker is ready any more once that one is booked."""
    busy, free = Stand("a", 50.0), Stand("b", 10.0)
    desk = Desk(busy, free)
    for one in desk.workers:
        one.load.uncached = 10 * MANY
    for name in ("b", "b", "a", "a"):
        assert desk.come(name, 4, model=name)
    desk.now, free.load.uncached = 10.0, 0
    loads = [busy.load, free.load]
    released = desk.binding.release(desk.rank, desk.now, loads)
    assert released is not None
    free.load.book(desk.now, 4.0, uncached=10 * MANY)
    assert desk.binding.release(desk.rank, desk.now, loads) is None
    assert [len(load.promises) for load in loads] == [2, 1]
    assert [load.promised_s for load in loads] == [8.0, 4.0]


def test_one_held_too_long_is_promised_before_all_others() -> None:
    """As it is sent before them, once some worker has room for it."""
    desk = Desk(Stand("a", 1000.0))
    assert desk.come("long", 8)
    desk.now = LONGEST_S
    loads = [worker.load for worker in desk.workers]
    assert desk.binding.release(lambda _: None, desk.now, loads) is None
    assert loads[0].promises == [(-inf, 8.0)]
    assert loads[0].promised_tokens == 0


def test_only_the_promise_of_who_leaves_is_taken_back() -> None:
    """Not those of others, nor any if it has none: one behind another that was just released."""
    desk = Desk(Stand("a", 10.0))
    load = desk.workers[0].load
    for name, tokens in (("short", 2), ("long", 8), ("longest", 9)):
        assert desk.come(name, tokens)
    held = {one.item: one for one in desk.binding}
    desk.now = 10.0
    released = desk.binding.release(desk.rank, desk.now, [load])
    assert released is not None
    assert load.promises == []
    desk.binding.leave(held["longest"], desk.now)
    assert (load.promises, load.promised_s) == ([], 0.0)
    new = desk.binding.enter("new", Prompt(ANY, 4), desk.rank(Prompt(ANY, 4)), desk.now)
    assert load.promised_s == 4.0
    desk.binding.leave(held["long"], desk.now)
    assert load.promised_s == 4.0
    desk.binding.leave(new, desk.now)
    assert (load.promises, load.promised_s) == ([], 0.0)


def test_nothing_is_left_of_promises_that_are_taken_back_one_by_one() -> None:
    """Not even the error of a sum of floats, while others are held for another worker."""
    worker, other = Stand("a", 1000.0), Stand("b", 1000.0)
    desk = Desk(worker, other)
    held = []
    for one, seconds in ((other, 1.0), (worker, 0.1), (worker, 0.2), (worker, 0.3)):
        decision = Decision([Candidate(one, Cost(wait=9.0, prefill=seconds))], "load")
        held.append(desk.binding.enter("r", Prompt(ANY, 4), decision, 0.0))
    for gone in held[1:]:
        desk.binding.leave(gone, 0.0)
    assert (worker.load.promised_s, other.load.promised_s) == (0.0, 1.0)


def test_reserved_tokens_are_given_up_by_who_leaves() -> None:
    """Of one that lacked room for long; one that waits for prefill alone reserves none."""
    worker = Stand("a", 1000.0)
    desk = Desk(worker)
    since, prompt = desk.now - LACKING_S, Prompt(ANY, 4)
    lacks, queues = Cost(room=1.0, prefill=4.0), Cost(wait=9.0, prefill=4.0)
    held = [
        desk.binding.enter(name, prompt, Decision([Candidate(worker, cost)], "load"), 0.0, since=at)
        for name, cost, at in (("a", lacks, since), ("b", lacks, since), ("c", queues, -LONGEST_S))
    ]
    each = prompt.tokens + prompt.answer_tokens
    assert worker.load.promised_tokens == 2 * each
    for one, left in ((held[2], 2), (held[0], 1), (held[1], 0)):
        desk.binding.leave(one, 0.0)
        assert worker.load.promised_tokens == left * each


def test_who_is_let_go_is_promised_nothing() -> None:
    """Another pool may have the workers by then, and is not to lose what it promises there."""
    worker = Stand("a", 100.0)
    before, after = Desk(worker), Desk(worker)
    assert [before.come(str(number), 4) for number in range(3)] == [True] * 3
    gone = before.binding.let_go(1.0)
    assert [held.item for held in gone] == ["0", "1", "2"]
    assert len(before.binding) == 0
    assert (worker.load.promises, worker.load.promised_s) == ([], 0.0)
    assert after.come("new", 8)
    for held in gone:
        before.binding.leave(held, 1.0)
    assert worker.load.promises == [(8.0, 8.0)]


def test_what_another_pool_tells_its_workers_stays() -> None:
    """Also if they were this one's, and nobody is held here any more."""
    moved, stays = Stand("a", 100.0), Stand("b", 100.0)
    before = Desk(moved, stays)
    assert before.come("r", 4)
    before.binding.let_go(0.0)
    moved.load.aging = AGING / 2.0
    before.workers = (stays,)
    assert before.come("r", 4)
    before.binding.let_go(0.0)
    assert moved.load.aging == AGING / 2.0


def test_who_has_left_is_waited_for_by_nobody() -> None:
    """The promise of a request that left is dropped even while every worker is busy and none is
    looked at; those of the remaining requests stay."""
    worker = Stand("a", 100.0)
    desk = Desk(worker)
    for number in range(5):
        assert desk.come(f"r{number}", 4)
    first, *others = desk.binding
    for held in others:
        desk.binding.leave(held, 1.0)
    assert worker.load.promised_s == 4.0
    desk.now = 100.0
    assert desk.released() == ["r0"]
    desk.binding.leave(first, 100.0)
    assert worker.load.promised_s == 0.0
