"""The workloads of the seeds benchmark: many clients, each sending one request after another.

A closed loop, like load generators with a fixed concurrency: a client sends its next request as
soon as it has an answer, so a faster fleet also answers more requests. A client's requests depend
only on the seed, the client and the request's number, so every strategy gets the same ones.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from math import log
from random import Random
from sys import maxsize
from typing import NamedTuple, cast, overload

from benchmarks.lengths import around, skewed
from benchmarks.routing.workloads import PromptTurn, Talk, Work, chained, follows

#: Mean tokens of an answer where none is published: as in vLLM's own benchmarks.
ANSWER_TOKENS = 256
#: Mean tokens of a user's message and of an answer in ShareGPT (Kwon et al., SOSP 2023, arXiv
#: 2309.06180, figure 11: 161.31 and 337.99).
MESSAGE_TOKENS, REPLY_TOKENS = 161, 338
#: Mean turns of ShareGPT's conversations, and the share that has only one (Gao et al., USENIX ATC
#: 2024, arXiv 2403.19708, sections 4 and 2.3: 5.75; 73 % have several).
MEAN_TURNS, SINGLE_TURN_SHARE = 5.75, 0.27
#: Conversations end before a prompt exceeds these tokens, as data sets are truncated.
MAX_PROMPT_TOKENS = 8_192
#: Tokens of the shortest message.
MIN_MESSAGE_TOKENS = 4
#: Seconds over which the clients start.
START_SPAN_S = 5.0


class Endless(Sequence[PromptTurn]):
    """Turns generated on demand, in order; only the latest is kept."""

    def __init__(self, turns: Iterator[PromptTurn]) -> None:
        self._turns = turns
        self._last, self._place = next(turns), 0

    def __len__(self) -> int:
        return maxsize

    @overload
    def __getitem__(self, place: int) -> PromptTurn: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[PromptTurn]: ...

    def __getitem__(self, place: int | slice) -> PromptTurn | Sequence[PromptTurn]:
        """Return the current turn or the next one; raises IndexError for any other."""
        if isinstance(place, slice) or place - self._place not in {0, 1}:
            raise IndexError(f"turn {place} after turn {self._place}")
        if place > self._place:
            self._last, self._place = next(self._turns), place
        return self._last


class Client:
    """A talk whose session changes with each conversation it goes through."""

    def __init__(
        self, at_s: float, number: int, turns: Callable[["Client"], Iterator[PromptTurn]]
    ) -> None:
        self.at_s = at_s
        self.session = number
        self.turns = Endless(turns(self))


class Seed(NamedTuple):
    """A published workload with its published results, as relative changes to the baseline."""

    name: str
    description: str
    """Description in words."""
    block_tokens: int
    span_s: float
    turns: Callable[[Client, Random, int, int], Iterator[PromptTurn]]
    """A client's turns; takes the client, a random generator, population and block size."""
    p50: float
    p90: float
    most: int = 20_000
    """Population so large that it is as if every context were new."""
    throughput: float | None = None
    cost: float | None = None
    hit: float | None = None
    share: tuple[float, float] | None = None
    """Shares of the requests on the replicas with the fewest and the most."""

    def work(self, seed: int, clients: int, population: int) -> Work:
        """Return the workload of `clients` clients that draw contexts from a population."""
        chance = Random(f"{self.name} {seed}")

        def turns(client: Client) -> Iterator[PromptTurn]:
            own = Random(f"{self.name} {seed} {client.session}")
            return self.turns(client, own, population, self.block_tokens)

        talks = [Client(START_SPAN_S * chance.random(), number, turns) for number in range(clients)]
        return Work(self.name, cast("list[Talk]", sorted(talks, key=lambda talk: talk.at_s)))


@dataclass(frozen=True)
class SharedContexts:
    """Requests with a context drawn from the population and a new question each."""

    tokens: int
    question: int

    def __call__(
        self, client: Client, chance: Random, population: int, size: int, /
    ) -> Iterator[PromptTurn]:
        """Yield a client's requests, one after another."""
        for number in count():
            context = chance.randrange(population)
            own, answer = around(self.question, chance), around(ANSWER_TOKENS, chance)
            keys = _context(context, self.tokens, size)
            mine = (client.session << 32) + number
            key, own_keys = keys[-1], []
            for _ in range(own // size):
                key = follows(key, mine)
                own_keys.append(key)
            yield PromptTurn((*keys, *own_keys), self.tokens + own, answer)


@lru_cache(maxsize=8192)
def _context(number: int, tokens: int, size: int) -> tuple[int, ...]:
    """Return keys of a context whose length is a multiple of the block size."""
    return chained([(number, tokens)], size)


def chats(client: Client, chance: Random, population: int, size: int) -> Iterator[PromptTurn]:
    """Yield the turns of complete conversations drawn from the population."""
    sessions = count(client.session, 1 << 20)
    while True:
        number = chance.randrange(population)
        client.session = next(sessions)
        yield from _conversation(number, size)


def _conversation(number: int, size: int) -> Iterator[PromptTurn]:
    """Yield the turns of one conversation, which are always the same for its number."""
    chance, parts = Random(f"conversation {number}"), count(number << 20)
    history: list[tuple[int, int]] = []
    for _ in range(_turns(chance)):
        history.append((next(parts), skewed(MESSAGE_TOKENS, chance, least=MIN_MESSAGE_TOKENS)))
        tokens = sum(part[1] for part in history)
        answer = skewed(REPLY_TOKENS, chance, least=MIN_MESSAGE_TOKENS)
        if tokens > MAX_PROMPT_TOKENS:
            return
        yield PromptTurn(chained(history, size), tokens, answer)
        history.append((next(parts), answer))


def _turns(chance: Random) -> int:
    """Draw 1 with the published probability, otherwise 2 plus a geometric number."""
    if chance.random() < SINGLE_TURN_SHARE:
        return 1
    more = (MEAN_TURNS - SINGLE_TURN_SHARE) / (1.0 - SINGLE_TURN_SHARE) - 2.0
    return 2 + int(log(1.0 - chance.random()) / log(more / (1.0 + more)))


#: From the tables of AWS's two reports: "Managed tiered KV cache and intelligent routing for
#: SageMaker HyperPod" (the first two) and "Prefix-aware routing" (the others).
SEEDS = [
    Seed(
        name="8k contexts",
        description="8,192 tokens of context and a question of 100",
        block_tokens=64,
        span_s=1_800.0,
        turns=SharedContexts(8_192, 100),
        p50=-0.72,
        p90=-0.40,
        throughput=0.24,
        cost=-0.21,
    ),
    Seed(
        name="64k contexts",
        description="65,536 tokens of context and a question of 100",
        block_tokens=256,
        span_s=1_800.0,
        turns=SharedContexts(65_536, 100),
        p50=-0.94,
        p90=-0.35,
        throughput=0.38,
        cost=-0.28,
    ),
    Seed(
        name="shared prefixes",
        description="8,000 shared tokens and 500 of one's own",
        block_tokens=64,
        span_s=3_600.0,
        turns=SharedContexts(8_000, 500),
        p50=-0.77,
        p90=-0.37,
        throughput=0.16,
        hit=0.82,
        share=(0.133, 0.154),
    ),
    Seed(
        name="chats",
        description="conversations with the lengths of ShareGPT",
        block_tokens=16,
        span_s=1_800.0,
        turns=chats,
        most=1 << 30,
        p50=-0.16,
        p90=-0.37,
        throughput=0.02,
        hit=0.80,
    ),
]
