"""Workloads for the simulated fleet: talks made of turns, with prompts given by block keys.

Generated ones are seeded, and each is for one pattern that traces do not show in isolation. The
order of users, lengths and think times are all random. Users in a fixed order would make round
robin look perfect, because it would then send each of them back to the same worker.

Recorded ones are read from two formats:

- Mooncake (github kvcache-ai/Mooncake, `FAST25-release/traces`): an open loop, one id for each
  512 tokens. Timestamps are quantised to about 3 s and are spread.
- Agent sessions (github callanjfox/kv-cache-tester, `traces/*.json`, one session per line): a
  closed loop with ids of 64 tokens, valid only within a session, listed or run-length encoded.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from math import ceil
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

import msgspec

from benchmarks.lengths import around, skewed
from benchmarks.routing.strides import BLOCK_TOKENS
from simulator.engine.profiles import Profile
from simulator.traces import TraceError, TraceRequest, opened, read_trace, spread

T = TypeVar("T")

Part = tuple[int, int]
#: Tokens of the prefix that a group shares, of each user's own part, and of the answer.
Sizes = tuple[int, int, int]
#: Tokens of the shortest prompt.
LEAST = 16

#: How many sessions are read, from the start of the file; a session ends before it would exceed
#: these tokens or turns.
SESSIONS, SESSION_TOKENS, SESSION_TURNS = 250, 64_000, 60
#: Cap of think times, so that long breaks do not make the benchmark longer.
LONGEST_THINK_S = 60.0
#: A block in more than this share of prompts is common to many users and cannot name a session.
_COMMON = 0.01


class PromptTurn(msgspec.Struct, frozen=True, gc=False):
    """One request. `keys` name the prompt's full blocks; equal keys mean equal prefixes."""

    keys: tuple[int, ...]
    prompt_tokens: int
    answer_tokens: int
    think_s: float = 0.0
    """Seconds from the end of the previous answer to this request."""


class Talk(msgspec.Struct, frozen=True):
    """Turns that follow one another; a request of an open loop is a talk of one turn."""

    at_s: float
    session: int
    """Equal for all talks of one user or agent; known to strategies that use sessions."""
    turns: Sequence[PromptTurn]


class Work(msgspec.Struct, frozen=True):
    """A named workload."""

    name: str
    talks: Sequence[Talk]

    @property
    def requests(self) -> int:
        """The number of requests."""
        return sum(len(talk.turns) for talk in self.talks)


class Ideal(NamedTuple):
    """The results of one infinite cache shared by workers that are always idle."""

    hit_rate: float
    """Share of the prompt tokens found in the cache."""
    ttft_s: float
    """Mean seconds to the first token without any queue, a lower bound for every policy."""


def faster(work: Work, rate: float) -> Work:
    """Return the same talks starting `rate` times as often; think times stay the same."""
    talks = [msgspec.structs.replace(talk, at_s=talk.at_s / rate) for talk in work.talks]
    return Work(work.name, talks)


def shuffled_starts(work: Work, per_s: float, seed: int) -> Work:
    """Return the talks in random order, `per_s` of them starting per second at random times.

    Each starts within a time slot of its own. So seeds differ in who starts when, but not in how
    many happen to start at once, which would hide the differences between policies.
    """
    chance = Random(f"starts {work.name} {seed}")
    talks = list(work.talks)
    chance.shuffle(talks)
    begun = [
        msgspec.structs.replace(talk, at_s=(place + chance.random()) / per_s)
        for place, talk in enumerate(talks)
    ]
    return Work(work.name, begun)


def follows(key: int, content: object) -> int:
    """Return the 64-bit key of a block with this content that follows the block with `key`.

    Python hashes tuples of integers the same way in every process.
    """
    return hash((key, content)) & 0xFFFF_FFFF_FFFF_FFFF


def chained(parts: Iterable[tuple[int, int]], block_tokens: int) -> tuple[int, ...]:
    """Return the keys of the full blocks of a prompt that consists of `(content, tokens)` parts.

    Parts with equal content are equal text; equal parts in equal order give equal keys.
    """
    keys, key, filled = [], 0, 0
    content: tuple[int, ...] = ()
    for what, tokens in parts:
        done = 0
        while done < tokens:
            piece = min(tokens - done, block_tokens - filled)
            content += (what, done, piece)
            done += piece
            filled += piece
            if filled == block_tokens:
                key = follows(key, content)
                keys.append(key)
                content, filled = (), 0
    return tuple(keys)


def ideal(work: Work, profile: Profile, block_tokens: int) -> Ideal:
    """Return the hit rate of one infinite cache, and the mean TTFT without any queue."""
    held_tokens = tokens = requests = 0
    seconds = 0.0
    talks = sorted(work.talks, key=lambda talk: talk.at_s)
    turns = (turn for talk in talks for turn in talk.turns)
    for turn, held in remembered(turns, block_tokens):
        own = turn.prompt_tokens - held
        steps = ceil(own / profile.max_num_batched_tokens)
        seconds += profile.prefill_seconds(own, held) + steps * profile.t0_s
        held_tokens += held
        tokens += turn.prompt_tokens
        requests += 1
    return Ideal(held_tokens / tokens, seconds / requests)


def remembered(turns: Iterable[PromptTurn], block_tokens: int) -> Iterator[tuple[PromptTurn, int]]:
    """Yield each turn with the tokens of it that one infinite cache already holds."""
    seen: set[int] = set()
    for turn in turns:
        blocks = 0
        for key in turn.keys[: (turn.prompt_tokens - 1) // block_tokens]:
            if key not in seen:
                break
            blocks += 1
        seen.update(turn.keys)
        yield turn, blocks * block_tokens


def groups(seed: int, rate: float = 15.0, *, number: int = 250, users: int = 5) -> Work:
    """Groups of users, each group with its own long system prompt: 16,000 tokens of 16,256.

    Sizes as in llm-d-benchmark's "tiered" profile.
    """
    return _grouped("groups", seed, rate, (number, users), (16_000, 256, 256))


def long_answers(seed: int, rate: float = 7.0, *, number: int = 150, users: int = 5) -> Work:
    """Groups whose answers take most of the time: 6,000 + 1,200 prompt tokens, 1,000 decoded.

    Sizes as in llm-d-benchmark's "precise" profile.
    """
    return _grouped("long_answers", seed, rate, (number, users), (6_000, 1_200, 1_000))


def _grouped(name: str, seed: int, rate: float, users: tuple[int, int], sizes: Sizes) -> Work:
    number, each = users
    chance, own = Random(f"{name} {seed}"), count(number)
    shared, private, answer = sizes
    members = [group for group in range(number) for _ in range(each)]
    chance.shuffle(members)
    talks = []
    for at_s, group in zip(_arrivals(chance, rate), members, strict=False):
        turn = _turn([(group, shared), (next(own), private)], around(answer, chance))
        talks.append(Talk(at_s, group, (turn,)))
    return Work(name, talks)


def chats(seed: int, rate: float = 4.0, *, users: int = 400, rounds: int = 8) -> Work:
    """Users who each have their own history, and think about half a minute between rounds.

    All share a system prompt of 1,000 tokens; histories have 4,000 to 20,000 tokens. `rate` users
    join a second.
    """
    chance, own = Random(f"chats {seed}"), count(1)
    talks = []
    for user, at_s in zip(range(users), _arrivals(chance, rate), strict=False):
        parts = [(0, 1_000), (next(own), chance.randint(4_000, 20_000))]
        turns = []
        for _ in range(around(rounds, chance)):
            parts = [*parts, (next(own), around(250, chance))]
            answer = around(100, chance)
            turns.append(_turn(parts, answer, min(120.0, chance.expovariate(1 / 30))))
            parts = [*parts, (next(own), answer)]
        talks.append(Talk(at_s, user, tuple(turns)))
    return Work("chats", talks)


def agents(seed: int, rate: float = 1.6, *, number: int = 150, steps: int = 20) -> Work:
    """Agents of four kinds, each kind with 8,000 tokens of tools, that call with short pauses."""
    chance, own = Random(f"agents {seed}"), count(4)
    talks = []
    for agent, at_s in zip(range(number), _arrivals(chance, rate), strict=False):
        parts = [(chance.randrange(4), 8_000), (next(own), around(2_000, chance))]
        turns = []
        for _ in range(around(steps, chance)):
            parts = [*parts, (next(own), chance.randint(200, 4_000))]
            answer = around(150, chance)
            turns.append(_turn(parts, answer, chance.expovariate(1 / 2)))
            parts = [*parts, (next(own), answer)]
        talks.append(Talk(at_s, agent, tuple(turns)))
    return Work("agents", talks)


def documents(seed: int, rate: float = 6.0, *, number: int = 100, questions: int = 8) -> Work:
    """Documents of 20,000 to 60,000 tokens, each with questions of several users, in any order."""
    chance, own = Random(f"documents {seed}"), count(number)
    lengths = [chance.randint(20_000, 60_000) for _ in range(number)]
    asked = [document for document in range(number) for _ in range(questions)]
    chance.shuffle(asked)
    talks = []
    for at_s, document in zip(_arrivals(chance, rate), asked, strict=False):
        parts = [(document, lengths[document]), (next(own), around(60, chance))]
        talks.append(Talk(at_s, document, (_turn(parts, around(150, chance)),)))
    return Work("documents", talks)


def one_prefix(
    seed: int,
    rate: float = 40.0,
    *,
    number: int = 3_000,
    shared: int = 8_000,
    another: int | None = None,
) -> Work:
    """A prefix of 8,000 tokens that all requests share, followed by about 500 of their own.

    From request number `another` on, the shared prefix is a different one.
    """
    chance, own = Random(f"one_prefix {seed}"), count(2)
    talks = []
    for at_s, user in zip(_arrivals(chance, rate), range(number), strict=False):
        prefix = int(another is not None and user >= another)
        parts = [(prefix, shared), (next(own), around(500, chance))]
        talks.append(Talk(at_s, user, (_turn(parts, around(200, chance)),)))
    return Work("one_prefix", talks)


def no_reuse(seed: int, rate: float = 22.0, *, number: int = 3_000) -> Work:
    """Prompts with nothing in common: mostly short, some long, 4,000 tokens on average."""
    chance = Random(f"no_reuse {seed}")
    talks = []
    for at_s, user in zip(_arrivals(chance, rate), range(number), strict=False):
        turn = _turn([(user, skewed(4_000, chance, least=LEAST))], around(200, chance))
        talks.append(Talk(at_s, user, (turn,)))
    return Work("no_reuse", talks)


def bursts(seed: int, rate: float = 8.0, *, number: int = 24, siblings: int = 32) -> Work:
    """A burst of 32 requests for one cold prompt every ten seconds, among unrelated requests."""
    chance, own = Random(f"bursts {seed}"), count(1)
    talks = []
    for burst in range(number):
        head, at_s = next(own), 10.0 * (burst + chance.random())
        for _ in range(siblings):
            parts = [(head, 12_000), (next(own), around(50, chance))]
            talks.append(Talk(at_s, head, (_turn(parts, around(100, chance)),)))
    for at_s in _arrivals(chance, rate):
        if at_s > 10.0 * number:
            break
        turn = _turn([(next(own), skewed(4_000, chance, least=LEAST))], around(200, chance))
        talks.append(Talk(at_s, next(own), (turn,)))
    return Work("bursts", sorted(talks, key=lambda talk: talk.at_s))


def mixed(seed: int, rate: float = 36.0, *, number: int = 4_000) -> Work:
    """Short questions, and one in sixty requests with 50,000 to 80,000 tokens.

    The long ones are of 30 kinds; those of a kind share their first 30,000 tokens.
    """
    chance, own = Random(f"mixed {seed}"), count(30)
    talks = []
    for at_s, user in zip(_arrivals(chance, rate), range(number), strict=False):
        if chance.random() < 1 / 60:
            half = chance.randint(20_000, 50_000)
            parts = [(chance.randrange(30), 30_000), (next(own), half)]
        else:
            parts = [(next(own), chance.randint(200, 1_500))]
        talks.append(Talk(at_s, user, (_turn(parts, around(200, chance)),)))
    return Work("mixed", talks)


#: All workloads by name; each takes a seed and a rate.
MADE: dict[str, Callable[..., Work]] = {
    maker.__name__: maker
    for maker in (
        *(groups, long_answers, chats, agents, documents),
        *(one_prefix, no_reuse, bursts, mixed),
    )
}


def _turn(parts: list[Part], answer: int, think_s: float = 0.0) -> PromptTurn:
    tokens = sum(part[1] for part in parts)
    return PromptTurn(chained(parts, BLOCK_TOKENS), tokens, answer, think_s)


def _arrivals(chance: Random, rate: float) -> Iterator[float]:
    """Yield the arrival times of a Poisson process."""
    at_s = 0.0
    while True:
        at_s += chance.expovariate(rate)
        yield at_s


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
    turns: list[PromptTurn] = []
    for call, tools in _calls(session.requests, session.tool_tokens):
        if call.tokens > SESSION_TOKENS or len(turns) == SESSION_TURNS:
            break
        ids = _ids(call, number, tools // session.block_size)
        keys = _joined(ids, joined)[: call.tokens // BLOCK_TOKENS]
        think_s = min(call.think_time, LONGEST_THINK_S)
        turns.append(PromptTurn(keys, call.tokens, max(1, call.answer), think_s))
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
        talks.append(Talk(request.at_s, next(own, request.hash_ids[0]), (_single(request),)))
    return talks


def _single(request: TraceRequest) -> PromptTurn:
    keys = request.hash_ids[: request.input_tokens // BLOCK_TOKENS]
    return PromptTurn(keys, request.input_tokens, max(1, request.output_tokens))


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
