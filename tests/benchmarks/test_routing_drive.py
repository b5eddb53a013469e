"""The virtual clock: the same seed gives the same numbers, and no request is lost."""

import pytest

from benchmarks.routing.columns import LARGE, SMALL
from benchmarks.routing.drive import Drive, Fleet, Placed
from benchmarks.routing.policies import POLICIES, Policy, policy_named, router
from benchmarks.routing.workloads import MADE, Talk, Turn, Work, chats, ideal, no_reuse
from strategies.api import NoOptions
from strategies.hold.queue import Queue
from strategies.policies.least_load import LeastLoad
from strategies.policies.prefix_aware import PrefixAware, PrefixAwareOptions

#: All but the bounds, which are no policies.
ROUTERS = [policy for policy in POLICIES if policy.make is not None]
FLEET = Fleet(SMALL, 4, cache_tokens=1_000_000)
CHATS = chats(1, 4.0, users=30, rounds=4)


def run(policy: Policy, work: Work = CHATS, fleet: Fleet = FLEET) -> tuple[Drive, list[Placed]]:
    """Run a workload through a policy."""
    drive = router(policy, fleet, 1)
    return drive, drive.run(work)


@pytest.mark.parametrize("policy", ROUTERS, ids=lambda policy: policy.name)
def test_every_request_ends_once(policy: Policy) -> None:
    """Each turn is answered, all its tokens are accounted for, and nothing is left on any
    worker."""
    drive, done = run(policy)
    turns = [(placed.asked.talk.session, placed.asked.place) for placed in done]
    assert len(turns) == len(set(turns)) == CHATS.requests
    for placed in done:
        job = placed.asked.job
        assert job.computed == job.prompt_tokens
        assert 0 <= (job.cached_tokens or 0) < job.prompt_tokens
        assert 0 < placed.first_s <= placed.ended_s
    for seat in drive.seats:
        assert seat.engine.running == 0
        assert seat.engine.cache.used == 0
        assert seat.load.in_flight == 0
        assert seat.load.kv_tokens == 0


@pytest.mark.parametrize("policy", ROUTERS, ids=lambda policy: policy.name)
def test_the_same_seed_gives_the_same_numbers(policy: Policy) -> None:
    """Two runs agree to the last digit."""
    once, again = run(policy)[1], run(policy)[1]
    assert [placed.first_s for placed in once] == [placed.first_s for placed in again]
    assert [placed.seat.name for placed in once] == [placed.seat.name for placed in again]


def test_a_turn_follows_its_answer() -> None:
    """In a closed loop, a turn comes after the previous answer and the think time."""
    _, done = run(POLICIES[0])
    ended = {
        (placed.asked.talk.session, placed.asked.place): placed.asked.at_s + placed.ended_s
        for placed in done
    }
    for placed in done:
        asked = placed.asked
        if asked.place:
            before = ended[asked.talk.session, asked.place - 1]
            think_s = asked.talk.turns[asked.place].think_s
            assert asked.at_s == pytest.approx(before + think_s)


def test_no_hit_rate_is_above_the_ideal() -> None:
    """The ideal is an infinite cache in which each prompt is computed before the next one comes."""
    best = ideal(CHATS, FLEET.profile, FLEET.block_tokens)
    for policy in ROUTERS:
        _, done = run(policy)
        cached = sum(placed.asked.job.cached_tokens or 0 for placed in done)
        # The ideal takes talk after talk; interleaved turns change hits on shared prefixes a bit.
        assert cached / sum(placed.asked.prompt.tokens for placed in done) <= best.hit_rate + 0.001


def test_nobody_is_below_the_floor_alone() -> None:
    """A single request on an idle worker takes exactly the floor."""
    work = Work("one", [Talk(0.0, 1, (Turn((), 3_000, 5),))])
    _, (placed,) = run(POLICIES[0], work)
    assert placed.first_s == pytest.approx(ideal(work, SMALL, 512).ttft_s)
    assert ideal(work, LARGE, 512).ttft_s > placed.first_s


def test_a_restart_loses_no_request_that_had_no_token() -> None:
    """They go elsewhere; only answers that had begun break off."""
    work = no_reuse(1, 40.0, number=200)
    drive = Drive(FLEET, lambda _: LeastLoad(NoOptions()))
    drive.at(2.0, lambda: drive.restart(drive.seats[0]))
    done = drive.run(work)
    assert drive.cut, "the restart hit nobody: this shows nothing"
    assert len(done) + len(drive.cut) == 200
    assert all(seat.load.in_flight == 0 for seat in drive.seats)


def test_who_left_gets_nothing_more() -> None:
    """From then on, all requests go to the others."""
    drive = Drive(FLEET, lambda _: LeastLoad(NoOptions()))
    drive.at(2.0, lambda: drive.leave(drive.seats[0]))
    done = drive.run(no_reuse(1, 40.0, number=200))
    late = [placed for placed in done if placed.at_s > 2.0]
    assert len(done) == 200
    assert {placed.seat.name for placed in late} == {"w1", "w2", "w3"}


def blocks(start: int, tokens: int) -> tuple[int, ...]:
    """Return keys of so many tokens' blocks; those of another start differ."""
    return tuple(range(start, start + tokens // FLEET.block_tokens))


@pytest.mark.parametrize("name", ["prefixaware", "kvaware"])
def test_a_long_prompt_gives_way_and_goes_on(name: str) -> None:
    """The short one comes first; what was computed of the long one is not computed again, and is no
    hit either."""
    long = Turn(blocks(0, 60_000), 60_000, 2)
    work = Work("two", [Talk(0.0, 0, (long,)), Talk(1.0, 1, (Turn((), 100, 2),))])
    drive, done = run(policy_named(name), work, Fleet(LARGE, 1))
    assert [placed.asked.talk.session for placed in done] == [1, 0]
    assert drive.preempted == 1
    assert done[0].first_s < 1.0
    assert [placed.asked.job.cached_tokens for placed in done] == [0, 0]
    assert [placed.asked.prompt.resumed for placed in done] == [False, True]
    (seat,), alone = drive.seats, LARGE.prefill_seconds(60_000, 0)
    assert alone <= seat.engine.busy_s < alone + 0.1
    assert (seat.load.in_flight, seat.load.kv_tokens, seat.load.uncached) == (0, 0, 0)
    assert (seat.engine.running, seat.engine.cache.used) == (0, 0)
    assert (drive._booked, drive._placed) == ({}, {})


@pytest.mark.parametrize(
    "policy", [policy_named("prefixaware")._replace(hold=None), policy_named("leastload")]
)
def test_nobody_gives_way_without_held_requests_or_prefixes(policy: Policy) -> None:
    """As in the router, which would have nowhere to let it wait, or would not know what is kept."""
    long = Turn(blocks(0, 60_000), 60_000, 2)
    work = Work("two", [Talk(0.0, 0, (long,)), Talk(1.0, 1, (Turn((), 100, 2),))])
    drive, done = run(policy, work, Fleet(LARGE, 1))
    assert (drive.preempted, [placed.asked.talk.session for placed in done]) == (0, [0, 1])


def test_a_lost_prefix_is_no_hit_for_one_that_gives_way() -> None:
    """Of what its worker had lost, nothing counts, although it was expected there."""
    first, then = Turn(blocks(0, 20_000), 20_000, 2), Turn(blocks(0, 80_000), 80_000, 2, 20.0)
    talks = [Talk(0.0, 0, (first, then)), Talk(24.0, 1, (Turn((), 100, 2),))]
    drive = Drive(Fleet(LARGE, 1), lambda _: PrefixAware(PrefixAwareOptions()), Queue())
    drive.at(15.0, lambda: drive.restart(drive.seats[0], noticed=False))
    done = drive.run(Work("lost", talks))
    (last,) = [placed for placed in done if placed.asked.place == 1]
    assert drive.preempted == 1
    assert last.asked.job.cached_tokens == 0


@pytest.mark.parametrize("name", MADE)
def test_generated_work_is_the_same_by_seed(name: str) -> None:
    """The same seed gives the same work, another one other work; keys have 64 bits and cover no
    more than the prompt."""
    one, again, other = MADE[name](1), MADE[name](1), MADE[name](2)
    assert one == again
    assert one != other
    for talk in one.talks:
        for turn in talk.turns:
            assert len(turn.keys) * 512 <= turn.prompt_tokens
            assert all(0 <= key < 1 << 64 for key in turn.keys)


def test_generated_turns_grow_from_those_before() -> None:
    """Each prompt of a talk begins with the one before it, and no other talk has the same."""
    firsts = set()
    for talk in CHATS.talks:
        for before, turn in zip(talk.turns, talk.turns[1:], strict=False):
            assert turn.keys[: len(before.keys)] == before.keys
        firsts.add(talk.turns[0].keys[-1])
    assert len(firsts) == len(CHATS.talks)
