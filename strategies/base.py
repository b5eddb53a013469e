"""The words every strategy speaks, and the protocol it follows.

A strategy is pure: it is told the time, it is told what happened, and it answers at once. It
never reads a clock, opens a socket or waits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, NewType, Protocol

from msgspec import Struct

from strategies.load import Load
from strategies.loads import Held, Loading
from strategies.pace import Pace

#: Marks an option as a size: the YAML reads `64MiB`, the strategy gets bytes.
Bytes = NewType("Bytes", int)
#: Marks an option as a duration: the YAML reads `30s`, the strategy gets seconds.
Seconds = NewType("Seconds", float)


@dataclass(frozen=True)
class Other:
    """Marks an option as another strategy: the YAML reads its name, or a mapping with options."""

    name: str
    options: dict[str, object] = field(default_factory=dict)


#: Where blocks of 16 tokens end, as vLLM has them by default.
TOKEN_ENDS = range(0, 1 << 32, 16)
NO_BLOCKS: Mapping[int, Sequence[int]] = MappingProxyType({})


# Structs: a few are made for every request, and these are made ten times as fast as dataclasses.
class Prompt(Struct, frozen=True, gc=False):
    """What a strategy may know of a request: sizes and keys, never the text."""

    model: str
    """The model's name as the client wrote it."""
    tokens: int
    """Length of the prompt; an estimate where it was not tokenized."""
    keys: Sequence[int] = ()
    """Chained key of each full block from the start; equal keys mean equal prefixes."""
    ends: Sequence[int] = TOKEN_ENDS
    """Units up to the end of each block, the first of them 0: `ends[n]` is what `n` keys cover."""
    unit_tokens: float = 1.0
    """Tokens of one unit: 1 where keys are over tokens, less where they are over bytes."""
    answer_tokens: int = 256
    """Tokens the answer may take in the KV cache; an estimate where the client set no limit."""
    estimated: bool = False
    """`tokens` was guessed from the length of plain text, and can be corrected by a count."""
    counted: bool = False
    """`tokens` are the engine's own, one by one."""
    stream: bool = False
    """Whether the first byte tells the first token (else it tells the last one)."""
    blocks: Mapping[int, Sequence[int]] = NO_BLOCKS
    """Chained keys of even blocks, as engines have them, by the tokens of a block: those sizes that
    the pool's memory knows of. Empty where the prompt was not tokenized, or nobody asked."""
    ids: bytes = b""
    """Token ids, 32 bits each, where somebody asked for them."""
    salt: str = ""
    """What keeps its cache apart from others', where `ids` are given."""
    bound: str | None = None
    """Name of the worker that the request's session is bound to; empty while it is bound to
    nobody, None without a session."""
    elsewhere: bool = False
    """Another process of this router has sent it: of its text no more is known than `keys`."""


class WorkerView(Protocol):
    """What a strategy may see of a worker."""

    @property
    def name(self) -> str:
        """Unique in its pool, stable over reloads."""

    @property
    def load(self) -> Load:
        """What this router has booked on it."""

    @property
    def pace(self) -> Pace:
        """How fast it computes."""

    @property
    def kv_tokens(self) -> int | None:
        """Tokens of prefixes that it keeps, on all its tiers; None where nobody has said. Then it
        keeps `room_tokens` on its GPU, and perhaps more behind it."""

    @property
    def room_tokens(self) -> int | None:
        """Tokens that the requests running there may take; None while unknown."""


class Cost(NamedTuple):
    """Seconds until this request's first token on one worker, and what that costs the others."""

    wait: float = 0.0
    """Prefill booked there and not yet done."""
    prefill: float = 0.0
    """Computing the tokens of the prompt that the worker does not hold."""
    price: float = 0.0
    """What that prefill costs those who come while it lasts."""
    decode: float = 0.0
    """How much slower answers are there, this one and those it joins."""
    room: float = 0.0
    """Waiting until another request leaves, where the KV cache has no room for this one."""
    home: float = 0.0
    """What those that follow this prompt will wait there, as busy as it has been."""

    @property
    def total(self) -> float:
        """The number that is minimised, in seconds."""
        return self.wait + self.prefill + self.price + self.decode + self.room + self.home


#: Where nothing is compared.
FREE = Cost()
#: Where nothing is loaded.
NO_LOADING = Loading()


class Candidate(Struct, frozen=True, gc=False):
    """One worker that could take the request."""

    worker: WorkerView
    cost: Cost
    held_tokens: int = 0
    """Tokens at the start of the prompt that the worker is believed to hold."""
    loading: Loading = NO_LOADING
    """Of these, what it has to load from slower tiers; the seconds are part of `cost.prefill`."""


class Decision(Struct, frozen=True, gc=False):
    """All eligible workers, best first: failing over is taking the next one."""

    candidates: Sequence[Candidate]
    reason: str
    """One word for metrics and headers: why the first is first."""
    stays: bool = False
    """The others are only for when the first is lost, not for when it is full."""


class Outcome(Struct, frozen=True, gc=False):
    """What came of a request on one worker."""

    ok: bool
    """The worker answered to the end, and not with an error of its own."""
    began: bool = True
    """The worker may have computed some of the prompt: it did not refuse or reject it."""
    first_byte_s: float | None = None
    """Seconds from booking to the first byte of the answer; None if none came."""
    prompt_tokens: int | None = None
    """As the worker reported it."""
    cached_tokens: int | None = None
    """As the worker reported it (`usage.prompt_tokens_details.cached_tokens`)."""
    found: Held | None = None
    """Where these lay, if the worker told."""
    answer_tokens: int | None = None
    """As the worker reported it (`usage.completion_tokens`)."""
    computed_s: float | None = None
    """Seconds that its prefill took there with nothing else computed meanwhile; None if unknown."""


@dataclass(frozen=True)
class NoOptions:
    """For a strategy that has none."""


class Strategy(Protocol):
    """Three methods a request, one for a worker that lost its cache.

    Third-party strategies are found by the entry point group `warmroute.strategies`; the class
    is made as `cls(cls.Options(**options))`, `Options` being a frozen dataclass with defaults. One
    that builds on one of ours holds it and asks it, and does not extend it: a compiled class, as
    in the container image, cannot be extended, and the router would not start.

    One that has something to leave for the router after it also has `left() -> bytes`, and
    `take_over(data) -> str`, which returns what that was and raises ValueError with a sentence.

    Where several processes share a port, each books what the others send too. `placed` and
    `settled` are called for that as well if the class says `hears_others = True`: without a `rank`
    before, and with no more of the prompt than sizes and keys. One that looks at no load says
    `reads_load = False`, and its processes tell each other nothing.
    """

    Options: ClassVar[type[Any]]

    reads_prompt: ClassVar[bool] = True
    """Whether it looks at `Prompt.keys`; where not, they are not made."""

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Order the eligible `workers` (at least one), best first; nothing is placed yet."""

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """The request is being sent to `worker`: count it from now on."""

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """The request has ended on `candidate.worker`, well or not; once for each `placed`."""

    def forget(self, worker: str) -> None:
        """That worker restarted or left: it holds nothing any more."""

    def gauges(self) -> Mapping[str, float]:
        """Sizes worth watching, by name, for the metrics."""
