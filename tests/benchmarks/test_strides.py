"""The stride engine keeps the same schedule as the engine that goes step by step."""

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import inf
from random import Random

import pytest

from benchmarks.routing.strides import Job, StrideEngine
from simulator.engine.core import Engine
from simulator.engine.profiles import PROFILES, Profile
from simulator.engine.request import EngineRequest

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
