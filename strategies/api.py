"""The types that all strategies share, and the protocol that a strategy implements.

A strategy is pure: the caller tells it the time and what happened, and it answers at once. It
never reads a clock, opens a socket or waits.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, NewType, Protocol, TypeVar

from msgspec import Struct

from strategies.cost.load import Load
from strategies.cost.prefill import Pace
from strategies.cost.tiers import Held, Loading

T = TypeVar("T")
#: Marks an option as a size: `64MiB` in the YAML, bytes for the strategy.
Bytes = NewType("Bytes", int)
#: Marks an option as a duration: `30s` in the YAML, seconds for the strategy.
Seconds = NewType("Seconds", float)


@dataclass(frozen=True)
class Other:
    """Marks an option as another strategy: in the YAML, its name or a mapping with options."""

    name: str
    options: dict[str, object] = field(default_factory=dict)


def option(default: T, doc: str) -> T:
    """Return the field of an option: `doc` says what it does, for the reference of settings."""
    return field(default=default, metadata={"doc": doc})


#: Where blocks of 16 tokens end: vLLM's default block size.
TOKEN_ENDS = range(0, 1 << 32, 16)
NO_BLOCKS: Mapping[int, Sequence[int]] = MappingProxyType({})
NOBODY: Mapping[str, str] = MappingProxyType({})


# Structs, because a few are created for every request: ten times as fast as dataclasses.
class Prompt(Struct, frozen=True, gc=False):
    """What a strategy knows about a request: sizes and keys, never the text."""

    model: str
    """The model's name as the client wrote it."""
    tokens: int
    """Length of the prompt; an estimate where it was not tokenized."""
    keys: Sequence[int] = ()
    """Chained key of each full block from the start; equal keys mean equal prefixes."""
    ends: Sequence[int] = TOKEN_ENDS
    """Offset of each block's end, in units, starting with 0: `n` keys cover `ends[n]` units."""
    unit_tokens: float = 1.0
    """Tokens per unit of `ends`: 1 if units are tokens, less if they are bytes."""
    answer_tokens: int = 256
    """Tokens that the answer is expected to take in the KV cache; at most the client's limit."""
    estimated: bool = False
    """`tokens` was estimated from the length of plain text; the worker's count can correct it."""
    counted: bool = False
    """`tokens` was counted by tokenizing: it should equal the count that the worker reports."""
    stream: bool = False
    """Whether the first byte of the answer means the first token (otherwise, the last one)."""
    blocks: Mapping[int, Sequence[int]] = NO_BLOCKS
    """Chained keys of blocks of equal size, as engines have them, by tokens per block: one entry
    for each block size in the pool's memory. Empty if not tokenized, or if nothing needs them."""
    ids: bytes = b""
    """Token ids, 32 bits each; empty unless something needs them."""
    salt: str = ""
    """The request's cache salt, set along with `ids`."""
    bound: str | None = None
    """Name of the worker that the request's session is bound to; empty for a session that is not
    bound yet, None without a session."""
    elsewhere: bool = False
    """Another process of this router sent it; only sizes and `keys` are known."""
    further: int = 0
    """How many more prompts the request has, of which only the length is known."""
    further_tokens: int = 0
    """Their length, which is part of `tokens`."""
    too_long: int = 0
    """Its length, if it is longer than its model takes and so counts as one token."""
    barred: Mapping[str, str] = NOBODY
    """Workers that cannot answer it, by name, each with the reason; none of them is ranked."""
    resumed: bool = False
    """It was sent before, and preempted: it was counted, and its worker holds some of it by then
    (how much is estimated)."""
    path: str = ""
    """Path of the endpoint that it is for; a worker may fail at one and serve another."""

    def blocks_in(self, tokens: float) -> int:
        """Return how many of its full blocks lie within its first `tokens`."""
        units = tokens / self.unit_tokens
        return bisect_right(self.ends, units, hi=len(self.keys) + 1) - 1


class WorkerView(Protocol):
    """What a strategy can see of a worker."""

    @property
    def name(self) -> str:
        """Name, unique in its pool and stable across reloads."""

    @property
    def load(self) -> Load:
        """What this router has booked on it."""

    @property
    def pace(self) -> Pace:
        """How fast it computes."""

    @property
    def kv_tokens(self) -> int | None:
        """Tokens of prefixes that it can keep on all its tiers; None if not configured: then it
        keeps `room_tokens` on its GPU, and possibly more on slower tiers."""

    @property
    def room_tokens(self) -> int | None:
        """Size of its GPU's KV cache, which running requests share, in tokens; None if unknown."""


class Cost(NamedTuple):
    """Cost of one request on one worker, in seconds: its own delay, and the delay of others."""

    wait: float = 0.0
    """Prefill booked on the worker, or promised to it, and not done yet."""
    prefill: float = 0.0
    """Computing the tokens of the prompt that the worker does not hold, or loading them."""
    price: float = 0.0
    """What that prefill costs the requests that come next, and those that decode there."""
    decode: float = 0.0
    """How much slower answers get there: this one, and those it joins."""
    room: float = 0.0
    """Waiting until another request leaves, if the KV cache has no room for this one."""
    home: float = 0.0
    """How long later turns of this prompt will wait there, given how busy it has been."""

    @property
    def total(self) -> float:
        """Sum of all terms in seconds: the number that routing minimises."""
        return self.wait + self.prefill + self.price + self.decode + self.room + self.home


#: The cost in strategies that do not compare costs.
FREE = Cost()
#: Nothing has to be loaded.
NO_LOADING = Loading()


class Candidate(Struct, frozen=True, gc=False):
    """One worker that could take the request."""

    worker: WorkerView
    cost: Cost
    held_tokens: int = 0
    """Tokens at the start of the prompt that the worker is believed to hold: a Python `int`, not
    numpy's, because compiled code takes nothing else."""
    loading: Loading = NO_LOADING
    """The part of them to load from slower tiers; its seconds are included in `cost.prefill`."""
    preempts: int = 0
    """Longer prompts there, not yet computed, that give way to it (`preemption.py`)."""

    @property
    def believed(self) -> Held:
        """On which tiers its held tokens are believed to be."""
        _, l1, l2 = self.loading
        return Held(max(0, self.held_tokens - l1 - l2), l1, l2)


class Decision(Struct, frozen=True, gc=False):
    """All eligible workers, best first: failover takes the next one."""

    candidates: Sequence[Candidate]
    reason: str
    """Why the first worker is first, in a word, for metrics and headers (after it, perhaps a doubt
    in brackets)."""
    stays: bool = False
    """Use the other workers only if the first is lost, not if it is full."""
    aside: int = 0
    """How many workers at the end come last whatever they cost: they have just refused a request,
    or are ejected."""
    drawn: bool = False
    """Only the first two were compared: they were drawn at random."""


class Outcome(Struct, frozen=True, gc=False):
    """How a request ended on one worker."""

    ok: bool
    """The worker's answer was complete, and not an error of its own."""
    began: bool = True
    """The worker may have computed some of the prompt (False: it refused or rejected it)."""
    first_byte_s: float | None = None
    """Seconds from booking to the first byte of the answer; None if none came."""
    prompt_tokens: int | None = None
    """As the worker reported it."""
    cached_tokens: int | None = None
    """As the worker reported it (`usage.prompt_tokens_details.cached_tokens`)."""
    found: Held | None = None
    """On which tiers the cached tokens were, if the worker reported it."""
    answer_tokens: int | None = None
    """As the worker reported it (`usage.completion_tokens`)."""
    computed_s: float | None = None
    """Seconds that its prefill took while the worker computed no other prompt; None if unknown."""
    kept_tokens: int | None = None
    """If it was preempted: tokens of the prompt that the worker holds by now, as estimated."""


@dataclass(frozen=True)
class NoOptions:
    """Options of a strategy that has none."""


class Strategy(Protocol):
    """Three methods per request, and one for a worker that has lost its cache.

    Third-party strategies are found through the entry point group `warmroute.strategies`. The class
    is instantiated as `cls(cls.Options(**options))`; `Options` is a frozen dataclass with defaults.
    To build on a built-in strategy, hold an instance of it and delegate; do not subclass it. In the
    container image those classes are compiled and cannot be subclassed, so the router would not
    start.

    A strategy that hands its state to the next router process also has `left() -> bytes`, and
    `take_over(data) -> str`, which returns a description of what was taken over, or raises
    ValueError with a sentence. With `holders() -> Iterable[str]`, which names the workers that it
    then knows, `forget` is called for those that the pool has no more.

    A strategy that wants to know which requests wait in the router has `waits(prompt)`. What it
    returns is called when the request does not wait any more.

    If several router processes share a port, each also books the requests that the others send.
    With `hears_others = True`, `placed` and `settled` are called for those as well: without a
    preceding `rank`, and with only the sizes and keys of the prompt. A strategy that ignores load
    sets `reads_load = False`; its processes then exchange nothing.
    """

    Options: ClassVar[type[Any]]

    reads_prompt: ClassVar[bool] = True
    """Whether it uses `Prompt.keys`; if not, they are not computed."""

    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Order the eligible `workers` (at least one), best first, without placing the request."""

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Count the request from now on: it is being sent to `worker`."""

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Learn how the request ended on `candidate.worker`; called once for each `placed`."""

    def forget(self, worker: str) -> None:
        """Drop what `worker` held: it restarted or left."""

    def gauges(self) -> Mapping[str, float]:
        """Return sizes to show in the metrics, by name."""


class Stateless:
    """What strategies have in common that remember nothing of requests and workers."""

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Do nothing: the worker's load has the booking."""

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Do nothing: the worker's load has the booking."""

    def forget(self, worker: str) -> None:
        """Do nothing."""

    def gauges(self) -> Mapping[str, float]:
        """Return nothing."""
        return {}


def nothing() -> None:
    """Do nothing: for a strategy that does not want to know which requests wait."""
