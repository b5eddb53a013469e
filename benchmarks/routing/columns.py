"""The columns of the routing benchmark: each is a workload at one rate on one kind of fleet."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.routing.fleet import Fleet
from benchmarks.routing.generated import MADE
from benchmarks.routing.traces import agent_sessions, bailian, mooncake
from benchmarks.routing.work import Work, faster, shuffled_starts
from simulator.profiles import PROFILES

#: Tokens one step may compute: the value in other projects' studies, for comparable numbers.
_BUDGET = 4_096
SMALL = replace(PROFILES["llama-3.1-8b-h100"], max_num_batched_tokens=_BUDGET)
LARGE = replace(PROFILES["llama-3.1-70b-8xh100"], max_num_batched_tokens=_BUDGET)

#: GPU and host memory; GPU memory only; GPU and host memory with the large profile.
ROOMY = Fleet(SMALL, cache_tokens=2_000_000)
TIGHT = Fleet(SMALL)
LARGE_ROOMY = Fleet(LARGE, cache_tokens=3_000_000)

#: Paths within the folder of traces; files may be compressed (`.zst`).
CONVERSATION = "mooncake/conversation_trace.jsonl"
SESSIONS = "agent_sessions/sessions.jsonl"
BAILIAN = "bailian/*.jsonl"


class Column(NamedTuple):
    """A workload (a function of seed and rate), the fleet it runs on, and its rate."""

    name: str
    work: Callable[[int, float], Work]
    fleet: Fleet
    rate: float
    searched: bool = True
    """Whether to search its sustainable rate, which is done once per workload and fleet."""


def columns(traces: Path | None) -> list[Column]:
    """Return all columns, with recorded workloads only for traces found in the folder.

    Raises ValueError, which lists the expected files, if it has no trace at all.
    """
    made = [Column(name, partial(_made, name), ROOMY, rate) for name, rate in _RATES.items()]
    if traces is None:
        return made
    recorded: list[Column] = []
    for path in _found(traces, CONVERSATION):
        talk = partial(_conversation, path)
        recorded += [
            Column("conversation x1", talk, ROOMY, 1.0, searched=False),
            Column("conversation x2", talk, ROOMY, 2.0),
            Column("conversation x2.2", talk, ROOMY, 2.2, searched=False),
            Column("conversation tight x1.75", talk, TIGHT, 1.75),
            Column("conversation 70B x1.7", talk, LARGE_ROOMY, 1.7),
        ]
    for path in _found(traces, SESSIONS):
        agent = partial(_agents, path)
        recorded += [
            Column("sessions x0.1", agent, ROOMY, 0.1, searched=False),
            Column("sessions x0.3", agent, ROOMY, 0.3),
        ]
    for path in _found(traces, BAILIAN):
        recorded.append(Column(path.name.partition(".")[0], partial(_bailian, path), ROOMY, 1.0))
    if not recorded:
        raise ValueError(f"{traces} has none of {CONVERSATION}, {SESSIONS}, {BAILIAN} (or .zst)")
    return [*recorded, *made]


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


def _bailian(path: Path, seed: int, rate: float) -> Work:
    return faster(bailian(path, seed), rate)


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
