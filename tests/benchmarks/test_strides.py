"""The stride engine keeps the same schedule as the engine that goes step by step."""

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import inf
from random import Random

import pytest

from benchmarks.routing.strides import Job, StrideCache, StrideEngine
from simulator.engine.core import Engine
from simulator.engine.profiles import PROFILES, Profile
from simulator.engine.request import EngineRequest
from simulator.kv.stores import MemoryBlockStore
from simulator.kv.tiers import Rates, Tiers

BLOCK = 16
TOY = replace(PROFILES["toy"], kv_tokens=1 << 20, max_model_len=1 << 20)
#: An engine whose steps either prefill or decode.
APART = replace(TOY, mixed_steps=False)

Asked = tuple[float, "array[int]", int]
Times = dict[int, tuple[float, float]]


def asked(seed: int, count: int = 60, apart_s: float = 0.004) -> list[Asked]:
    """Return prompts with shared beginnings, at random times, with answers of random lengths."""
    chance = Random(seed)
    heads = [array("I", (chance.randrange(1000) for _ in range(400))) for _ in range(4)]
    at_s, made = 0.0, []
    for _ in range(count):
        at_s += chance.expovariate(1 / apart_s)
        head = chance.choice(heads)[: chance.randrange(1, 400)]
        tail = array("I", (chance.randrange(1000) for _ in range(chance.randrange(1, 3000))))
        made.append((at_s, head + tail, chance.choice([1, 2, 50, 300])))
    return made


def by_steps(work: list[Asked], profile_tokens: int, profile: Profile = TOY) -> tuple[Times, int]:
    """Run the step engine; return times of first and last tokens, and cached tokens."""
    engine = Engine(profile, block_size=BLOCK, kv_tokens=profile_tokens)
    queue, now = deque(enumerate(work)), 0.0
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    while queue or engine.busy:
        if not engine.busy:
            now = max(now, queue[0][1][0])
        while queue and queue[0][1][0] <= now:
            number, (_, prompt, answer) = queue.popleft()
            engine.add(EngineRequest(str(number), prompt, array("I", [7] * answer)), now)
        step = engine.step()
        now += step.duration_s
        for request in step.emitted:
            first.setdefault(int(request.request_id), now)
        for request in step.finished:
            last[int(request.request_id)] = now
    return {number: (first[number], last[number]) for number in last}, engine.totals.prefix_hits


def by_strides(work: list[Asked], profile_tokens: int, profile: Profile = TOY) -> tuple[Times, int]:
    """Return the same from the stride engine."""
    engine = StrideEngine(profile, room_tokens=profile_tokens, block_tokens=BLOCK)
    queue, first, last, hits = deque(enumerate(work)), {}, {}, 0
    while queue or engine.due < inf:
        if queue and queue[0][1][0] < engine.due:
            number, (at_s, prompt, answer) = queue.popleft()
            keys = [hash(tuple(prompt[:end])) for end in range(BLOCK, len(prompt) + 1, BLOCK)]
            engine.add(Job(number, keys, len(prompt), answer), at_s)
            continue
        now = engine.due
        begun, ended = engine.advance(now)
        for job in begun:
            first[job.number] = now
            hits += job.cached_tokens or 0
        for job in ended:
            last[job.number] = now
    assert engine.running == 0
    assert engine.cache.used == 0
    return {number: (first[number], last[number]) for number in last}, hits


@pytest.mark.parametrize("apart_s", [0.0, 0.001, 0.004, 0.1])
@pytest.mark.parametrize("profile", [TOY, APART], ids=["mixed steps", "apart"])
def test_strides_end_where_steps_do(apart_s: float, profile: Profile) -> None:
    """Every first and last token comes at the same time, and as many tokens are cached."""
    work = asked(3, apart_s=apart_s or 1e-9)
    steps, step_hits = by_steps(work, 1 << 20, profile)
    strides, stride_hits = by_strides(work, 1 << 20, profile)
    assert stride_hits == step_hits > 0
    assert strides.keys() == steps.keys()
    for number, times in steps.items():
        assert strides[number] == pytest.approx(times, rel=1e-9)


def test_the_head_of_the_queue_waits_for_room() -> None:
    """A prompt that does not fit waits for running ones to end, and none overtakes it."""
    engine = StrideEngine(TOY, room_tokens=40 * BLOCK, block_tokens=BLOCK)
    first, large, small = (Job(n, (), tokens, 16) for n, tokens in enumerate((320, 320, 16)))
    for job in (first, large, small):
        engine.add(job, 0.0)
    ended: list[int] = []
    while engine.due < inf:
        assert engine.cache.used <= 40
        begun, done = engine.advance(engine.due)
        if small in begun:
            assert large.computed == 320
        ended += [job.number for job in done]
    assert ended[0] == 0
    assert sorted(ended) == [0, 1, 2]


def test_a_job_larger_than_the_room_is_refused() -> None:
    """It would wait forever, and so would every job behind it."""
    engine = StrideEngine(TOY, room_tokens=4 * BLOCK, block_tokens=BLOCK)
    with pytest.raises(ValueError, match="5 blocks, where 4 fit"):
        engine.add(Job(1, (), 4 * BLOCK, 1), 0.0)


def test_the_last_token_is_always_computed() -> None:
    """If all blocks of a prompt are cached, the last one is computed again."""
    engine = StrideEngine(TOY, block_tokens=BLOCK)
    jobs = [Job(number, tuple(range(10)), 10 * BLOCK, 1) for number in range(2)]
    for job in jobs:
        engine.add(job, engine.due if engine.due < inf else 0.0)
        engine.advance(engine.due)
    assert [job.cached_tokens for job in jobs] == [0, 9 * BLOCK]


def test_a_cleared_engine_knows_nothing() -> None:
    """A restart loses running jobs and cached blocks."""
    engine = StrideEngine(TOY, block_tokens=BLOCK)
    jobs = [Job(number, tuple(range(10)), 160, 5) for number in range(3)]
    for job in jobs:
        engine.add(job, 0.0)
    engine.advance(engine.due)
    assert engine.cache.held(range(10)) == 10
    lost = engine.clear()
    assert {job.number for job in lost} == {0, 1, 2}
    assert engine.due == inf
    assert engine.cache.held(range(10)) == 0


def test_the_oldest_leaf_goes_first() -> None:
    """Whatever is evicted, cached prefixes have no gaps."""
    cache = StrideCache(room=8, capacity=8)
    for path in ((1, 2, 3, 4), (1, 2, 5, 6)):
        held = cache.held(path)
        assert cache.admit(path[:held], 4)
        cache.name(path[held:])
        cache.release(path, 0)
    assert cache.held((1, 2, 5, 6)) == 4
    assert cache.admit((), 3)
    assert cache.held((1, 2, 3, 4)) == 3, "one block had to go, a leaf"
    assert cache.admit((), 1)
    assert cache.held((1, 2, 3, 4)) == 2, "1 and 2 were used again since, 3 and 4 were not"
    assert cache.held((1, 2, 5, 6)) == 4


def test_what_would_leave_is_told() -> None:
    """The oldest leaves, as many as new blocks need room; nothing in use."""
    cache = StrideCache(room=8, capacity=8)
    for path in ((1, 2, 3), (4, 5)):
        assert cache.admit((), len(path))
        cache.name(path)
    cache.release((1, 2, 3), 0)
    assert cache.leaving(3) == []
    assert cache.leaving(5) == [3, 2]
    assert cache.leaving(9) == [3, 2, 1], "the others are in use"
    assert cache.held((1, 2, 3)) == 3, "nothing has left"


def test_more_can_be_remembered_than_runs() -> None:
    """A host tier keeps more blocks than running requests have room for."""
    cache = StrideCache(room=4, capacity=12)
    for start in (0, 10, 20):
        path = tuple(range(start, start + 4))
        assert cache.admit((), 4)
        cache.name(path)
        assert not cache.admit((), 1)
        cache.release(path, 0)
    assert [cache.held(tuple(range(start, start + 4))) for start in (0, 10, 20)] == [4, 4, 4]


def test_tiers_load_in_their_time_here_too() -> None:
    """Blocks evicted from the GPU come from L1, another worker's from L2, as in `engine.py`."""
    store = MemoryBlockStore[int](1000)
    rates = Rates(l1=10_000.0, l2=1_000.0)

    def first_s(engine: StrideEngine, keys: range, now: float) -> tuple[float, Job]:
        job = Job(int(now), list(keys), 64 * len(keys) + 10, 1)
        engine.add(job, now)
        due = engine.due
        engine.advance(due)
        return due - now, job

    def made() -> StrideEngine:
        tiers = Tiers[int](64, 100, store, rates)
        return StrideEngine(TOY, room_tokens=20 * 64, block_tokens=64, tiers=tiers)

    one, other = made(), made()
    cold, _ = first_s(one, range(10), 0.0)
    hot, _ = first_s(one, range(10), 1.0)
    first_s(one, range(100, 118), 2.0)
    again, job = first_s(one, range(10), 3.0)
    assert (job.cached_tokens, job.l1_tokens + job.l2_tokens) == (640, job.l1_tokens)
    assert again == pytest.approx(hot + job.l1_tokens / 10_000)
    far, job = first_s(other, range(10), 4.0)
    assert (job.cached_tokens, job.l2_tokens) == (640, 640)
    assert far == pytest.approx(hot + 0.64)
    assert cold > hot
    one.clear()
    _, job = first_s(one, range(10), 5.0)
    assert job.l2_tokens == 640


def test_what_is_computed_of_a_dropped_job_stays() -> None:
    """The blocks that it has by the end of the step, for it to go on from; its room is free."""
    engine = StrideEngine(TOY, room_tokens=1000 * BLOCK, block_tokens=BLOCK)
    budget = TOY.max_num_batched_tokens
    keys = tuple(range(4 * budget // BLOCK))
    dropped, short = Job(1, keys, len(keys) * BLOCK + 5, 3), Job(2, (), 100, 1)
    engine.add(dropped, 0.0)
    engine.advance(engine.due)
    assert engine.prefilling is dropped
    due = engine.due
    assert engine.drop(dropped)
    assert (engine.running, engine.cache.used, engine.cache.nameless) == (0, 0, 0)
    assert engine.due == due
    engine.add(short, due / 2)
    assert engine.due == due, "the step ends first"
    assert engine.advance(due) == ([], [])
    again = Job(1, keys, dropped.prompt_tokens, 3)
    engine.add(again, engine.due)
    assert engine.advance(engine.due) == ([short], [short])
    ended: list[Job] = []
    while engine.due < inf:
        ended += engine.advance(engine.due)[1]
    assert ended == [again]
    assert again.cached_tokens == 2 * budget // BLOCK * BLOCK
    assert engine.cache.used == 0


def test_who_waits_for_its_turn_is_dropped_at_once() -> None:
    """It had nothing; the others are computed as if it had never come."""
    engine = StrideEngine(TOY, block_tokens=BLOCK)
    first, dropped, last = (Job(number, (number,), 20_000, 1) for number in range(3))
    for job in (first, dropped, last):
        engine.add(job, 0.0)
    assert engine.drop(dropped)
    assert dropped.cached_tokens is None
    begun: list[Job] = []
    while engine.due < inf:
        begun += engine.advance(engine.due)[0]
    assert begun == [first, last]
    assert engine.cache.held((1,)) == 0


def test_who_has_its_first_token_is_not_dropped() -> None:
    """Nor one that gets it at the end of this step, nor one that is not there."""
    engine = StrideEngine(TOY, block_tokens=BLOCK)
    job = Job(1, (1,), 20, 3)
    engine.add(job, 0.0)
    assert not engine.drop(job)
    assert engine.advance(engine.due) == ([job], [])
    assert not engine.drop(job)
    assert engine.advance(engine.due) == ([], [job])
    assert not engine.drop(job)


def test_prefill_stops_decoding_where_steps_do_not_mix() -> None:
    """The answers under way get no token while a prompt is computed, in either engine."""
    work = [(0.0, array("I", range(16)), 10), (0.0035, array("I", range(900, 40_900)), 1)]
    for run in (by_steps, by_strides):
        mixed, _ = run(work, 1 << 20)
        apart, _ = run(work, 1 << 20, APART)
        assert mixed[0][1] < mixed[1][0], "they take turns"
        assert apart[0][1] > apart[1][0], "the prompt comes first"


@pytest.mark.parametrize("run", [by_steps, by_strides])
def test_noise_changes_each_step_and_little_on_the_whole(
    run: Callable[[list[Asked], int, Profile], tuple[Times, int]],
) -> None:
    """By the same seed the same noise; many steps together take as long as without it."""
    work, noisy = [(0.0, array("I", range(16)), 2000)], replace(TOY, noise=0.2)
    (usual,), (once,), (again,) = (
        run(work, 1 << 20, one)[0].values() for one in (TOY, noisy, noisy)
    )
    assert once == again
    assert once[0] != usual[0]
    assert once[1] == pytest.approx(usual[1], rel=0.03)
