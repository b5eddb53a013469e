"""The cost of a request on each worker, in seconds: used by all strategies that compare workers.

    wait + prefill + price + decode + room + home

Each term is time that a request waits: this one, one that decodes, or one that comes later. The
comments at the constants say where the terms come from.
"""

from collections.abc import Mapping, Sequence
from math import exp, inf
from typing import Any, Final, overload

from strategies.api import NO_LOADING, Candidate, Cost, Prompt, WorkerView
from strategies.constants import (
    BELIEF,
    CROWD,
    DECODE_S,
    FULL_FROM,
    HOME,
    IDLE_S,
    LEAST_PRICE,
    LEAST_REST,
    LEAST_WAIT,
    MARGIN,
    PRICE,
    SMOOTHED_S,
    STEP_S,
)
from strategies.cost.load import Load
from strategies.cost.preemption import before
from strategies.cost.prefill import Curve, Loading
from strategies.prefix.tree import NOT_WANTED, Match

_MAX_SHARE: Final = 1.0 - LEAST_REST
#: Sort keys first: total cost, wait, turn, position in the list. Then worker, prefill, price,
#: decode, room and home in seconds, tokens held, which of them have to be loaded, and how many
#: prompts it preempts.
#: (Not a tuple type with a fixed length: mypyc would unpack and rebuild each tuple.)
Row = tuple[Any, ...]

_new = tuple.__new__  # twice as fast as `Cost(...)`


class Demand:
    """Recent demand: the share of workers busy with prefill, and of prompts that was held.

    The price of a second of prefill and the expected number of later turns come from these.
    """

    def __init__(self) -> None:
        self._busy = 0.0
        self._over_s = IDLE_S
        """How many seconds it is the average of."""
        self.reuse = 0.5
        """Share of recent prompts that some worker held."""
        self._held = self._prompts = 0.0
        self._seen: float | None = None

    def arrived(self, busy: float, reuse: float, now: float) -> None:
        """Record that a prompt was sent; the arguments are the two shares at that moment.

        `busy` is smoothed over time and `reuse` over prompts, so each prompt of a burst counts.
        """
        stays = 1.0 if self._seen is None else exp(min(0.0, self._seen - now) / SMOOTHED_S)
        more = (1.0 - stays) * SMOOTHED_S
        self._over_s = min(SMOOTHED_S, self._over_s + more)
        self._busy += more / self._over_s * (busy - self._busy)
        self._held = stays * self._held + reuse
        self._prompts = stays * self._prompts + 1.0
        self.reuse = (self._held + BELIEF / 2.0) / (self._prompts + BELIEF)
        self._seen = now if self._seen is None else max(now, self._seen)

    def price(self) -> float:
        """Return what a second of prefill costs the requests that come next, in seconds."""
        return LEAST_PRICE + PRICE * over_rest(self._busy)

    def turns(self) -> float:
        """Return how often what is computed now can be expected to be asked for again."""
        return over_rest(self.reuse)


def over_rest(share: float) -> float:
    """Return s / (1 - s): how many wait on average for what is in use for the share s of the time.

    Also how often what is asked for again with that chance is asked for again in all.
    """
    return share / (1.0 - share) if share < _MAX_SHARE else _MAX_SHARE / LEAST_REST


class Ranking(Sequence[Candidate]):
    """Candidates, cheapest first, created only when accessed.

    Of the hundreds of workers compared, only one or two are accessed; creating an object for each
    would take as long as comparing them.
    """

    __slots__ = ("_first", "_rows", "_sorted")

    def __init__(self, rows: list[Row]) -> None:
        """Take the rows, and put the cheapest first; the others are sorted when accessed."""
        place = rows.index(min(rows))
        rows[0], rows[place] = rows[place], rows[0]
        self._rows = rows
        self._sorted = False
        self._first: Candidate | None = None  # cached, as it is usually accessed several times

    def __len__(self) -> int:
        return len(self._rows)

    def _in_order(self) -> list[Row]:
        if not self._sorted:
            self._rows.sort()
            self._sorted = True
        return self._rows

    @overload
    def __getitem__(self, place: int) -> Candidate: ...
    @overload
    def __getitem__(self, place: slice) -> list[Candidate]: ...
    def __getitem__(self, place: int | slice) -> Candidate | list[Candidate]:
        if isinstance(place, slice):
            return [_candidate(row) for row in self._in_order()[place]]
        if place:
            return _candidate(self._in_order()[place])
        if self._first is None:
            self._first = _candidate(self._rows[0])
        return self._first

    def led_by(self, worker: str) -> "Ranking":
        """Return the ranking with `worker` moved to the front, if it is in it."""
        rows = self._rows
        return Ranking([(-inf, *row[1:]) if row[4].name == worker else row for row in rows])


def led_by(ranked: Sequence[Candidate], worker: str) -> Sequence[Candidate] | None:
    """Return the ranking with `worker` moved to the front; None if it is not in it."""
    if isinstance(ranked, Ranking):
        ranked = ranked.led_by(worker)
    else:
        ranked = sorted(ranked, key=lambda candidate: candidate.worker.name != worker)
    return ranked if ranked[0].worker.name == worker else None


def _candidate(row: Row) -> Candidate:
    _, wait, _, _, worker, prefill, price, decode, room, home, held, loads, preempts = row
    cost = _new(Cost, (wait, prefill, price, decode, room, home))
    return Candidate(worker, cost, held, loads, preempts)


class _Charge:
    """Computes a prompt's cost terms from what does not depend on the worker."""

    def __init__(self, prompt: Prompt, demand: Demand, match: Match | None, workers: int) -> None:
        self._tokens, self._match = prompt.tokens, match
        self._least_room: int | None = None
        self._reuse = demand.reuse
        self.later = demand.price()
        """What a second of its prefill costs those who come meanwhile, in seconds."""
        wanted = match.wanted(workers) if match is not None and prompt.tokens else NOT_WANTED
        self._wanted = wanted.tokens
        self.depth = held_tokens(prompt, wanted.blocks)
        """A worker that holds fewer tokens than this would hold a wanted copy afterwards."""
        self.slowness = DECODE_S if prompt.answer_tokens else 0.0
        """Seconds that a full KV cache costs answers."""
        if self._wanted:  # later turns would be slowed there as well
            self.slowness *= 1.0 + demand.turns() * min(1.0, self._wanted / self._tokens)

    def in_part(self, held: int) -> float:
        """Return `later` on a worker with `held` tokens, fewer than `depth`.

        Computing a wanted copy also serves later requests.
        """
        theirs = min(1.0, self._wanted / (self._tokens - held))
        return self.later * (1.0 - self._reuse * theirs)

    def least_room(self, workers: Sequence[WorkerView]) -> int:
        """Return the least room any worker reports, for those that do not; 0 if none does."""
        if self._least_room is None:
            rooms = [worker.room_tokens or 0 for worker in workers if worker.room_tokens]
            self._least_room = min(rooms, default=0)
        return self._least_room

    def room(self, worker: str, load: Load, used: float, space: float) -> float:
        """Return seconds until there is room in a KV cache of `space` tokens.

        `used` is the share of it in use with this prompt, possibly above 1. Not to be called if the
        prompt would not fit into an empty cache: the engine refuses it, so waiting is no use.
        """
        if self._match is not None:
            used -= self._match.in_use(worker) / space
        return load.stay_s * min(1.0, used - 1.0 + LEAST_WAIT) if used > 1.0 else 0.0


class Costs:
    """Computes the cost of prompts on workers; the only state is recent demand."""

    def __init__(self) -> None:
        self._demand = Demand()
        self._last: tuple[Prompt, float, float] | None = None
        self._counted: Prompt | None = None
        """The prompt that was counted as demand last."""

    def rank(
        self,
        prompt: Prompt,
        workers: Sequence[WorkerView],
        now: float,
        held: Mapping[str, int] | None = None,
        *,
        loading: Mapping[str, Loading] | None = None,
        match: Match | None = None,
    ) -> Ranking:
        """Return a candidate for each worker, cheapest first.

        By worker name, `held` is how many tokens of the prompt it holds, and `loading` which of
        those it has to load, which blocks it as computing does. `match` says which of them running
        requests use, and which are wanted on more workers. Ties go to the worker with the least
        booked prefill, then to the least recently chosen.
        """
        tokens, answer = prompt.tokens, prompt.answer_tokens
        held = held or {}
        most = max(held.values(), default=0)
        demand, count = self._demand, len(workers)
        charge, turns = _Charge(prompt, demand, match, count), demand.turns() if tokens else 0.0
        rows: list[Row] = []
        stay_s = sum([worker.load.stay_s for worker in workers]) / count
        busy, curve, computed = 0, None, dict[int, tuple[float, float]]()
        own = tokens - prompt.further_tokens
        for place, worker in enumerate(workers):
            name, load, pace = worker.name, worker.load, worker.pace
            if pace.curve is not curve:  # one curve per pool, and many workers hold the same amount
                curve, computed = pace.curve, {}
            wait = load.wait(now) if load.pending or load.late_until else 0.0
            preempts, later = 0, 0.0
            busy += 1 if load.pending else 0
            has = held.get(name, 0)
            if has not in computed:
                each = charge.later if has >= charge.depth else charge.in_part(has)
                computed[has] = _seconds(curve, prompt, own - has, has), each
            seconds, each = computed[has]
            prefill = pace.slower * seconds
            loads = NO_LOADING
            if loading and name in loading:
                loads = loading[name]
                prefill += loads.seconds
            if wait > MARGIN * STEP_S or load.promises:
                wait, preempts, later = before(load, wait, prompt.keys, prefill, now)
            price = (each + CROWD * load.decoding + later) * prefill
            decode = room = home = used = 0.0
            space = worker.room_tokens or charge.least_room(workers)
            if space:
                used = float(load.kv_tokens + tokens + answer)
                decode = charge.slowness * used / space
                used -= load.shared_tokens
                if used > space >= tokens and load.in_flight:
                    room = charge.room(name, load, used / space, space)
            if turns:
                home = turns * _turn_waits(load, used, space, stay_s, now)
            total = wait + prefill + price + decode + room + home
            row = (
                total, wait, load.turn, place, worker, prefill, price,
                decode, room, home, has, loads, preempts,
            )  # fmt: skip
            rows.append(row)
        # (A session can be created without a prompt. It counts as no demand and has no home term.)
        self._last = (prompt, busy / count, most / tokens) if tokens else None
        return Ranking(rows)

    def placed(self, prompt: Prompt, now: float) -> None:
        """Count a prompt that is sent, if it was ranked last; retries are not counted again."""
        if prompt.resumed:
            return
        if self._last is not None and self._last[0] is prompt and self._counted is not prompt:
            self._demand.arrived(self._last[1], self._last[2], now)
            self._counted = prompt
        self._last = None


def _seconds(curve: Curve, prompt: Prompt, uncached: int, held: int) -> float:
    """Return seconds to compute `uncached` tokens after `held` ones, and all further prompts."""
    seconds = curve.seconds(max(0, uncached), held)
    if prompt.further:  # each by itself: their tokens do not attend to those of the others
        each = prompt.further_tokens / prompt.further
        seconds += prompt.further * curve.seconds(each, 0)
    return seconds


def _turn_waits(load: Load, used: float, space: float, stay_s: float, now: float) -> float:
    """Return seconds that a later turn will wait there; `used` of `space` tokens are in use.

    `stay_s` is how long requests stay, on average over the workers: that of one depends too much on
    which requests it happened to get.
    """
    waits = 0.0
    limit = FULL_FROM * space
    if space and (used > limit or used + load.surplus > limit):  # (the surplus only shrinks)
        usual = min(1.0, (used + load.kv_surplus(now)) / space)
        waits = LEAST_WAIT * stay_s * max(0.0, usual - FULL_FROM)
    if load.given_s:
        waits += HOME * over_rest(load.given_lately(now) / SMOOTHED_S)
    return waits


def held_tokens(prompt: Prompt, blocks: int) -> int:
    """Return tokens in `blocks` held blocks; the last token of a prompt is always computed.

    Source: vLLM `v1/core/kv_cache_manager.py`, `get_computed_blocks`.
    """
    if not blocks:
        return 0
    return min(int(prompt.ends[blocks] * prompt.unit_tokens), max(0, prompt.tokens - 1))
