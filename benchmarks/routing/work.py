"""Workloads for the simulated fleet: talks made of turns, with prompts given by block keys."""

from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from random import Random
from typing import NamedTuple

import msgspec

from simulator.profiles import Profile


class Turn(msgspec.Struct, frozen=True, gc=False):
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
    turns: Sequence[Turn]


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


def remembered(turns: Iterable[Turn], block_tokens: int) -> Iterator[tuple[Turn, int]]:
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
