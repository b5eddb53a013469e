"""The cost in seconds: one number a worker, and every strategy that compares workers uses it.

    wait + prefill + price + decode + room + home

Each term is a time that somebody waits: this request, those that decode, those that come later.
Where a term comes from is said beside its constant.
"""

from collections.abc import Mapping, Sequence
from math import exp
from typing import Final

from strategies.base import NO_LOADING, Prompt, WorkerView
from strategies.demand import Demand
from strategies.load import BACK_S, Load
from strategies.loads import Loading
from strategies.match import NOT_WANTED, Match
from strategies.ranking import Ranking, Row

#: Part of the prefill's seconds that each request decoding there counts: it stands still meanwhile.
CROWD: Final = 0.03
#: Seconds that a full KV cache is worth: a step reads the cache once, which takes about 25 ms where
#: it is full, on every accelerator (memory over bandwidth: H100 80 GB at 3.35 TB/s, A100 80 at 2.0,
#: L40S 48 at 0.86); over an answer of 240 tokens, half of it counted. Not the length of the answer
#: at hand: weighed by that, a thousand tokens drive prompts from their prefixes, and gain nothing.
DECODE_S: Final = 3.0
#: Part of a request's stay that it waits at least where there is no room for it.
LEAST_WAIT: Final = 0.25
#: Seconds that one turn waits on a worker that was busy half of the time; u / (1 - u) times as long
#: at another share u of the time (what it was given over what it was not, both in seconds as
#: predicted), up to `MOST_HOME`.
HOME: Final = 0.3
MOST_HOME: Final = 4.0
#: Seconds that one turn waits for room where the KV cache has been full, counted from this share in
#: use: requests come and go, and one that is two thirds full on the average is full now and then.
FULL: Final = 4.0
FULL_FROM: Final = 0.6


class _Charge:
    """What one prompt is charged, wherever it goes."""

    __slots__ = ("_depth", "_later", "_match", "_reuse", "_tokens", "_wanted", "slowness")

    def __init__(self, prompt: Prompt, demand: Demand, match: Match | None, workers: int) -> None:
        self._tokens, self._match = prompt.tokens, match
        self._later, self._reuse = demand.price(workers), demand.reuse
        wanted = match.wanted(workers) if match is not None and prompt.tokens else NOT_WANTED
        self._wanted, self._depth = wanted.tokens, held_tokens(prompt, wanted.blocks)
        self.slowness = DECODE_S if prompt.answer_tokens else 0.0
        """Seconds that a full KV cache costs answers."""
        if self._wanted:  # those who follow would be there too
            self.slowness *= 1.0 + demand.turns() * min(1.0, self._wanted / self._tokens)

    def price(self, prefill: float, held: int, decoding: int) -> float:
        """What so many seconds of prefill, that much being held, cost others."""
        later = self._later
        if held < self._depth:  # in part they are spent for those who come
            theirs = min(1.0, self._wanted / (self._tokens - held))
            later *= 1.0 - self._reuse * theirs
        return (later + CROWD * decoding) * prefill

    def room(self, worker: str, load: Load, used: float, space: float) -> float:
        """Seconds until there is room, where so many times the KV cache would be in use.

        What does not fit even where nothing runs is refused by the engine: nobody is to wait for
        that, and this is not to be asked then.
        """
        if self._match is not None:
            used -= self._match.in_use(worker) / space
        return load.stay_s * min(1.0, used - 1.0 + LEAST_WAIT) if used > 1.0 else 0.0


class Costs:
    """Prices prompts on workers; remembers only what has been asked of them."""

    def __init__(self) -> None:
        self._demand = Demand()
        self._last: tuple[Prompt, float, float] | None = None
        self._told: Prompt | None = None
        """Whose demand was told last."""

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

        `held` is how many tokens of the prompt a worker holds, `loading` what of it lies on slower
        tiers, by its name; while it is loaded nobody else is served, as while it is computed.
        `match` tells what of it is in use, and what is wanted on more workers. Ties go to the least
        booked, then to the least recently chosen.
        """
        waits, busy = _waits(workers, now)
        tokens, answer = prompt.tokens, prompt.answer_tokens
        most = max(held.values(), default=0) if held else 0
        demand, count = self._demand, len(workers)
        # (Of a session that begins without a prompt nothing is known: those take turns.)
        self._last = (prompt, busy / count, most / tokens) if tokens else None
        charge, turns = _Charge(prompt, demand, match, count), demand.turns() if tokens else 0.0
        rows: list[Row] = []
        curve, computed, least = None, dict[int, float](), -1
        for place, worker in enumerate(workers):
            name, load, pace, wait = worker.name, worker.load, worker.pace, waits[place]
            has = held.get(name, 0) if held else 0
            if pace.curve is not curve:  # the same all over a pool, and many hold equally much
                curve, computed = pace.curve, {}
            if has not in computed:
                computed[has] = curve.seconds(tokens - has, has)
            prefill = pace.slower * computed[has]
            loads = NO_LOADING
            if loading and name in loading:
                loads = loading[name]
                prefill += loads.seconds
            price = charge.price(prefill, has, load.decoding)
            decode = room = home = used = 0.0
            space = worker.room_tokens
            if not space:
                least = least if least >= 0 else _least_room(workers)
                space = least
            if space:
                used = float(load.kv_tokens + tokens + answer)
                decode = charge.slowness * used / space
                used += load.promised_tokens - load.shared_tokens
                if used > space >= tokens and load.in_flight:
                    room = charge.room(name, load, used / space, space)
            if turns:
                home = turns * _turn_waits(load, used, space or 0, now)
            total = wait + prefill + price + decode + room + home
            turn = load.turn
            row = total, wait, turn, place, worker, prefill, price, decode, room, home, has, loads
            rows.append(row)
        return Ranking(rows)

    def placed(self, prompt: Prompt, now: float) -> None:
        """It is sent: news if it was ranked last, and not if it is sent again, or by others."""
        if self._last is not None and self._last[0] is prompt and self._told is not prompt:
            self._demand.arrived(self._last[1], self._last[2], now)
            self._told = prompt
        self._last = None


def _least_room(workers: Sequence[WorkerView]) -> int:
    """What a worker that does not tell is taken to have: as little as any other, or it has all."""
    return min([worker.room_tokens or 0 for worker in workers if worker.room_tokens], default=0)


def _turn_waits(load: Load, used: float, space: float, now: float) -> float:
    """Seconds that a later turn will wait there, with so many tokens of its KV cache in use."""
    waits, given = 0.0, load.given_s
    if space:
        usual = min(1.0, (used + load.kv_surplus(now)) / space)
        if usual > FULL_FROM:
            waits = FULL * (usual - FULL_FROM)
    if given:
        given *= exp(min(0.0, load.given_at - now) / BACK_S)
        rest = BACK_S - given
        waits += HOME * (given / rest if given < MOST_HOME * rest else MOST_HOME)
    return waits


def _waits(workers: Sequence[WorkerView], now: float) -> tuple[list[float], int]:
    """Seconds of prefill before a prompt on each of them, and how many have any to do."""
    waits, busy = [], 0
    for worker in workers:
        load = worker.load
        wait = load.promised_s
        if load.pending:
            wait += load.wait(now)
            busy += 1
        waits.append(wait)
    return waits, busy


def held_tokens(prompt: Prompt, blocks: int) -> int:
    """Tokens of `blocks` held blocks; the last token of a prompt is always computed.

    Source: vLLM `v1/core/kv_cache_manager.py`, `get_computed_blocks`.
    """
    if not blocks:
        return 0
    return min(int(prompt.ends[blocks] * prompt.unit_tokens), max(0, prompt.tokens - 1))
