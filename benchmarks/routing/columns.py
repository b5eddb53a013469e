"""The columns of the routing benchmark, and its cells: each policy on a column with one seed.

A column is a workload at one rate on a fleet of one engine. All workloads run on the stock engine.
Six or seven of them also run on other engines, to which no constant was ever fitted. There, arrival
rates follow `scaled`: the workers are as busy as on the stock engine.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from hashlib import sha256
from itertools import groupby
from math import sqrt
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from benchmarks.routing.bounds import PooledAnswer, PooledEngines
from benchmarks.routing.drive import EngineFleet, Placed, VirtualDrive, times_as_fast
from benchmarks.routing.peers import Sticky
from benchmarks.routing.policies import Policy, router
from benchmarks.routing.workloads import (
    MADE,
    Talk,
    Work,
    agent_sessions,
    faster,
    mooncake,
    shuffled_starts,
)
from simulator.engine.profiles import PROFILES, Profile

T = TypeVar("T")
C = TypeVar("C")

#: Tokens one step may compute: the value in other projects' studies, for comparable numbers.
_BUDGET = 4_096
SMALL = replace(PROFILES["llama-3.1-8b-h100"], max_num_batched_tokens=_BUDGET)
LARGE = replace(PROFILES["llama-3.1-70b-8xh100"], max_num_batched_tokens=_BUDGET)

#: Tokens that a worker caches with its host memory, which loads in no time.
_HOST = 2_000_000
#: GPU and host memory; GPU memory only; GPU and host memory with the large profile.
ROOMY = EngineFleet(SMALL, cache_tokens=_HOST)
TIGHT = EngineFleet(SMALL)
LARGE_ROOMY = EngineFleet(LARGE, cache_tokens=3_000_000)

STOCK = "stock"
#: Engines that behave differently.
ENGINES = {
    "chunks of 2,048": EngineFleet(
        replace(SMALL, max_num_batched_tokens=2_048), cache_tokens=_HOST
    ),
    "chunks of 16,384, twice the pace": EngineFleet(
        replace(
            SMALL,
            max_num_batched_tokens=16_384,
            prefill_tokens_per_s=2 * SMALL.prefill_tokens_per_s,
            attention_tokens=2 * SMALL.attention_tokens,
        ),
        cache_tokens=_HOST,
    ),
    "prefill stops decoding": EngineFleet(replace(SMALL, mixed_steps=False), cache_tokens=_HOST),
    "64 sequences": EngineFleet(replace(SMALL, max_num_seqs=64), cache_tokens=_HOST),
    "slow card": EngineFleet(replace(times_as_fast(SMALL, 0.2), kv_tokens=60_000)),
    "20 % noise": EngineFleet(replace(SMALL, noise=0.2), cache_tokens=_HOST),
}
#: The workloads that they run.
EVERYWHERE = (
    *("conversation x1", "conversation x2", "sessions x0.3"),
    *("agents", "documents", "one_prefix", "mixed"),
)

#: Paths within the folder of traces; files may be compressed (`.zst`).
CONVERSATION = "mooncake/conversation_trace.jsonl"
SESSIONS = "agent_sessions/sessions.jsonl"

#: The seeds by which constants and rules are chosen. Those for judging are far above.
CHOOSING = (1, 2, 3)


class Column(NamedTuple):
    """A workload (a function of seed and rate), the fleet it runs on, and its rate."""

    workload: str
    work: Callable[[int, float], Work]
    fleet: EngineFleet
    rate: float
    engine: str = STOCK

    @property
    def name(self) -> str:
        """The workload, and the engine if that is another one."""
        return self.workload if self.engine == STOCK else f"{self.workload}, {self.engine}"


def judging(number: int, count: int) -> tuple[int, ...]:
    """Return `count` seeds derived from `number`; none of them is in `CHOOSING`."""
    digests = (sha256(f"judge {number} {place}".encode()).digest() for place in range(count))
    return tuple((1 << 32) + int.from_bytes(digest[:4], "big") for digest in digests)


def columns(traces: Path | None) -> list[Column]:
    """Return all columns on the stock engine, recorded workloads only for traces in the folder.

    Raises ValueError, which lists the expected files, if it has no trace at all.
    """
    made = [Column(name, partial(_made, name), ROOMY, rate) for name, rate in _RATES.items()]
    if traces is None:
        return made
    recorded: list[Column] = []
    for path in _found(traces, CONVERSATION):
        talk = partial(_conversation, path)
        recorded += [
            Column("conversation x1", talk, ROOMY, 1.0),
            Column("conversation x2", talk, ROOMY, 2.0),
            Column("conversation x2.2", talk, ROOMY, 2.2),
            Column("conversation tight x1.75", talk, TIGHT, 1.75),
            Column("conversation 70B x1.7", talk, LARGE_ROOMY, 1.7),
        ]
    for path in _found(traces, SESSIONS):
        agent = partial(_agents, path)
        recorded += [
            Column("sessions x0.1", agent, ROOMY, 0.1),
            Column("sessions x0.3", agent, ROOMY, 0.3),
        ]
    if not recorded:
        raise ValueError(f"{traces} has none of {CONVERSATION}, {SESSIONS} (or .zst)")
    return [*recorded, *made]


def elsewhere(column: Column) -> list[Column]:
    """Return a column of `EVERYWHERE` on each of the other engines, at its stock rate."""
    if column.workload not in EVERYWHERE:
        return []
    return [
        column._replace(work=partial(_fitting, column.work, fleet), fleet=fleet, engine=name)
        for name, fleet in ENGINES.items()
    ]


def _fitting(
    work: Callable[[int, float], Work], fleet: EngineFleet, seed: int, rate: float
) -> Work:
    """Return the work without turns that are too long for the engine, nor those after them."""
    whole, most = work(seed, rate), fleet.profile.kv_tokens - fleet.block_tokens
    talks = [_cut(talk, most) for talk in whole.talks]
    return Work(whole.name, [talk for talk in talks if talk.turns])


def _cut(talk: Talk, most: int) -> Talk:
    sizes = [turn.prompt_tokens + turn.answer_tokens for turn in talk.turns]
    if max(sizes) <= most:
        return talk
    stop = next(place for place, size in enumerate(sizes) if size > most)
    return msgspec.structs.replace(talk, turns=talk.turns[:stop])


def _found(folder: Path, pattern: str) -> list[Path]:
    return sorted({*folder.glob(pattern), *folder.glob(f"{pattern}.zst")})


#: Requests (or users) a second: 60 to 90 % of what the best policy can sustain, or more than that
#: (`groups`, `documents`).
_RATES = {
    "groups": 10.0,
    "long_answers": 9.0,
    "chats": 8.0,
    "agents": 1.0,
    "documents": 3.0,
    "one_prefix": 40.0,
    "no_reuse": 26.0,
    "bursts": 12.0,
    "mixed": 40.0,
}


@lru_cache(maxsize=4)
def _conversation_once(path: Path, seed: int) -> Work:
    return mooncake(path, seed)


@lru_cache(maxsize=1)
def _sessions_once(path: Path) -> Work:
    return agent_sessions(path)


def _conversation(path: Path, seed: int, rate: float) -> Work:
    return faster(_conversation_once(path, seed), rate)


def _agents(path: Path, seed: int, rate: float) -> Work:
    return shuffled_starts(_sessions_once(path), rate, seed)


@lru_cache(maxsize=2)
def _made(name: str, seed: int, rate: float) -> Work:
    return MADE[name](seed, rate)


def chosen(names: Sequence[str], every: Sequence[Column]) -> list[Column]:
    """Return the columns whose names begin with one of `names`; all if `names` is empty.

    Raises ValueError, which lists the known names, if one of `names` matches no column.
    """
    found = [c for c in every if not names or any(c.name.startswith(name) for name in names)]
    missing = [name for name in names if not any(c.name.startswith(name) for c in every)]
    if missing:
        known = ", ".join(repr(column.name) for column in every)
        raise ValueError(f"no column is called {missing[0]!r}; there are: {known}")
    return found


#: Halvings of a factor of 512, which find the rate of a column on another engine.
_HALVINGS = 9


class Cell(Struct, frozen=True):
    """The results of one run. Times are in simulated seconds; shares are from 0 to 1."""

    column: str
    policy: str
    seed: int
    requests: int
    ttft_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    e2e_s: float
    hit_rate: float
    """Prompt tokens found in a cache, as a share of all prompt tokens."""
    imbalance: float
    """Prefill seconds of the busiest worker, divided by the mean over workers."""
    cpu_s: float = 0.0
    """Real CPU seconds that the simulation took."""


class Task(NamedTuple):
    """A cell to compute."""

    column: Column
    policy: Policy
    seed: int


def cell(task: Task) -> Cell:
    """Compute a cell. The same task gives the same cell on any machine, except for `cpu_s`."""
    column, policy = task.column, task.policy
    began = process_time()
    work = column.work(task.seed, column.rate)
    if policy.make is None:
        pool = PooledEngines(column.fleet, shortest=policy.shortest, infinite=policy.infinite)
        answers = pool.run(work)
        busy = [engine.busy_s for engine in pool.engines]
    else:
        runs = router(policy, column.fleet, task.seed)
        answers = [_answer(placed) for placed in runs.run(work)]
        busy = [seat.engine.busy_s for seat in runs.seats]
    return summed(task, answers, busy, process_time() - began)


def _answer(placed: Placed) -> PooledAnswer:
    return PooledAnswer(placed.asked.job, placed.asked.at_s, placed.first_s, placed.ended_s)


def summed(task: Task, done: Sequence[PooledAnswer], busy_s: Sequence[float], cpu_s: float) -> Cell:
    """Summarize the requests of one run; `busy_s` has each worker's prefill seconds."""
    firsts = sorted(answer.first_s for answer in done)
    tokens = sum(answer.job.prompt_tokens for answer in done)
    return Cell(
        task.column.name,
        task.policy.name,
        task.seed,
        len(done),
        fmean(firsts),
        quantile(firsts, 0.5),
        quantile(firsts, 0.9),
        quantile(firsts, 0.99),
        fmean(answer.ended_s for answer in done),
        sum(answer.job.cached_tokens or 0 for answer in done) / tokens,
        max(busy_s) / (fmean(busy_s) or 1.0),
        cpu_s,
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile at `share` of sorted values."""
    return ordered[int(share * (len(ordered) - 1))]


def computed(tasks: Sequence[Task], jobs: int, told: Callable[[], None]) -> list[Cell]:
    """Compute all cells in `jobs` processes; `told` is called after each."""
    cells = []
    for one in each(cell, tasks, jobs):
        cells.append(one)
        told()
    return cells


def each(work: Callable[[T], C], tasks: Sequence[T], jobs: int) -> Iterator[C]:
    """Yield the result of every task, in order, computed in `jobs` processes."""
    if jobs == 1:
        yield from map(work, tasks)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(work, tasks)


def scaled(column: Column, stock: Column) -> Column:
    """Return a column of another engine at the rate at which its workers are as busy as stock ones.

    Busy is a worker by the larger of two: the share of time that goes to prefill, and the share of
    its KV cache that running requests take, where one takes a half if two such fit. Both are of a
    run with sticky sessions and the first seed for choosing. An engine with the pace and the KV
    cache of the stock one has its rate.
    """
    if _size(column) == _size(stock):
        return column
    usual, low, high = stock.rate * _work_s(stock), stock.rate / 128, stock.rate * 4
    for _ in range(_HALVINGS):
        middle = sqrt(low * high)
        column = column._replace(rate=middle)
        if middle * _work_s(column) < usual:
            low = middle
        else:
            high = middle
    return column


def _size(column: Column) -> tuple[float, int]:
    profile = column.fleet.profile
    return profile.prefill_tokens_per_s, profile.kv_tokens


def _work_s(column: Column) -> float:
    """Return the seconds that a request keeps one worker busy, on average."""
    runs = VirtualDrive(column.fleet, Sticky)
    done = runs.run(column.work(CHOOSING[0], column.rate))
    held = sum(_held_s(placed, column.fleet.profile) for placed in done)
    prefill_s = sum(seat.engine.busy_s for seat in runs.seats)
    return max(prefill_s, held) / len(done)


def _held_s(placed: Placed, profile: Profile) -> float:
    """Return the seconds from the start of prefill to the end, over how many such requests fit."""
    job = placed.asked.job
    cached = job.cached_tokens or 0
    fit = profile.kv_tokens // (job.prompt_tokens + job.answer_tokens)
    prefill_s = profile.prefill_seconds(job.prompt_tokens - cached, cached)
    return (prefill_s + placed.ended_s - placed.first_s) / fit


def rescaled(picked: Sequence[Column], stock: Sequence[Column], jobs: int) -> list[Column]:
    """Return the columns, those of other engines at rates by `scaled`."""
    usual = {one.workload: one for one in stock}
    pairs = [(one, usual[one.workload]) for one in picked]
    return list(each(_scaled, pairs, jobs))


def _scaled(pair: tuple[Column, Column]) -> Column:
    column, stock = pair
    return column if column.engine == STOCK else scaled(column, stock)


def means(cells: Sequence[Cell]) -> dict[tuple[str, str], Cell]:
    """Return the mean over seeds for every column and policy."""
    ordered = sorted(cells, key=lambda one: (one.column, one.policy))
    return {
        key: _mean(list(alike))
        for key, alike in groupby(ordered, key=lambda one: (one.column, one.policy))
    }


def _mean(cells: Sequence[Cell]) -> Cell:
    first = cells[0]
    numbers = (fmean(getattr(one, name) for one in cells) for name in Cell.__struct_fields__[4:])
    return Cell(first.column, first.policy, len(cells), first.requests, *numbers)
