"""The columns of the routing benchmark: each is a workload at one rate on a fleet of one engine.

All workloads run on the stock engine. Six or seven of them also run on other engines, to which no
constant was ever fitted. There, arrival rates follow `scaled`: the workers are as busy as on the
stock engine.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.routing.fleet import Fleet, times_as_fast
from benchmarks.routing.generated import MADE
from benchmarks.routing.traces import agent_sessions, mooncake
from benchmarks.routing.work import Talk, Work, faster, shuffled_starts
from simulator.profiles import PROFILES

#: Tokens one step may compute: the value in other projects' studies, for comparable numbers.
_BUDGET = 4_096
SMALL = replace(PROFILES["llama-3.1-8b-h100"], max_num_batched_tokens=_BUDGET)
LARGE = replace(PROFILES["llama-3.1-70b-8xh100"], max_num_batched_tokens=_BUDGET)

#: Tokens that a worker caches with its host memory, which loads in no time.
_HOST = 2_000_000
#: GPU and host memory; GPU memory only; GPU and host memory with the large profile.
ROOMY = Fleet(SMALL, cache_tokens=_HOST)
TIGHT = Fleet(SMALL)
LARGE_ROOMY = Fleet(LARGE, cache_tokens=3_000_000)

STOCK = "stock"
#: Engines that behave differently.
ENGINES = {
    "chunks of 2,048": Fleet(replace(SMALL, max_num_batched_tokens=2_048), cache_tokens=_HOST),
    "chunks of 16,384, twice the pace": Fleet(
        replace(
            SMALL,
            max_num_batched_tokens=16_384,
            prefill_tokens_per_s=2 * SMALL.prefill_tokens_per_s,
            attention_tokens=2 * SMALL.attention_tokens,
        ),
        cache_tokens=_HOST,
    ),
    "prefill stops decoding": Fleet(replace(SMALL, mixed_steps=False), cache_tokens=_HOST),
    "64 sequences": Fleet(replace(SMALL, max_num_seqs=64), cache_tokens=_HOST),
    "slow card": Fleet(replace(times_as_fast(SMALL, 0.2), kv_tokens=60_000)),
    "20 % noise": Fleet(replace(SMALL, noise=0.2), cache_tokens=_HOST),
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
    fleet: Fleet
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


def _fitting(work: Callable[[int, float], Work], fleet: Fleet, seed: int, rate: float) -> Work:
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
