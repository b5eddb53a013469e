"""Generated workloads, each for one pattern that traces do not show in isolation. Seeded.

Order of users, lengths and think times are all random. Users in a fixed order would make round
robin look perfect, because it would then send each of them back to the same worker.
"""

from collections.abc import Callable, Iterator
from itertools import count
from random import Random

from benchmarks.lengths import around, skewed
from benchmarks.routing.work import Talk, Turn, Work, chained
from simulator.strides import BLOCK_TOKENS

Part = tuple[int, int]
#: Tokens of the prefix that a group shares, of each user's own part, and of the answer.
Sizes = tuple[int, int, int]
#: Tokens of the shortest prompt.
LEAST = 16


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


def _turn(parts: list[Part], answer: int, think_s: float = 0.0) -> Turn:
    tokens = sum(part[1] for part in parts)
    return Turn(chained(parts, BLOCK_TOKENS), tokens, answer, think_s)


def _arrivals(chance: Random, rate: float) -> Iterator[float]:
    """Yield the arrival times of a Poisson process."""
    at_s = 0.0
    while True:
        at_s += chance.expovariate(rate)
        yield at_s
