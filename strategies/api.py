"""What strategies and the router tell each other: a strategy implements `Strategy`.

A strategy is pure: the caller tells it the time and what happened, and it answers at once. It
never reads a clock, opens a socket or waits.
"""

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, NewType, Protocol, TypeVar

from msgspec import Struct

from strategies.cost.load import Load
from strategies.cost.prefill import Held, Loading, Loads, Pace

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


@dataclass(frozen=True)
class Capabilities:
    """What a strategy looks at and keeps: the router does nothing for it beyond that."""

    reads_prompt: bool = True
    """It looks at `Prompt.keys`; otherwise they are not computed."""
    reads_load: bool = True
    """It looks at what is booked on workers; otherwise processes that share a port do not tell each
    other what they send."""
    needs_tokens: bool = False
    """It needs `Prompt.blocks`, so that a tokenizer must be found where none is configured."""
    hears_others: bool = False
    """`placed` and `settled` are also called for requests that other processes of this router send:
    without a preceding `rank`, and with only the sizes and keys of the prompt."""
    keeps_sessions: bool = False
    """It looks at `Prompt.bound`: its pools have a table of sessions."""
    moves_sessions: bool = False
    """A session may leave its worker; otherwise it waits there, however long that takes."""
    keeps_state: bool = False
    """It hands on what it knows (`dump_state`, `restore_state`, `known_workers`)."""


class KvMemoryView(Protocol):
    """What KV events say about all workers' caches."""

    def held(self, prompt: Prompt, workers: Sequence[str]) -> Mapping[str, Held]:
        """Return what each of `workers` holds at the start of the prompt; nothing: left out."""

    def doubt(self, worker: str, prompt: Prompt | None = None) -> str:
        """Return why a worker's events cannot be used (for a prompt), in one of a few fixed words;
        empty if they can."""

    def heard(self, worker: str) -> int:
        """Return how many events have come from a worker so far."""

    def observe(self, worker: str, predicted: int | None, outcome: Outcome, heard: int) -> None:
        """Compare a prediction of the memory (None: there was none) with the outcome; `heard` is
        the number of events before the request was sent."""

    def correct(
        self, worker: str, prompt: Prompt, believed: Held, found: Held, *, sure: bool
    ) -> None:
        """Learn that a prompt lay on other tiers of a worker than predicted; `sure` if the worker
        itself reported the tiers."""

    def forget(self, worker: str) -> None:
        """Drop what `worker` held: it restarted or left."""


class KvStoreView(Protocol):
    """A store from which all workers can load, whichever of them wrote it."""

    def held(self, prompt: Prompt) -> int:
        """Return how many of the prompt's first tokens are there, as far as is known."""

    def computed(self, prompt: Prompt, cached: int) -> None:
        """Learn that a worker has computed a prompt, except its first `cached` tokens."""


class KvSources:
    """Where a strategy learns from engines what workers hold; the router fills it in."""

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        """Most bytes that `memory` may take."""
        self.memory: KvMemoryView | None = None
        self.store: KvStoreView | None = None
        """A store that is asked in addition to the events, if there is one."""
        self.loads = Loads()
        """The tiers and how fast they load."""


class Strategy(Protocol):
    """Chooses among workers: `rank` is all that a strategy must have; the rest has defaults.

    To write one, copy `policies/least_load.py`: derive from this class, and register yours under
    the entry point group `warmroute.strategies`. It is made as `cls(cls.Options(**options))`. To
    build on a built-in strategy, hold an instance of it and delegate; do not subclass it: in the
    container image some are compiled, and the router would not start.
    """

    Options: ClassVar[type[Any]] = NoOptions
    """What an operator may set: a frozen dataclass with defaults (see `option`)."""
    capabilities: Capabilities = Capabilities()
    kv: KvSources | None = None
    """Set by a strategy that wants to know what engines' KV events say."""

    @abstractmethod
    def rank(self, prompt: Prompt, workers: Sequence[WorkerView], now: float) -> Decision:
        """Order the eligible `workers` (at least one), best first, without placing the request."""

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:
        """Count the request from now on: it is being sent to `worker`, whose load has a booking."""
        return

    def settled(self, prompt: Prompt, candidate: Candidate, outcome: Outcome, now: float) -> None:
        """Learn how the request ended on `candidate.worker`; called once for each `placed`."""
        return

    def forget(self, worker: str) -> None:
        """Drop what `worker` held: it restarted or left."""
        return

    def waits(self, prompt: Prompt) -> Callable[[], object]:
        """Note that a request waits in the router, until the returned function is called."""
        return nothing

    def gauges(self) -> Mapping[str, float]:
        """Return sizes to show in the metrics, by name."""
        return {}

    def dump_state(self) -> bytes:
        """Return what `restore_state` needs to go on where this strategy is."""
        return b""

    def restore_state(self, data: bytes) -> str:
        """Go on with another process's state; return a description of it for the log.

        Raise ValueError with a sentence if that is not possible.
        """
        return f"{len(data)} bytes"

    def known_workers(self) -> Iterable[str]:
        """Return the workers that it knows after `restore_state`; absent ones are forgotten."""
        return ()


def nothing() -> None:
    """Do nothing: for a strategy that does not want to know which requests wait."""
