"""Synthetic workloads: conversations and questions about documents, determined by a seed.

They are closed loops: a turn is sent after the answer to the previous one, so only the driver knows
when. The workloads themselves are plain data.
"""

import random

import msgspec

from simulator.traces import CHARS_PER_TOKEN, filler


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One user message, sent `think_s` seconds after the previous answer."""

    user: str
    answer_tokens: int
    think_s: float = 0.0


class Conversation(msgspec.Struct, frozen=True):
    """A user's turns after a system prompt that other conversations may share."""

    name: str
    start_s: float
    system: str
    turns: tuple[Turn, ...]


def chats(
    seed: int,
    *,
    conversations: int = 64,
    turns: int = 5,
    system_tokens: int = 400,
    shared_systems: float = 0.25,
    user_tokens: int = 60,
    answer_tokens: int = 120,
    think_s: float = 4.0,
    over_s: float = 30.0,
    chars_per_token: int = CHARS_PER_TOKEN,
) -> list[Conversation]:
    """Return conversations of about `turns` turns each that start at random within `over_s`.

    The share `shared_systems` of them has one system prompt in common, each of the others its own.
    Lengths, turns and think times vary around the given means: users in lockstep would flatter
    round robin, which would then send each of them back to the same worker.
    """
    chance = random.Random(f"chats {seed}")
    talks = []
    for number in range(conversations):
        owner = "all" if chance.random() < shared_systems else str(number)
        system = filler(f"{seed} system {owner}", system_tokens * chars_per_token)
        start_s = chance.uniform(0, over_s)
        user_turns = []
        for turn in range(_around(turns, chance)):
            length = _around(user_tokens, chance) * chars_per_token
            user = filler(f"{seed} chat {number} turn {turn}", length)
            answer = _around(answer_tokens, chance)
            user_turns.append(Turn(user, answer, _pause(think_s, chance) if turn else 0.0))
        talks.append(Conversation(f"chat-{number}", start_s, system, tuple(user_turns)))
    return _by_start(talks)


def document_questions(
    seed: int,
    *,
    documents: int = 8,
    questions: int = 8,
    document_tokens: int = 6000,
    question_tokens: int = 40,
    answer_tokens: int = 80,
    over_s: float = 30.0,
    chars_per_token: int = CHARS_PER_TOKEN,
) -> list[Conversation]:
    """Return one-turn conversations: `questions` users ask about each document, interleaved."""
    chance = random.Random(f"documents {seed}")
    talks = []
    for number in range(documents):
        document = filler(f"{seed} document {number}", document_tokens * chars_per_token)
        for user in range(questions):
            length = _around(question_tokens, chance) * chars_per_token
            question = filler(f"{seed} document {number} user {user}", length)
            turn = Turn(question, _around(answer_tokens, chance))
            name = f"document-{number}-user-{user}"
            talks.append(Conversation(name, chance.uniform(0, over_s), document, (turn,)))
    return _by_start(talks)


def _by_start(conversations: list[Conversation]) -> list[Conversation]:
    return sorted(conversations, key=lambda conversation: conversation.start_s)


def _around(mean: int, chance: random.Random) -> int:
    """Draw an integer of at least one within a third of the mean."""
    return max(1, chance.randint(mean - mean // 3, mean + mean // 3))


def _pause(mean_s: float, chance: random.Random) -> float:
    """Draw a think time: mostly short, sometimes long, at most four times the mean."""
    return min(4 * mean_s, chance.expovariate(1 / mean_s)) if mean_s > 0 else 0.0
