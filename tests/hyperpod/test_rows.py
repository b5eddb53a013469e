"""Rows of docs/hyperpod.md that no other test covers: how requests spread."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from random import Random
from string import ascii_lowercase

import pytest

from router.settings.errors import SettingsError
from router.settings.loader import loads
from strategies.api import Candidate, Prompt, Strategy
from strategies.cost.booking import Booking
from strategies.cost.load import Load
from strategies.cost.prefill import Pace
from strategies.prefix.block_keys import TEXT_ENDS, chain
from strategies.registry import make


@dataclass(eq=False)
class Stand:
    """A worker as a strategy sees it."""

    name: str
    load: Load = field(default_factory=Load)
    pace: Pace = field(default_factory=Pace)
    kv_tokens: int | None = 400_000
    room_tokens: int | None = None


def prompt(text: str) -> Prompt:
    """A prompt of this text at four bytes a token."""
    data = text.encode()
    return Prompt("m", len(data) // 4, chain(0, data), TEXT_ENDS, 0.25, 100, stream=True)


class Run:
    """Places prompts as the router does."""

    def __init__(self, strategy: str, workers: int) -> None:
        self.strategy: Strategy = make(strategy, {})
        self.workers = [Stand(f"w{number}") for number in range(workers)]
        self.turn = 0

    def place(self, asked: Prompt, now: float = 0.0) -> tuple[Candidate, Stand, Booking]:
        choice = self.strategy.rank(asked, self.workers, now).candidates[0]
        worker = next(one for one in self.workers if one.name == choice.worker.name)
        self.turn += 1
        worker.load.turn = self.turn
        tokens = asked.tokens + asked.answer_tokens
        booking = worker.load.book(now, choice.cost.prefill, tokens)
        self.strategy.placed(asked, worker, now)
        return choice, worker, booking


def words(seed: str, tokens: int) -> str:
    """Return a text of its own, with four bytes a token."""
    return "".join(Random(seed).choices(ascii_lowercase, k=4 * tokens))


def test_r1_strategies_by_name() -> None:
    """`prefixaware` is the default; for a wrong name, the known ones are listed: row R1."""
    assert loads("workers: [http://a:1]").strategy.name == "prefixaware"
    assert loads("workers: [http://a:1]\nstrategy: roundrobin").strategy.name == "roundrobin"
    for name in ("kvaware", "session"):
        assert loads(f"workers: [http://a:1]\nstrategy: {name}").strategy.name == name
    with pytest.raises(SettingsError, match=r"known are .*kvaware.*prefixaware.*roundrobin.*sess"):
        loads("workers: [http://a:1]\nstrategy: nearest")


def test_r2_a_template_keeps_its_workers() -> None:
    """Six templates, fifty requests each: 95 % go where the template is held: row R2."""
    run = Run("prefixaware", 4)
    holders: dict[int, set[str]] = defaultdict(set)
    asked = [(number % 6, number) for number in range(300)]
    stayed = 0
    for template, number in asked:
        text = words(f"t{template}", 2000) + words(f"{number}", 100)
        _, worker, booking = run.place(prompt(text), float(number))
        worker.load.release(booking, number + 0.5)
        stayed += worker.name in holders[template]
        holders[template].add(worker.name)
    assert stayed >= 0.95 * (len(asked) - 6)


def test_r4_a_shared_system_prompt_pins_nobody() -> None:
    """200 users at once: no worker has more than 1.25 times its share, and nearly all is reused."""
    run = Run("prefixaware", 4)
    system, counts, held = words("s", 2000), Counter[str](), 0
    for user in range(200):
        choice, worker, _ = run.place(prompt(system + words(f"u{user}", 200)))
        counts[worker.name] += 1
        held += choice.held_tokens
    assert max(counts.values()) <= 1.25 * 200 / 4
    assert held >= 0.9 * 199 * 2000


def test_r4_the_longest_match_alone_pins_everybody() -> None:
    """What the test above guards against: by longest match alone, one worker gets all."""
    run, counts = Run("prefixaware", 4), Counter[str]()
    system = words("s", 2000)
    for user in range(200):
        asked = prompt(system + words(f"u{user}", 200))
        ranked = run.strategy.rank(asked, run.workers, 0.0).candidates
        longest = max(ranked, key=lambda one: one.held_tokens).worker
        run.strategy.placed(asked, longest, 0.0)
        counts[longest.name] += 1
    assert max(counts.values()) >= 199


def test_r12_round_robin_is_even() -> None:
    """Seven workers, 700 requests: 100 each: row R12."""
    run = Run("roundrobin", 7)
    counts = Counter(run.place(prompt("x"))[1].name for _ in range(700))
    assert set(counts.values()) == {100}


def test_r13_a_hot_prefix_spills_and_comes_home() -> None:
    """A crowd spreads it; afterwards every request still finds it held, the first holder included:
    row R13."""
    run, hot = Run("prefixaware", 4), words("hot", 8000)
    _, home, booking = run.place(prompt(hot + words("first", 200)))
    home.load.release(booking, 1.0)
    _, again, booking = run.place(prompt(hot + words("second", 200)), 2.0)
    assert again is home
    home.load.release(booking, 3.0)
    crowd = [run.place(prompt(hot + words(f"c{user}", 2000)), 4.0) for user in range(24)]
    assert {worker.name for _, worker, _ in crowd} > {home.name}
    for _, worker, booking in crowd:
        worker.load.release(booking, 5.0)
    seen = set()
    for user in range(40):  # the first holder had most of the crowd, so the others come first
        choice, worker, booking = run.place(prompt(hot + words(f"l{user}", 200)), 10.0 + 5 * user)
        assert choice.held_tokens >= 0.9 * 8000
        worker.load.release(booking, 10.5 + 5 * user)
        seen.add(worker.name)
    assert home.name in seen
