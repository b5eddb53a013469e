"""What is asked of the simulated fleet: talks of turns, each prompt known by its block keys."""

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
    """Seconds between the answer before it and this one."""


class Talk(msgspec.Struct, frozen=True):
    """Turns that follow one another: a request of an open loop is a talk of one turn."""

    at_s: float
    session: int
    """Equal for what one user or agent asks; strategies with stickiness may know it."""
    turns: Sequence[Turn]


class Work(msgspec.Struct, frozen=True):
    """A named workload."""

    name: str
    talks: Sequence[Talk]

    @property
    def requests(self) -> int:
        """How many there are."""
        return sum(len(talk.turns) for talk in self.talks)


class Ideal(NamedTuple):
    """What one infinite cache in front of idle workers would do."""

    hit_rate: float
    """Share of the prompt tokens it would hold."""
    ttft_s: float
    """Mean seconds to the first token without any queue: no policy can be below."""


def faster(work: Work, rate: float) -> Work:
    """Return the same talks beginning `rate` times as often; thinking takes as long as before."""
    talks = [msgspec.structs.replace(talk, at_s=talk.at_s / rate) for talk in work.talks]
    return Work(work.name, talks)


def shuffled_starts(work: Work, per_s: float, seed: int) -> Work:
    """Return the talks in a random order, `per_s` of them beginning a second, each at random.

    Each begins within its own share of the time: seeds then differ by who comes when, not by how
    many happen to come at once, which would drown what is compared.
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
    """Return the key, of 64 bits, of a block with this content after the one with that key.

    Tuples of integers are hashed by Python alike in every process.
    """
    return hash((key, content)) & 0xFFFF_FFFF_FFFF_FFFF


def chained(parts: Iterable[tuple[int, int]], block_tokens: int) -> tuple[int, ...]:
    """Return keys of the full blocks of a prompt made of `(content, tokens)` parts.

    A part is text of its own; equal parts in equal order give equal keys.
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
    """Return what one infinite cache would hit, and the first tokens without any queue."""
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
    """Yield turns, and how many tokens of each one infinite cache holds when it comes."""
    seen: set[int] = set()
    for turn in turns:
        blocks = 0
        for key in turn.keys[: (turn.prompt_tokens - 1) // block_tokens]:
            if key not in seen:
                break
            blocks += 1
        seen.update(turn.keys)
        yield turn, blocks * block_tokens
