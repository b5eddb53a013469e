"""Readers for two formats of recorded traces, which become work for the simulated fleet.

- Mooncake (github kvcache-ai/Mooncake, `FAST25-release/traces`): an open loop, one id for each
  512 tokens. Timestamps are quantised to about 3 s and are spread.
- Agent sessions (github callanjfox/kv-cache-tester, `traces/*.json`, one session per line): a
  closed loop with ids of 64 tokens, valid only within a session, listed or run-length encoded.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.routing.work import Talk, Turn, Work, follows
from simulator.strides import BLOCK_TOKENS
from simulator.traces import TraceError, TraceRequest, opened, read_trace, spread

#: How many sessions are read, from the start of the file; a session ends before it would exceed
#: these tokens or turns.
SESSIONS, SESSION_TOKENS, SESSION_TURNS = 250, 64_000, 60
#: Cap of think times, so that long breaks do not make the benchmark longer.
LONGEST_THINK_S = 60.0
#: A block in more than this share of prompts is common to many users and cannot name a session.
_COMMON = 0.01

T = TypeVar("T")


class _Call(msgspec.Struct, gc=False, rename={"tokens": "in", "answer": "out"}):
    tokens: int = 0
    answer: int = 0
    think_time: float = 0.0
    hash_ids: tuple[int, ...] = ()
    h: tuple[int, ...] = ()  # the same in runs: first, count, first, count, ...
    tool_tokens: int = 0
    requests: tuple["_Call", ...] = ()  # of a sub-agent, whose entry has nothing else of a call


class _Session(msgspec.Struct, gc=False):
    block_size: int
    tool_tokens: int
    requests: tuple[_Call, ...]


def mooncake(path: Path, seed: int) -> Work:
    """Read a Mooncake trace, with its timestamps spread by the seed. Raises TraceError."""
    requests = spread(read_trace(path), seed)
    return Work(path.name, _opens(requests))


def agent_sessions(path: Path) -> Work:
    """Read agent sessions; all begin at 0, `shuffled_starts` spreads them. Raises TraceError.

    Tools come first in a prompt. Sessions whose tools have equal length are assumed to share them,
    because ids are local to a session. A sub-agent's calls come before its caller's next call.
    """
    talks = (_talk(session, number) for number, session in enumerate(_lines(path, _Session)))
    return Work(path.name, list(islice((talk for talk in talks if talk.turns), SESSIONS)))


def _talk(session: _Session, number: int) -> Talk:
    joined = BLOCK_TOKENS // session.block_size
    turns: list[Turn] = []
    for call, tools in _calls(session.requests, session.tool_tokens):
        if call.tokens > SESSION_TOKENS or len(turns) == SESSION_TURNS:
            break
        ids = _ids(call, number, tools // session.block_size)
        keys = _joined(ids, joined)[: call.tokens // BLOCK_TOKENS]
        think_s = min(call.think_time, LONGEST_THINK_S)
        turns.append(Turn(keys, call.tokens, max(1, call.answer), think_s))
    return Talk(0.0, number, tuple(turns))


def _calls(calls: Sequence[_Call], tools: int) -> Iterator[tuple[_Call, int]]:
    """Yield every call, with the length of its tools."""
    for call in calls:
        if call.requests:
            yield from _calls(call.requests, call.tool_tokens)
        elif call.tokens:
            yield call, tools


def _ids(call: _Call, session: int, tool_blocks: int) -> list[tuple[int, int]]:
    """Return ids that are valid across sessions."""
    local = call.hash_ids or [
        first + step
        for first, count in zip(call.h[::2], call.h[1::2], strict=True)
        for step in range(count)
    ]
    shared = min(tool_blocks, len(local))
    return [
        *((-tool_blocks, place) for place in range(shared)),
        *((session, one) for one in local[shared:]),
    ]


def _joined(ids: Sequence[object], count: int) -> tuple[int, ...]:
    """Return a chained key for every full group of `count` ids."""
    keys, key = [], 0
    for start in range(0, len(ids) - count + 1, count):
        key = follows(key, tuple(ids[start : start + count]))
        keys.append(key)
    return tuple(keys)


def _opens(requests: Sequence[TraceRequest]) -> list[Talk]:
    """Return the requests as talks of one turn each.

    An id stands for the whole prefix up to its block, so the first one that is not common to many
    prompts identifies the session.
    """
    uses = Counter(key for request in requests for key in request.hash_ids)
    common = _COMMON * len(requests)
    talks = []
    for request in requests:
        own = (key for key in request.hash_ids if uses[key] <= common)
        talks.append(Talk(request.at_s, next(own, request.hash_ids[0]), (_turn(request),)))
    return talks


def _turn(request: TraceRequest) -> Turn:
    keys = request.hash_ids[: request.input_tokens // BLOCK_TOKENS]
    return Turn(keys, request.input_tokens, max(1, request.output_tokens))


def _lines(path: Path, form: type[T]) -> Iterator[T]:
    """Decode a file line by line. Raises TraceError, which says what is wrong in which line."""
    decode = msgspec.json.Decoder(form).decode
    number = 0
    try:
        with opened(path) as file:
            for raw in file:
                number += 1
                yield decode(raw)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}, line {number}: {error}") from error
