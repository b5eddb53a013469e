"""The pooled bounds, and what is made ideal."""

from collections.abc import Sequence

import pytest

from benchmarks.routing.bounds import IDEALS, Answer, Pool
from benchmarks.routing.columns import SMALL
from benchmarks.routing.drive import Fleet, seats
from benchmarks.routing.policies import policy_named, router
from benchmarks.routing.strides import Job
from benchmarks.routing.workloads import Talk, Turn, Work, chats, ideal

FLEET = Fleet(SMALL, 4, cache_tokens=1_000_000)
CHATS = chats(1, 4.0, users=30, rounds=4)


def keys(start: int, tokens: int) -> tuple[int, ...]:
    """Return keys of so many tokens' blocks; those of another start differ."""
    return tuple(range(start, start + tokens // FLEET.block_tokens))


def firsts(done: Sequence[Answer]) -> list[float]:
    """Return when each request had its first token, in order of arrival."""
    return [one.at_s + one.first_s for one in sorted(done, key=lambda answer: answer.at_s)]


#: A long prompt, and a short one that comes a little later.
TWO = Work(
    "two", [Talk(0.0, 0, (Turn(keys(0, 60_000), 60_000, 2),)), Talk(1.1, 1, (Turn((), 100, 2),))]
)


@pytest.mark.parametrize("shortest", [False, True])
@pytest.mark.parametrize("infinite", [False, True])
def test_every_request_is_answered_once(*, shortest: bool, infinite: bool) -> None:
    """And as many tokens are computed or found as there are; nothing is left in the engines."""
    pool = Pool(FLEET, shortest=shortest, infinite=infinite)
    done = pool.run(CHATS)
    assert len({answer.job.number for answer in done}) == len(done) == CHATS.requests
    for answer in done:
        assert answer.job.computed == answer.job.prompt_tokens
        assert 0.0 < answer.first_s <= answer.ended_s
    assert all(engine.running == 0 for engine in pool.engines)
    assert pool.engines[0].cache.used == 0


def test_whoever_is_free_takes_the_next() -> None:
    """Four prompts at once take no longer on four engines than one alone; the fifth waits."""
    alone = Work("one", [Talk(0.0, 0, (Turn((), 4_000, 1),))])
    talks = [Talk(0.0, number, (Turn((), 4_000, 1),)) for number in range(5)]
    once = ideal(alone, SMALL, 512).ttft_s
    times = firsts(Pool(FLEET).run(Work("five", talks)))
    assert sorted(times) == pytest.approx([once] * 4 + [2 * once], rel=0.05)


def test_the_cache_is_that_of_all_together() -> None:
    """What one engine computed, another finds, as long as all caches together hold it."""
    tight = Fleet(SMALL, 4)
    long = [Turn(keys(1_000 * n, 100_000), 100_001, 1, 60.0) for n in range(1, 15)]
    work = Work("again", [Talk(0.0, 0, (*long, long[0]))])
    last = Pool(tight).run(work)[-1]
    assert last.job.cached_tokens == 99_840, "14 prompts fit 1.6 million tokens"
    longer = [Turn(keys(1_000 * n, 100_000), 100_001, 1, 60.0) for n in range(1, 18)]
    work = Work("again", [Talk(0.0, 0, (*longer, longer[0]))])
    assert (Pool(tight).run(work)[-1].job.cached_tokens or 0) < 10_000, "17 do not"
    assert Pool(tight, infinite=True).run(work)[-1].job.cached_tokens == 99_840


def test_the_shortest_goes_first_and_others_stop_for_it() -> None:
    """A short prompt overtakes those that wait, and one that is being computed."""
    turns = (Turn((), 60_000, 1), Turn((), 30_000, 1), Turn((), 100, 1))
    talks = [Talk(0.01 * n, n, (turn,)) for n, turn in enumerate(turns)]
    order = dict[bool, list[float]]()
    for shortest in (False, True):
        times = firsts(Pool(Fleet(SMALL, 1), shortest=shortest).run(Work("three", talks)))
        order[shortest] = times
    assert order[False][0] < order[False][1] <= order[False][2]
    assert order[True][2] < order[True][1] < order[True][0]


def test_what_a_stopped_prompt_computed_is_no_hit() -> None:
    """It is found again, so the whole takes no longer, but it had not been there before."""
    done = Pool(Fleet(SMALL, 1), shortest=True).run(TWO)
    assert [answer.job.cached_tokens for answer in done] == [0, 0]
    assert done[0].job.prompt_tokens == 100
    alone = ideal(Work("one", TWO.talks[:1]), SMALL, 512).ttft_s
    assert done[1].first_s == pytest.approx(alone, rel=0.05)


@pytest.mark.parametrize("name", IDEALS)
def test_nothing_is_lost_where_something_is_ideal(name: str) -> None:
    """All requests are answered, and no worker keeps any of them."""
    drive = router(policy_named(name), FLEET, 1)
    assert len(drive.run(CHATS)) == CHATS.requests
    for seat in drive.seats:
        assert (seat.engine.running, seat.engine.cache.used, seat.load.in_flight) == (0, 0, 0)


def test_a_step_that_ends_at_once_lets_a_short_prompt_begin() -> None:
    """It does not wait for the rest of the step of what makes way for it."""
    waits = []
    for name in ("prefixaware", "steps end at once"):
        drive = router(policy_named(name), Fleet(SMALL, 1), 1)
        waits.append(drive.run(TWO)[0].first_s)
        assert drive.preempted == 1
    assert waits[1] < 0.7 * waits[0]


def test_with_room_nobody_waits_for_an_answer_to_end() -> None:
    """Seven prompts with long answers, of which six fit a KV cache."""
    talks = [Talk(10.0 * n, n, (Turn((), 60_000, 5_000),)) for n in range(7)]
    waits = []
    for name in ("prefixaware", "KV room never short"):
        done = router(policy_named(name), Fleet(SMALL, 1), 1).run(Work("seven", talks))
        waits.append(max(placed.first_s for placed in done))
    assert waits[1] < 10.0 < waits[0]


@pytest.mark.parametrize(("place", "elsewhere"), [(2, False), (3, True)])
def test_ideal_caches_lose_nothing(place: int, *, elsewhere: bool) -> None:
    """Each as large as all, or one for all; 1.4 million tokens fit, of which one has 400,000."""
    workers = seats(Fleet(SMALL, 4))
    list(IDEALS.values())[place](workers)
    for number in range(14):
        workers[0].engine.add(Job(number, keys(1_000 * number, 100_000), 100_000, 1), 0.0)
    while workers[0].engine.running or workers[0].engine.waiting:
        workers[0].engine.advance(workers[0].engine.due)
    assert workers[0].engine.cache.held(keys(0, 100_000)) == 195
    assert workers[1].engine.cache.held(keys(0, 100_000)) == (195 if elsewhere else 0)
